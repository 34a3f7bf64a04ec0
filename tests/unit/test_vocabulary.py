"""Names in the code: no retired word, no vague variable, no long test name.

`RETIRED` of `tools/prose.py` gives the words to use instead.
"""

import ast
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tools.prose import RETIRED, words_of

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = ("shared/", "functions/", "cli/", "local/", "bench/", "tools/", "examples/")

# Names of other systems, and retired words that have their ordinary meaning here.
ALLOWED = frozenset(
    {
        ("local/evenkeel_local/engine_program.py", "reject_foreign_hosts"),
        ("local/evenkeel_local/gpu_cluster/api_server.py", "PODS_STAY"),
    }
)

VAGUE = frozenset(
    (
        "asked",
        "doing",
        "done",
        "each",
        "found",
        "it",
        "laid",
        "made",
        "mine",
        "moved",
        "noted",
        "one",
        "others",
        "ours",
        "said",
        "seen",
        "some",
        "taken",
        "that",
        "theirs",
        "there",
        "thing",
        "told",
        "who",
        "whom",
    )
)
"""Names that say nothing about their value."""

PARTICIPLES = frozenset(
    (
        "acted",
        "affected",
        "asking",
        "ending",
        "exported",
        "interrupted",
        "joined",
        "judged",
        "leaving",
        "left",
        "loaded",
        "longest",
        "moving",
        "needing",
        "observed",
        "opened",
        "registered",
        "reported",
        "starting",
        "unwanted",
        "wanted",
        "working",
    )
)
"""Names of variables that lack their noun. The product has none left: it says `observed_node`, `stored_rows`."""
PRODUCT = ("shared", "functions", "cli", "local")

DEBT = Path(__file__).with_name("vague_names_debt.json")
"""The number of vague variables that each file still has. It only goes down."""

MAX_TEST_WORDS = 10
ARTICLES = frozenset(("a", "an", "the"))


Nodes = Sequence[ast.AST]
"""Every node of the syntax tree of a file. The checks share one walk of it."""


def nodes_of(source: str) -> Nodes:
    """Parse a file, and return its nodes."""
    return list(ast.walk(ast.parse(source)))


