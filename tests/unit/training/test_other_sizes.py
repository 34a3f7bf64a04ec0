"""The example trainer resumes with another number of ranks, and its weights stay equal to the last bit."""

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evenkeel_local.reference_run import reference_digest

STEPS, SEED = 40, 7


class ElasticAttempt:
    """The ranks of one attempt, as processes with checkpoints in a folder."""

    def __init__(self, folder: Path, attempt: int, ranks: int, resume_from: str, *options: str) -> None:
        self.folder, self.attempt = folder, attempt
        # A separate loopback address, so that the port is free.
        address = f"127.{secrets.randbelow(100) + 20}.{secrets.randbelow(250) + 1}.{secrets.randbelow(250) + 1}"
        environment = os.environ | {
            "EVENKEEL_JOB_ID": "job-sizes",
            "EVENKEEL_ATTEMPT": str(attempt),
            "EVENKEEL_CHECKPOINT_URI": str(folder),
            "EVENKEEL_RESUME_FROM": resume_from,
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": address,
            "MASTER_PORT": "29500",
        }
        command = [sys.executable, "-m", "evenkeel_trainer", "--steps", str(STEPS), "--seed", str(SEED), *options]
        self.ranks = [
            subprocess.Popen(
                command, env=environment | {"JOB_COMPLETION_INDEX": str(rank)}, stdout=subprocess.PIPE, text=True
            )
            for rank in range(ranks)
        ]

    def wait_for_exit_codes(self) -> list[int]:
        for rank in self.ranks:
            rank.communicate(timeout=60)
        return [rank.returncode for rank in self.ranks]

    def stop_at_step(self, step: int) -> list[int]:
        """Ask all ranks to stop once rank 0 has taken this number of steps, and return their exit codes."""
        out = self.ranks[0].stdout
        assert out
        for line in out:
            document: dict[str, Any] = json.loads(line)
            if document["event"] == "step" and document["step"] >= step:
                break
        for rank in self.ranks:
            rank.send_signal(signal.SIGTERM)
        return self.wait_for_exit_codes()

    def newest_manifest(self) -> str:
        """Return the key of the last manifest that the attempt saved."""
        return max(str(path.relative_to(self.folder)) for path in self.folder.glob("attempt=*/step=*/manifest.json"))


@pytest.mark.parametrize("sizes", [(2, 3, 1), (3, 1, 2), (1, 5, 4)])
def test_weights_do_not_depend_on_stops_or_number_of_ranks(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    first = ElasticAttempt(tmp_path, 1, sizes[0], "", "--step-seconds", "0.03")
    codes = first.stop_at_step(8)
    second = ElasticAttempt(tmp_path, 2, sizes[1], first.newest_manifest(), "--step-seconds", "0.03")
    codes += second.stop_at_step(20)
    third = ElasticAttempt(tmp_path, 3, sizes[2], second.newest_manifest())

    assert third.wait_for_exit_codes() == [0] * sizes[2]
    assert set(codes) == {143}
    result = json.loads((tmp_path / "result" / "attempt=3.json").read_text(encoding="utf-8"))
    assert result["worldSize"] == sizes[2]
    assert result["digest"] == reference_digest(2, STEPS, SEED)


@pytest.mark.exhaustive
def test_reference_run_ends_despite_long_output() -> None:
    assert reference_digest(2, 1100, SEED)  # 70 KB of each rank exceed the buffer of a pipe
