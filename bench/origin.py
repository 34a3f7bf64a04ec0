"""The command, seeds and commit behind the figures of a benchmark. Each file in `bench/results/` names them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def describe_origin(module: str, words: Sequence[str] | None, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the command, the seeds and the commit of a run.

    Args:
        module: The module of the benchmark, as `python -m` takes it.
        words: Arguments of the command; None = the arguments of this process.
        seeds: Seeds of its random draws; empty if it draws nothing.
    """
    return {
        "command": " ".join(["python -m", module, *(sys.argv[1:] if words is None else words)]),
        "seeds": list(seeds),
        "commit": os.environ.get("BENCH_COMMIT") or _current_commit(),
    }


def _current_commit() -> str:
    """Return the commit of the working copy. Set `BENCH_COMMIT` in a copy without git."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, cwd=RESULTS, capture_output=True, text=True, check=False).stdout.strip()


def write_figures(path: Path | None, document: Mapping[str, Any]) -> None:
    """Write the figures as JSON, if a path is given."""
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
