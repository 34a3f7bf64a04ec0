"""Every test, file and link that the documents name exists."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenkeel.domain.recovery.guardrails import GuardrailName
from evenkeel_local.scenarios import SCENARIOS
from tests.simulator import fuzz  # noqa: F401 - brings all rows into the table
from tests.simulator.invariants import TABLE
from tools import site_hooks

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
SAFETY = DOCS / "operate" / "safety.md"
PAGES = sorted([PROJECT / "README.md", PROJECT / "CHANGELOG.md", *DOCS.rglob("*.md")])
_CODE = re.compile(r"`([^`\n]+)`")
_FUNCTION_NAME = re.compile(r"`(_?[a-z0-9]+(?:_[a-z0-9]+)+)`")
_LINKED = re.compile(r"\[([\w-]+)\](?!\()")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@cache
def names_of_tests() -> frozenset[str]:
    return frozenset(
        name
        for path in (PROJECT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    )


@cache
def code_words() -> frozenset[str]:
    """Return all words of the Python code and of the template, without the names that texts quote."""
    folders = ("shared", "cli", "local", "functions", "bench", "tools", "tests")
    files = [path for folder in folders for path in (PROJECT / folder).rglob("*.py")]
    files.append(PROJECT / "template.yaml")
    return frozenset(word for path in files for word in re.findall(r"\w+", _CODE.sub("", path.read_text("utf-8"))))


def is_existing_proof(name: str) -> bool:
    """Whether a named proof exists: a test, a planted bug, an invariant, or a file of tests."""
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
def test_every_test_that_a_page_names_exists(page: str, proof: re.Pattern[str]) -> None:
    rows = list(table_of(page))

    missing = [(row[0], name) for row in rows for name in proof.findall(row[-1]) if not is_existing_proof(name)]
    assert missing == [], "correct the page: no test has this name"
    assert [row[0] for row in rows if not proof.search(row[-1]) and "its own test" not in row[-1]] == [], (
        "name the proof of each promise in the last column"
    )


def test_every_test_named_for_a_promise_has_a_valid_link() -> None:
    linked_names = {name for row in table_of("operate/safety.md") for name in _LINKED.findall(row[-1])}
    targets = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", SAFETY.read_text("utf-8"), re.MULTILINE))

    assert set(targets) == linked_names, "Run `make generate`."
    assert [name for name, target in targets.items() if not (SAFETY.parent / target).is_file()] == [], (
        "correct the link at the end of docs/operate/safety.md: the file does not exist"
    )
    assert [
        name
        for name, target in targets.items()
        if not re.search(rf"^(def |\| `){name}\b", (SAFETY.parent / target).read_text("utf-8"), re.MULTILINE)
    ] == [], "correct the link at the end of docs/operate/safety.md: the file does not have this test"


def test_every_invariant_is_linked_to_a_promise() -> None:
    linked_names = {name for row in table_of("operate/safety.md") for name in _LINKED.findall(row[-1])}

    assert {invariant.name for invariant in TABLE} - linked_names == set(), (
        "link the invariant in a row of docs/operate/safety.md"
    )


@pytest.mark.parametrize("page", ["operate/guardrails.md", "runbooks/recovery-blocked.md"])
def test_every_guardrail_is_documented_on_both_pages(page: str) -> None:
    documented_names = {name for row in table_of(page) for name in _CODE.findall(row[0])}

    assert set(GuardrailName) - documented_names == set(), (
        "describe the guardrail in docs/operate/guardrails.md and docs/runbooks/recovery-blocked.md"
    )


def test_every_file_named_in_the_extension_guide_exists() -> None:
    cells = [cell for row in table_of("extend.md") for cell in row[1:]]
    steps = [
        line for line in (DOCS / "extend.md").read_text("utf-8").splitlines() if re.match(r"\d+\. |\* |[A-Z]", line)
    ]
    named_paths = {
        name for text in (*cells, *steps) for name in _CODE.findall(text) if name.count("/") > 1 and " " not in name
    }

    assert [name for name in sorted(named_paths) if not (PROJECT / name).exists()] == [], (
        "correct the path in docs/extend.md"
    )


def test_every_code_name_of_the_glossary_exists() -> None:
    package = PROJECT / "shared" / "evenkeel"
    sources = (*package.rglob("*.py"), *(PROJECT / "statemachines").glob("*.json"))
    words = set(re.findall(r"\w+", " ".join(path.read_text("utf-8") for path in sources)))
    named = {name for row in table_of("glossary.md") for name in _CODE.findall(row[2])}

    assert {name for name in named if "/" in name and not (package / name).exists()} == set(), (
        "correct the path in docs/glossary.md"
    )
    assert {name for name in named if "/" not in name and not set(name.split(".")) <= words} == set(), (
        "correct the name in docs/glossary.md: the code does not have it"
    )


def test_private_names_of_the_extension_guide_are_in_its_files() -> None:
    missing = []
    for section in re.split(r"^#+ ", (DOCS / "extend.md").read_text("utf-8"), flags=re.MULTILINE):
        files = [PROJECT / name for name in _CODE.findall(section) if name.endswith(".py") and name.count("/") > 1]
        words = set(re.findall(r"\w+", " ".join(file.read_text("utf-8") for file in files)))
        missing += [name for name in _CODE.findall(section) if re.fullmatch(r"_\w+", name) and name not in words]

    assert missing == [], "correct the name in docs/extend.md: the file that the row names does not have it"


def test_every_code_name_of_the_extension_guide_exists() -> None:
    guide = re.sub(r"```.*?```", "", (DOCS / "extend.md").read_text("utf-8"), flags=re.DOTALL)
    named = {name for name in _CODE.findall(guide) if re.fullmatch(r"\.?\w+(\.\w+)*", name)}

    assert {name for name in named if not set(name.strip(".").split(".")) <= code_words()} == set(), (
        "correct the name in docs/extend.md: the code does not have it"
    )


def test_every_call_that_the_extension_guide_shows_names_real_values() -> None:
    guide = (DOCS / "extend.md").read_text("utf-8")
    sources = "\n".join(path.read_text("utf-8") for path in (PROJECT / "shared").rglob("*.py"))
    calls = re.findall(r"`([a-z_.]+\([^`\n]+\))`", guide)

    assert calls
    parts = {part for call in calls for part in re.findall(r'"\w+"|\w+=[\w.]+', call)}
    assert {part for part in parts if not re.search(rf"(?<!\w){re.escape(part)}(?!\w)", sources)} == set()


def test_every_function_that_a_docstring_names_exists() -> None:
    missing = [
        (str(path.relative_to(PROJECT)), name)
        for path in sorted((PROJECT / "shared").rglob("*.py"))
        for name in _FUNCTION_NAME.findall(path.read_text("utf-8"))
        if name not in code_words()
    ]

    assert missing == [], "correct the docstring: no function has this name"


def test_extension_guide_names_every_file_that_names_a_market() -> None:
    guide = (DOCS / "extend.md").read_text("utf-8")
    files_with_market = [
        str(path.relative_to(PROJECT))
        for path in sorted((PROJECT / "shared").rglob("*.py"))
        if re.search(r"\bMarket\.[A-Z]", path.read_text("utf-8"))
    ]

    assert files_with_market
    assert [name for name in files_with_market if f"`{name}`" not in guide] == [], (
        "add the file to the row about markets in docs/extend.md"
    )


def test_extension_guide_lists_every_file_that_names_node_owner() -> None:
    guide = (DOCS / "extend.md").read_text("utf-8")
    section = guide.partition("### Add a node provider")[2].partition("\n### ")[0]
    step = section.partition("**Owner.**")[2].partition("**Call.**")[0]
    files_with_owner = {
        str(path.relative_to(PROJECT))
        for path in (PROJECT / "shared").rglob("*.py")
        if re.search(r"\bNodeOwner\b", path.read_text("utf-8"))
    }

    assert {name for name in _CODE.findall(step) if "/" in name} == files_with_owner, (
        "list exactly these files in the row about node owners in docs/extend.md"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_target_exists(page: Path) -> None:
    links = _LINK.findall(page.read_text("utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == [], (
        "correct the link: its target does not exist"
    )


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

    assert [page.relative_to(PROJECT) for page in PAGES if page.name != "CHANGELOG.md" and page not in read] == [], (
        "link the page from README.md, or from a page that it links"
    )


def named_pages(entries: list[Any]) -> Iterator[str]:
    """Yield every page of the site's navigation, as often as it is named."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values():
                yield from named_pages([inner] if isinstance(inner, str) else inner)


