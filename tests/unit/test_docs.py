"""The documents name what there is: every proof, every file, every link."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from evenkeel.domain.recovery.guardrails import GuardrailName
from evenkeel_local.scenarios import SCENARIOS
from tests.simulator import fuzz  # noqa: F401 - brings all rows into the table
from tests.simulator.invariants import TABLE

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
SAFETY = DOCS / "operate" / "safety.md"
PAGES = sorted([PROJECT / "README.md", PROJECT / "CHANGELOG.md", *DOCS.rglob("*.md")])
_CODE = re.compile(r"`([^`]+)`")
_LINKED = re.compile(r"\[([\w-]+)\](?!\()")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@cache
def names_of_tests() -> frozenset[str]:
    return frozenset(
        name
        for path in (PROJECT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    )


def is_existing_proof(name: str) -> bool:
    """Whether a proof is there: a test, a planted bug, an invariant, or a file of tests."""
    if "/" in name:
        return (PROJECT / name).exists()
    if name.endswith(".patch"):
        return (PROJECT / "tests" / "mutants" / name).exists()
    return name in names_of_tests() or name in {invariant.name for invariant in TABLE}


def table_of(page: str) -> Iterator[tuple[str, ...]]:
    """Return the rows of all tables of a page, without their headers."""
    lines = (DOCS / page).read_text("utf-8").splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("| ") and not below.startswith("|--"):
            yield tuple(cell.strip() for cell in line.strip("|").split("|"))


@pytest.mark.parametrize(("page", "proof"), [("operate/safety.md", _LINKED), ("extend.md", _CODE)])
def test_every_proof_named_in_a_page_exists(page: str, proof: re.Pattern[str]) -> None:
    rows = list(table_of(page))

    missing = [(row[0], name) for row in rows for name in proof.findall(row[-1]) if not is_existing_proof(name)]
    assert missing == []
    assert [row[0] for row in rows if not proof.search(row[-1]) and "its own test" not in row[-1]] == []


def test_every_proof_of_a_promise_has_a_link() -> None:
    named = {name for row in table_of("operate/safety.md") for name in _LINKED.findall(row[-1])}
    targets = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", SAFETY.read_text("utf-8"), re.MULTILINE))

    assert set(targets) == named, "Run `make generate`."
    assert [name for name, target in targets.items() if not (SAFETY.parent / target).is_file()] == []
    assert [
        name
        for name, target in targets.items()
        if not re.search(rf"^(def |\| `){name}\b", (SAFETY.parent / target).read_text("utf-8"), re.MULTILINE)
    ] == []


def test_every_invariant_is_linked_to_a_promise() -> None:
    shown = {name for row in table_of("operate/safety.md") for name in _LINKED.findall(row[-1])}

    assert {invariant.name for invariant in TABLE} - shown == set()


@pytest.mark.parametrize("page", ["operate/guardrails.md", "runbooks/recovery-blocked.md"])
def test_every_guardrail_is_documented_on_both_pages(page: str) -> None:
    shown = {name for row in table_of(page) for name in _CODE.findall(row[0])}

    assert set(GuardrailName) - shown == set()


def test_every_file_named_in_the_extension_guide_exists() -> None:
    cells = [cell for row in table_of("extend.md") for cell in row[1:]]
    steps = [
        line for line in (DOCS / "extend.md").read_text("utf-8").splitlines() if re.match(r"\d+\. |\* |[A-Z]", line)
    ]
    named = {
        name for text in (*cells, *steps) for name in _CODE.findall(text) if name.count("/") > 1 and " " not in name
    }

    assert [name for name in sorted(named) if not (PROJECT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_target_exists(page: Path) -> None:
    links = _LINK.findall(page.read_text("utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_linked_from_the_readme() -> None:
    read, ahead = set(), [PROJECT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in read:
            continue
        read.add(page)
        if page.is_dir():
            ahead += page.glob("*.md")
        elif page.suffix == ".md":
            ahead += [(page.parent / link).resolve() for link in _LINK.findall(page.read_text("utf-8"))]

    assert [page.relative_to(PROJECT) for page in PAGES if page.name != "CHANGELOG.md" and page not in read] == []


def test_scenarios_page_lists_every_scenario() -> None:
    assert [row[0].strip("`") for row in table_of("operate/scenarios.md")] == list(SCENARIOS)


def test_changelog_has_each_heading_once() -> None:
    headings = [line for line in (PROJECT / "CHANGELOG.md").read_text().splitlines() if line.startswith("### ")]

    assert headings == ["### Changed", "### Added", "### Fixed"]
