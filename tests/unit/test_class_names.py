"""A public class name has one meaning: no two modules define it.

A class of `evenkeel.training` may repeat a name, because the training package runs inside the job without pydantic.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = ("shared", "functions", "cli", "local")
TRAINING = "shared/evenkeel/training/"


def repeated_class_names(sources: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each public class name that two modules define, from pairs of a path and its source."""
    paths_by_name = defaultdict(list)
    for path, source in sources:
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not path.startswith(TRAINING):
                paths_by_name[node.name].append(path)
    return [
        f"{name} is defined in {', '.join(sorted(paths))}: rename one class after its purpose"
        for name, paths in sorted(paths_by_name.items())
        if len(paths) > 1
    ]


def test_public_class_name_is_defined_once() -> None:
    paths = [path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py")]

    assert repeated_class_names((path.relative_to(PROJECT).as_posix(), path.read_text()) for path in paths) == []


def test_class_name_that_is_defined_twice_is_reported() -> None:
    sources = (
        ("shared/a.py", "class Site: ..."),
        ("cli/b.py", "class Site: ...\nclass _Own: ..."),
        ("shared/evenkeel/training/c.py", "class Site: ..."),
    )

    assert repeated_class_names(sources) == [
        "Site is defined in cli/b.py, shared/a.py: rename one class after its purpose"
    ]
