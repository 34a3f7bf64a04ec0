"""No name in the code uses a retired word: `RETIRED` of `tools/prose.py` gives the word to use instead."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.prose import RETIRED, words_of

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = ("shared", "functions", "cli", "local", "bench", "tools", "examples")

# Names of other systems, and words that have their ordinary meaning there.
ALLOWED = frozenset(
    {
        ("local/evenkeel_local/engine_program.py", "reject_foreign_hosts"),
        ("local/evenkeel_local/gpu_cluster/api_server.py", "PODS_STAY"),
    }
)


def names_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the public names of a file: functions, classes, arguments, fields and module constants."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
        body = node.body if isinstance(node, ast.ClassDef | ast.Module) else []
        for each in body:
            targets = (
                each.targets
                if isinstance(each, ast.Assign)
                else [each.target]
                if isinstance(each, ast.AnnAssign)
                else ()
            )
            yield from ((target.lineno, target.id) for target in targets if isinstance(target, ast.Name))


def retired_names(path: str, source: str) -> list[str]:
    """Return a line for each name of a file with a retired word: where it is, and what to say instead."""
    return [
        f"{path}:{line}: {name}: instead of {word!r} say {RETIRED[word]}"
        for line, name in names_of(ast.parse(source))
        for word in words_of(name)
        if word in RETIRED and (path, name) not in ALLOWED
    ]


FILES = sorted(path.relative_to(PROJECT).as_posix() for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", FILES)
def test_names_use_no_retired_word(path: str) -> None:
    assert retired_names(path, (PROJECT / path).read_text(encoding="utf-8")) == []


def test_retired_word_in_a_name_is_found() -> None:
    found = retired_names("x.py", "class HurtJob:\n    seat: str\n\ndef f(room): ...\n")

    assert sorted(each.split(":")[2].strip() for each in found) == ["HurtJob", "room", "seat"]
