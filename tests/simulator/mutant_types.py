"""Type errors in the trees with planted bugs.

A rename can change a patch that still applies: it uses a name that is gone, or compares a number with an object. No
seed then finds its bug, and only a long run of `make mutants` shows that. mypy shows it at once. Its daemon stays, so a
patch takes half a second.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.simulator.mutants import apply_patch, copy_tree

_CHECKED = ("shared", "functions", "tests/fakes")
"""The folders that patches change."""
_EXPECTED = "[unreachable]"
"""A planted condition may never hold."""


def type_errors(patches: Iterable[Path]) -> dict[str, list[str]]:
    """Return the type errors that each patch adds, by its name; a patch without errors is left out.

    Raises:
        RuntimeError: the tree has errors without a patch, a patch does not apply, or mypy does not run.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_tree(folder, (*_CHECKED, "pyproject.toml", "template.yaml"))
        try:
            _run_daemon(folder, "start", "--", "--config-file", "pyproject.toml")
            if errors := _errors(_run_daemon(folder, "check", *_CHECKED)):
                raise RuntimeError(f"the tree has type errors without a patch: {errors}")
            return {patch.stem: errors for patch in patches if (errors := _errors_with(patch, folder))}
        finally:
            _run_daemon(folder, "kill")


def _errors_with(patch: Path, folder: Path) -> list[str]:
    if refused := apply_patch(patch, folder):
        raise RuntimeError(f"{patch.stem} does not apply: {refused}")
    try:
        return _errors(_run_daemon(folder, "recheck"))
    finally:
        apply_patch(patch, folder, "--reverse")


def _errors(output: str) -> list[str]:
    return [line for line in output.splitlines() if ": error:" in line and not line.endswith(_EXPECTED)]


def _run_daemon(folder: Path, *command: str) -> str:
    """Run a command of mypy's daemon; return what it prints.

    Raises:
        RuntimeError: mypy crashed, or refused the command.
    """
    status = ("--status-file", str(folder / "daemon.json"))
    ran = subprocess.run(
        [sys.executable, "-m", "mypy.dmypy", *status, *command], cwd=folder, capture_output=True, text=True, check=False
    )
    if ran.returncode > 1 or ran.stderr.strip():
        raise RuntimeError(f"mypy: {(ran.stderr or ran.stdout).strip()[-2000:]}")
    return ran.stdout