def names_of(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Yield the public names of a file: functions, classes, arguments, fields and module constants."""
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
        body = node.body if isinstance(node, ast.ClassDef | ast.Module) else []
        yield from ((target.lineno, target.id) for statement in body for target in targets_of(statement))


def targets_of(statement: ast.stmt) -> Iterator[ast.Name]:
    """Yield the names that an assignment sets."""
    match statement:
        case ast.Assign(targets=targets):
            yield from (target for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name() as target):
            yield target


def variables_of(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Yield the variables of a file: arguments, and names that a statement, a loop or an expression sets.

    A field of a class does not count, because the class gives its name a context.
    """
    classes = (node for node in nodes if isinstance(node, ast.ClassDef))
    fields = {target for node in classes for statement in node.body for target in targets_of(statement)}
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if node not in fields:
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def named_tests(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Yield the tests of a file."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name


def vague_variables(path: str, nodes: Nodes) -> list[str]:
    """Return a line for each vague variable of a file: where it is, and what to do."""
    vague_names = VAGUE | PARTICIPLES if path.split("/", maxsplit=1)[0] in PRODUCT else VAGUE
    return [
        f"{path}:{line}: {name}: name the variable after its value, such as `row`, `reason` or `stored_rows`"
        for line, name in variables_of(nodes)
        if name in vague_names
    ]


def long_test_names(path: str, nodes: Nodes) -> list[str]:
    """Return a line for each test of a file whose name has too many words."""
    return [
        f"{path}:{line}: {name}: shorten the name to {MAX_TEST_WORDS} words, without articles"
        for line, name in named_tests(nodes)
        if len(name.split("_")) - 1 > MAX_TEST_WORDS
    ]


def names_with_article(path: str, nodes: Nodes) -> list[str]:
    """Return a line for each test of a file whose name begins with an article."""
    return [
        f"{path}:{line}: {name}: begin the name with its subject, without an article"
        for line, name in named_tests(nodes)
        if name.split("_")[1] in ARTICLES
    ]


def retired_names(path: str, nodes: Nodes) -> list[str]:
    """Return a line for each name of a file with a retired word: where it is, and what to say instead."""
    if not path.startswith(FOLDERS):
        return []
    return [
        f"{path}:{line}: {name}: instead of {word!r} say {RETIRED[word]}"
        for line, name in names_of(nodes)
        for word in words_of(name)
        if word in RETIRED and (path, name) not in ALLOWED
    ]


CHECKS = (retired_names, vague_variables, long_test_names, names_with_article)
Problems = dict[Callable[[str, Nodes], list[str]], dict[str, list[str]]]


@pytest.fixture(scope="module")
def problems() -> Problems:
    """Return the problems of each tracked Python file by check. A file is parsed once for all checks."""
    git_output = subprocess.run(["git", "ls-files", "*.py"], cwd=PROJECT, capture_output=True, text=True, check=True)
    paths = [name for name in git_output.stdout.splitlines() if (PROJECT / name).is_file()]
    assert all(any(path.startswith(folder) for path in paths) for folder in (*FOLDERS, "tests/"))
    problems: Problems = {check: {} for check in CHECKS}
    for path in paths:
        nodes = nodes_of((PROJECT / path).read_text(encoding="utf-8"))
        for check in CHECKS:
            problems[check][path] = check(path, nodes)
    return problems


def test_names_use_no_retired_word(problems: Problems) -> None:
    lines = [line for path_lines in problems[retired_names].values() for line in path_lines]

    assert not lines, "\n".join(lines)


def test_variables_are_named_after_their_values(problems: Problems) -> None:
    debt = json.loads(DEBT.read_text(encoding="utf-8"))
    vague_lines = problems[vague_variables]
    new_lines = [line for path, lines in vague_lines.items() if len(lines) > debt.get(path, 0) for line in lines]
    assert not new_lines, "\n".join(new_lines)

    counts = {path: len(lines) for path, lines in vague_lines.items() if lines}
    assert debt == counts, f"Fewer variables are vague now: lower {DEBT.name} to {json.dumps(counts)}"


@pytest.mark.parametrize("check", [long_test_names, names_with_article])
def test_names_of_tests_are_short_and_begin_with_their_subject(
    problems: Problems, check: Callable[[str, Nodes], list[str]]
) -> None:
    lines = [line for path_lines in problems[check].values() for line in path_lines]

    assert not lines, "\n".join(lines)


def test_article_at_the_beginning_of_a_test_name_is_reported() -> None:
    source = "def test_a_row(): ...\ndef test_the_row(): ...\ndef test_row_of_a_job(): ...\n"

    assert len(names_with_article("x.py", nodes_of(source))) == 2


def test_retired_word_in_a_name_is_reported() -> None:
    problems = retired_names("cli/x.py", nodes_of("class HurtJob:\n    seat: str\n\ndef f(room): ...\n"))

    assert sorted(problem.split(":")[2].strip() for problem in problems) == ["HurtJob", "room", "seat"]


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "def f(found): ...",
        "def f():\n    found = 1",
        "def f():\n    for found in (): ...",
        "def f():\n    with f() as (row, found): ...",
        "def f():\n    def inner(*, found): ...",
        "rows = [found for found in ()]",
        "key = lambda found: 1",
        "if found := 1: ...",
        "try: ...\nexcept OSError as found: ...",
        "match 1:\n    case [*found]: ...",
        "match 1:\n    case int() as found: ...",
    ],
)
def test_vague_variable_is_reported_however_it_is_set(source: str) -> None:
    assert len(vague_variables("x.py", nodes_of(source))) == 1


def test_variable_of_the_product_has_a_noun() -> None:
    assert len(vague_variables("shared/x.py", nodes_of("observed = 1\nobserved_node = 1\n"))) == 1
    assert vague_variables("tests/x.py", nodes_of("observed = 1\n")) == []


def test_vague_words_are_allowed_as_field_names() -> None:
    assert vague_variables("x.py", nodes_of("class Report:\n    found: int\n    seen = 1\n")) == []


def test_test_name_of_eleven_words_is_too_long() -> None:
    ten_word_name = "test_" + "_".join(["word"] * 10)

    assert long_test_names("x.py", nodes_of(f"def {ten_word_name}(): ...")) == []
    assert len(long_test_names("x.py", nodes_of(f"def {ten_word_name}_more(): ..."))) == 1