def test_every_page_is_once_in_the_navigation() -> None:
    site = yaml.load((PROJECT / "mkdocs.yml").read_text("utf-8"), yaml.BaseLoader)
    navigation = site_hooks.on_config({**site, "docs_dir": str(DOCS), "extra_javascript": []})["nav"]

    assert sorted(named_pages(navigation)) == sorted(
        path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")
    ), "name the page once in `nav` of mkdocs.yml"


def test_scenarios_page_lists_every_scenario() -> None:
    assert [row[0].strip("`") for row in table_of("operate/scenarios.md")] == list(SCENARIOS), (
        "add the scenario to the table of docs/operate/scenarios.md, in the order of the code"
    )


def test_each_decision_record_states_status_and_replacement() -> None:
    status_of = {}
    for page in sorted((DOCS / "decisions").glob("0*.md")):
        text = page.read_text("utf-8").split("\n\n")[1]
        assert text.startswith("**Status.** "), f"{page.name}: after the title, write `**Status.** In force.`"
        status_of[page.name] = text
    replacements = [
        (name, link)
        for name, text in status_of.items()
        if "eplace" in text
        for link in re.findall(r"\((0.+?\.md)\)", text)
    ]

    assert len(status_of) > 40
    assert replacements
    for name, link in replacements:
        assert f"({name})" in status_of[link], (
            f"{link}: its status must link {name}, which it replaces or which replaces it"
        )


def test_changelog_has_each_heading_once() -> None:
    headings = [line for line in (PROJECT / "CHANGELOG.md").read_text().splitlines() if line.startswith("### ")]

    assert headings == ["### Before you update", "### Changed", "### Added", "### Fixed"]


def test_entry_of_the_changelog_is_one_short_line() -> None:
    lines = (PROJECT / "CHANGELOG.md").read_text("utf-8").splitlines()
    long_entries = [line for line in lines if line.startswith("- ") and len(line) > 200]
    continued_lines = [line for line in lines if line.startswith("  ")]

    assert long_entries == [], "say it in at most 200 characters, and link the page that has the details"
    assert continued_lines == [], "write each entry on one line"


def test_every_page_of_the_console_is_named_in_its_document() -> None:
    main = (PROJECT / "cli" / "evenkeel_cli" / "console" / "static" / "main.js").read_text("utf-8")
    pages = re.findall(r'^  \["(\w*)", "([^"]+)", "(\w)", ', main, re.MULTILINE)
    documented = {row[0].partition(",")[0]: row[1] for row in table_of("operate/console.md") if len(row) == 3}

    assert len(pages) > 5
    assert {title: f"`g {key}`" for _, title, key in pages} == documented, (
        "add the page and its key to the table of docs/operate/console.md"
    )
