"""Remove the rule that each drill covers from a copy of the tree, and check that the drill fails: `make drill-mutants`.

The patch of a drill is `tests/mutants/drills/<drill>.patch`. It begins with `Fails: <text>`; a failing check must
contain this text. A drill that passes without its rule proves nothing, so that is an error.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.simulator.mutants import ROOT, copy_and_apply

PATCHES = ROOT / "tests" / "mutants" / "drills"
SEED = 2026
"""As in `make drills`."""
SECONDS = 1500.0
"""Longest run of a drill. A storm without limits takes ten minutes until its timeout."""
_SOURCES = ("shared", "functions", "statemachines", "local", "cli", "examples", "charts", "requirements")
_COPIED = (*_SOURCES, "template.yaml", "openapi.json", "samconfig.toml")
_IMPORTED = ("cli", "examples/trainer", "local", "shared")
_PLAY = """
import json, sys
from evenkeel_local.drills import DRILLS, run_alone
result = run_alone(DRILLS[sys.argv[1]], seed=int(sys.argv[2]))
print(json.dumps(result.failures()))
"""


@dataclass(frozen=True)
class DrillMutant:
    """A drill without its rule."""

    path: Path

    @property
    def drill(self) -> str:
        return self.path.stem

    @property
    def fails(self) -> str:
        """Text that a failing check must contain."""
        first = self.path.read_text().partition("\n")[0]
        return first.removeprefix("Fails: ").strip() if first.startswith("Fails: ") else ""


def drill_mutants() -> list[DrillMutant]:
    return [DrillMutant(path) for path in sorted(PATCHES.glob("*.patch"), key=lambda path: path.stem)]


def failures(mutant: DrillMutant) -> list[str]:
    """Run the drill in a tree without its rule, in its own data centre; return the failures.

    Raises:
        RuntimeError: the patch does not apply, or the drill did not start.
    """
    with tempfile.TemporaryDirectory(prefix=f"{mutant.drill}-") as name:
        folder = Path(name)
        if refused := copy_and_apply(mutant.path, folder, _COPIED):
            raise RuntimeError(f"its patch no longer applies: {refused}")
        (folder / ".tools").symlink_to(ROOT / ".tools")
        paths = os.pathsep.join(str(folder / name) for name in _IMPORTED)
        ran = subprocess.run(
            [sys.executable, "-c", _PLAY, mutant.drill, str(SEED)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    if ran.returncode:
        raise RuntimeError(f"it does not run: {ran.stderr.strip()[-2000:]}")
    return list(json.loads(ran.stdout))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make drill-mutants", description=__doc__)
    parser.add_argument("drills", nargs="*", help="only these")
    chosen = parser.parse_args(arguments).drills
    played = [mutant for mutant in drill_mutants() if not chosen or mutant.drill in chosen]
    survived = 0
    for mutant in played:
        began = time.monotonic()
        try:
            failed_checks = failures(mutant)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failed_checks, message = [], f"BROKEN: {error}"
        else:
            message = f"SURVIVED, nothing says {mutant.fails!r}: {failed_checks}"
        named = [failed for failed in failed_checks if mutant.fails in failed]
        survived += not named
        print(
            f"{mutant.drill:22} {time.monotonic() - began:4.0f} s  {named[0][:160] if named else message}", flush=True
        )
    print(f"drills: {len(played) - survived} of {len(played)} fail without their rule")
    return 0 if played and not survived else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
