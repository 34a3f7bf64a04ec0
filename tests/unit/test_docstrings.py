"""Docstrings describe the arguments that a function has."""

import ast
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = ("shared", "cli", "local", "functions", "examples", "bench", "tools", "tests")
_SECTION = re.compile(r"^Args:\n((?:    .*\n?|\n)+)", re.MULTILINE)
_NAME = re.compile(r"^    \*{0,2}(\w+):", re.MULTILINE)
NEEDS_NO_WORDS = {"self", "cls", "context"}
"""A context means the same to every service: `services/context.py` describes it."""


def differences(source: str) -> list[str]:
    """List the functions whose section `Args:` names other arguments than their signature."""
    problems = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        section = _SECTION.search(ast.get_docstring(node) or "")
        if section is None:
            continue
        described = set(_NAME.findall(section[1]))
        signature = node.args
        given = {argument.arg for argument in (*signature.posonlyargs, *signature.args, *signature.kwonlyargs)}
        given |= {argument.arg for argument in (signature.vararg, signature.kwarg) if argument}
        problems += [f"{node.name} has no argument {name}" for name in sorted(described - given)]
        problems += [f"{node.name} does not describe {name}" for name in sorted(given - described - NEEDS_NO_WORDS)]
    return problems


@pytest.mark.parametrize("folder", SOURCES)
def test_described_arguments_are_those_of_the_signature(folder: str) -> None:
    wrong = [
        f"{path.relative_to(PROJECT)}: {difference}"
        for path in sorted((PROJECT / folder).rglob("*.py"))
        for difference in differences(path.read_text(encoding="utf-8"))
    ]

    assert wrong == [], "correct the section `Args:` of these docstrings"


def test_wrong_and_missing_arguments_are_found() -> None:
    docstring = '"""Launch.\n\n    Args:\n        job: The job.\n        pool: Gone.\n    """'
    source = f"def launch(job, node):\n    {docstring}\n"

    assert differences(source) == ["launch has no argument pool", "launch does not describe node"]
