"""The reference run: the example trainer, without faults, on this machine."""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TWIN_SECONDS = 120.0


@functools.cache
def reference_digest(ranks: int, steps: int, seed: int) -> str:
    """Train a job as `ranks` processes, without Evenkeel, a cluster or faults; return the digest of its weights.

    Raises:
        RuntimeError: a rank failed; the message has the end of its output.
    """
    folder = Path(tempfile.mkdtemp(prefix="evenkeel-twin-"))
    # A loopback address of its own: its ports are free.
    address = f"127.{secrets.randbelow(100) + 100}.{secrets.randbelow(250) + 1}.{secrets.randbelow(250) + 1}"
    command = [sys.executable, "-m", "evenkeel_trainer", "--steps", str(steps), "--seed", str(seed)]
    environment = os.environ | {
        "EVENKEEL_JOB_ID": "job-twin",
        "EVENKEEL_ATTEMPT": "1",
        "EVENKEEL_CHECKPOINT_URI": str(folder),
        "EVENKEEL_RESUME_FROM": "",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": "29500",
    }
    # Log to files: a full pipe would block a rank, and with it all other ranks.
    logs = [folder / f"rank-{rank}.log" for rank in range(ranks)]
    processes = []
    for rank, log in enumerate(logs):
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                command,
                env=environment | {"JOB_COMPLETION_INDEX": str(rank)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        processes.append(process)
    try:
        for process in processes:
            process.wait(timeout=TWIN_SECONDS)
        for rank, process in enumerate(processes):
            if process.returncode != 0:
                last_output = logs[rank].read_text(encoding="utf-8")[-800:]
                raise RuntimeError(f"rank {rank} of the reference run ended with {process.returncode}: {last_output}")
        result = json.loads((folder / "result" / "attempt=1.json").read_text(encoding="utf-8"))
        return str(result["digest"])
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)
