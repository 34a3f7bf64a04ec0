"""Run the linters and all test levels in parallel lanes.

    python -m tools.test_lanes          all tests but the drills and the exhaustive tests, as in CI
    python -m tools.test_lanes --all    every test, before a release

Each lane is its own process. Its output is printed at once, each line with the lane's name. A failure is shown
when it happens and again at the end. The exit code is 0 only if every lane passed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from tests.examples import ALL_TESTS

_COMMAND_AND_CONSOLE = "tests/unit/cli"
"""A quarter of the unit tests' processor time, much of it in the browser."""
_SERVICES = ("tests/unit/services_jobs", "tests/unit/services_recovery", "tests/unit/training")
_RUN_BY_LINT = "tests/template/test_lint.py"
_WITH_UNIT_TESTS = ("tests/local/test_least_privilege.py",)
_WITH_COMMANDS = (
    "tests/local/gpu_cluster",
    "tests/local/test_deployment.py",
    "tests/local/test_engine.py",
    "tests/local/test_load.py",
    "tests/local/test_processes.py",
    "tests/local/test_supervision.py",
    "tests/local/test_trainer_on_engine.py",
)
"""Local tests without the shared data centre. They run in other lanes, so that all lanes end at about the same time."""


def _except(paths: Sequence[str]) -> list[str]:
    return [f"--ignore={path}" for path in paths]


LANES = {
    "unit": [
        *("tests/unit", *_except((_COMMAND_AND_CONSOLE, *_SERVICES)), *_WITH_UNIT_TESTS),
        *("tests/workflow", "tests/simulator", "tests/template", *_except((_RUN_BY_LINT,))),
    ],
    "services": [*_SERVICES, "tests/contract"],
    "commands": [*_WITH_COMMANDS, _COMMAND_AND_CONSOLE, "tests/pytorch"],
    "local": ["tests/local", *_except((*_WITH_UNIT_TESTS, *_WITH_COMMANDS))],
}
"""Four lanes for two processors, because `local` often waits for processes and `commands` for the browser."""
LINT = ("make", "--no-print-directory", "lint")
"""Runs beside the lanes, with `_RUN_BY_LINT`."""
EACH_TIME = ("-m", "not drills and not exhaustive")
_SUMMARY = re.compile(r"=* ?\d+ .* in [\d.]+s")
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?)")


class Lane(threading.Thread):
    """A process of pytest or of the linters, and its counts."""

    def __init__(self, name: str, command: Sequence[str], printing: threading.Lock) -> None:
        super().__init__(name=name)
        self.command = command
        self.printing = printing
        self.exit_code = 0
        self.counts: dict[str, int] = {}
        self.output: list[str] = []
        self.seconds = 0.0

    def run(self) -> None:
        started = time.monotonic()
        with subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout
            for line in process.stdout:
                self.output.append(line)
                with self.printing:
                    print(f"{self.name:8} {line}", end="", flush=True)
        self.exit_code = process.returncode
        self.seconds = time.monotonic() - started
        summaries = filter(_SUMMARY.match, reversed(self.output))
        for count, result in _COUNTS.findall(next(summaries, "")):
            self.counts[result.removesuffix("s") if result.startswith("error") else result] = int(count)


def main() -> int:
    """Run the lanes and print their totals."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--all", action="store_true", help="the drills and the exhaustive tests too")
    runs_all = options.parse_args().all
    if runs_all:
        os.environ[ALL_TESTS] = "1"
    pytest = (sys.executable, "-m", "pytest", "--color=no", "--durations=12", *(() if runs_all else EACH_TIME))
    printing = threading.Lock()
    running = [Lane("lint", LINT, printing)]
    running += [Lane(name, (*pytest, *arguments), printing) for name, arguments in LANES.items()]
    for lane in running:
        lane.start()
    for lane in running:
        lane.join()
    total = {
        result: sum(lane.counts.get(result, 0) for lane in running)
        for result in ("passed", "failed", "error", "skipped")
    }
    for lane in running:
        for line in lane.output:
            if line.startswith(("FAILED ", "ERROR ")):
                print(f"{lane.name:8} {line}", end="")
        print(f"test: {lane.name}: {lane.seconds:.0f} s, exit code {lane.exit_code}")
    print(f"{total['passed']} passed, {total['failed'] + total['error']} failed, {total['skipped']} skipped")
    return 0 if all(lane.exit_code == 0 for lane in running) else 1


if __name__ == "__main__":
    sys.exit(main())
