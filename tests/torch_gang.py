"""Runs of the PyTorch example. PyTorch is too large for the project's environment, so it has its own interpreter."""

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenkeel.training.layout import Checkpoint
from evenkeel.training.storage import open_storage

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "pytorch"
MISSING = "no interpreter has PyTorch: run `make torch`, or name one with EVENKEEL_TORCH_PYTHON"
_NEEDS = "import boto3, numpy, torch.distributed.checkpoint; from torch.distributed.fsdp import fully_shard"


@functools.cache
def find() -> Path | None:
    """Return an interpreter with PyTorch (EVENKEEL_TORCH_PYTHON, `make torch`, or `python3`); None without one."""
    named = os.environ.get("EVENKEEL_TORCH_PYTHON")
    candidates = [named] if named else [str(ROOT / ".tools" / "torch" / "bin" / "python"), shutil.which("python3")]
    return next((Path(candidate) for candidate in candidates if candidate and _can_run(candidate)), None)


def _can_run(python: str) -> bool:
    try:
        done = subprocess.run([python, "-c", _NEEDS], capture_output=True, timeout=60, check=False)
    except OSError:
        return False
    return done.returncode == 0


def environment(python: Path) -> dict[str, str]:
    """Return the variables with which a process finds `torchrun` and the training library."""
    return {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "shared"),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
    }


@dataclass
class Gang:
    """The pods of a job, each with its own torchrun."""

    folder: Path
    pods: int = 1
    processes_per_pod: int = 2
    running: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return f"file://{self.folder}/checkpoints"

    def run(self, attempt: int, script: Path, *options: str, **variables: str) -> "Ended":
        """Run an attempt to its end, with options of the script and variables of its environment."""
        python = find()
        assert python
        common = {
            **os.environ,
            **environment(python),
            "EVENKEEL_CHECKPOINT_URI": self.uri,
            "EVENKEEL_JOB_ID": "job-rings",
            "EVENKEEL_ATTEMPT": str(attempt),
            "WORLD_SIZE": str(self.pods),
            "PROCESSES_PER_POD": str(self.processes_per_pod),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
            **variables,
        }
        command = ["sh", str(EXAMPLE / "pod.sh"), str(script), *options]
        logs = [self.folder / f"attempt-{attempt}-pod-{pod}.log" for pod in range(self.pods)]
        for pod, log in enumerate(logs):
            scratch = self.folder / f"scratch-{pod}"
            scratch.mkdir(exist_ok=True)
            own = {"JOB_COMPLETION_INDEX": str(pod), "SCRATCH": str(scratch), "TMPDIR": str(scratch)}
            with log.open("w") as output:
                self.running.append(
                    subprocess.Popen(
                        command,
                        env=common | own,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        text=True,
                        start_new_session=True,
                    )
                )
        codes = [process.wait(timeout=120) for process in self.running[-self.pods :]]
        return Ended(codes, "\n".join(log.read_text() for log in logs))

    def manifest(self, attempt: int, step: int) -> dict[str, Any]:
        content = open_storage(self.uri).get(Checkpoint(step=step, attempt=attempt).manifest_key)
        assert content is not None
        return dict(json.loads(content))

    def state(self, attempt: int, step: int) -> dict[str, str]:
        """Return the checksums of a checkpoint: weights, optimizer and schedule of each rank."""
        return state_of(self.manifest(attempt, step))

    def end(self) -> None:
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass(frozen=True)
class Ended:
    codes: Sequence[int]
    log: str


def _free_port() -> int:
    """Return a free port. torchrun listens on all addresses of the machine, so the port must be free on each."""
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def state_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the checksum of each rank's file: DCP's `.metadata` also contains its time and path."""
    named = {shard["key"].rpartition("/")[2]: shard["sha256"] for shard in manifest["shards"]}
    return {name: sha256 for name, sha256 in named.items() if name != ".metadata"}
