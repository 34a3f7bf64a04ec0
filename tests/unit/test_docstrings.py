"""Docstrings describe the arguments that a function has."""

import ast
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = ("shared", "cli", "local", "functions", "examples", "bench", "tools", "tests")
_SECTION = re.compile(r"^Args:\n((?:    .*\n?|\n)+)", re.MULTILINE)
_NAME = re.compile(r"^    \*{0,2}(\w+):", re.MULTILINE)
UNDESCRIBED_ARGUMENTS = {"self", "cls", "context"}
"""The argument `context`, which `services/context.py` describes for every service."""


def differences(source: str) -> list[str]:
    """List the functions whose section `Args:` names other arguments than their signature."""
    problems: list[str] = []
    if "Args:" not in source:  # most files: parsing them would take most of the time
        return problems
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        section = _SECTION.search(ast.get_docstring(node) or "")
        if section is None:
            continue
        described = set(_NAME.findall(section[1]))
        signature = node.args
        arguments = {argument.arg for argument in (*signature.posonlyargs, *signature.args, *signature.kwonlyargs)}
        arguments |= {argument.arg for argument in (signature.vararg, signature.kwarg) if argument}
        problems += [f"{node.name} has no argument {name}" for name in sorted(described - arguments)]
        problems += [
            f"{node.name} does not describe {name}" for name in sorted(arguments - described - UNDESCRIBED_ARGUMENTS)
        ]
    return problems


@pytest.mark.parametrize("folder", SOURCES)
def test_docstring_describes_exactly_the_arguments_of_its_function(folder: str) -> None:
    problems = [
        f"{path.relative_to(PROJECT)}: {difference}"
        for path in sorted((PROJECT / folder).rglob("*.py"))
        for difference in differences(path.read_text(encoding="utf-8"))
    ]

    assert problems == [], "correct the section `Args:` of these docstrings"


def test_docstring_with_unknown_or_missing_arguments_is_reported() -> None:
    docstring = '"""Launch.\n\n    Args:\n        job: The job.\n        pool: Gone.\n    """'
    source = f"def launch(job, node):\n    {docstring}\n"

    assert differences(source) == ["launch has no argument pool", "launch does not describe node"]
