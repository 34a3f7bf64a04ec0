"""Messages: a number and its noun agree, so no message says "1 nodes" or "1 times"."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.domain.plurals import count_of

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = ("shared", "functions", "cli")

NOUNS = (
    *("accelerators", "attempts", "characters", "checkpoints", "days", "decisions", "documents", "errors", "events"),
    *("facts", "failures", "fields", "gaps", "GPUs", "groups", "hosts", "hours", "incidents", "instances", "jobs"),
    *("machines", "minutes", "months", "nodes", "orders", "pages", "pods", "pools", "queues", "records", "rentals"),
    *("replicas", "rows", "seconds", "spares", "steps", "teams", "tickets", "times", "weeks"),
)
_PLURAL = re.compile(rf" (?:(?:free|idle|open|more|interrupted|active|pending|stored) )?(?:{'|'.join(NOUNS)})\b")

_CONSTANT = re.compile(r"(\w+\.)*_?[A-Z][A-Z_]+(\.days)?")
"""Names of module constants. Their value is known, so the text has the right noun."""

ALWAYS_MANY = frozenset(
    {
        ("shared/evenkeel/domain/economics/published_tables.py", "nodes"),
        ("shared/evenkeel/domain/economics/published_tables.py", "days"),
        ("shared/evenkeel/domain/jobs/attempt_waits.py", "attempt.ranks"),
        ("shared/evenkeel/services/attempts/mark_running.py", "attempt.ranks"),
        ("shared/evenkeel/domain/sources.py", "round(seconds / 86400)"),
        ("shared/evenkeel/services/queries/incidents/incidents_by_need.py", "number"),
        ("cli/evenkeel_cli/commands/status.py", "quota"),
    }
)
"""Values that are never 1, or whose text is chosen by hand."""


def is_fraction(value: ast.FormattedValue) -> bool:
    """Whether a value is written with decimals: `1.0 days`."""
    return value.format_spec is not None and bool(re.search(r"\.[1-9]", ast.unparse(value.format_spec)))


def plural_problems(path: str, source: str) -> Iterator[str]:
    """Yield a line for each f-string with a plural noun behind a value that may be 1."""
    for node in ast.walk(ast.parse(source)):
        for value, text in zip(node.values, node.values[1:], strict=False) if isinstance(node, ast.JoinedStr) else ():
            if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant) and not is_fraction(value):
                name = ast.unparse(value.value)
                noun = _PLURAL.match(str(text.value))
                if noun and not _CONSTANT.fullmatch(name) and (path, name) not in ALWAYS_MANY:
                    yield f"{path}:{value.lineno}: {{{name}}}{noun[0]}: use `count_of`, so that 1 has no plural"


def test_message_uses_singular_or_plural_after_a_number() -> None:
    files = [path for folder in FOLDERS for path in sorted((PROJECT / folder).rglob("*.py"))]
    problems = [
        problem
        for path in files
        for problem in plural_problems(path.relative_to(PROJECT).as_posix(), path.read_text(encoding="utf-8"))
    ]

    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("source", "expected"), [('f"{n} nodes"', 1), ('f"{n} idle nodes"', 1), ('f"{_MAX} nodes"', 0), ('f"{n} of"', 0)]
)
def test_fixed_plural_after_a_variable_number_is_reported(source: str, expected: int) -> None:
    assert len(list(plural_problems("x.py", source))) == expected


def test_count_of_writes_singular_or_plural_by_number() -> None:
    counts = [count_of(number, "node") for number in (0, 1, 2)]
    assert counts == ["0 nodes", "1 node", "2 nodes"]

    assert [count_of(number, "node is", "nodes are") for number in (1, 2)] == ["1 node is", "2 nodes are"]
