"""Operating system processes as containers, and a guard that ends them with the cluster.

Each container's command runs in a session and process group of its own. Two mechanisms end every process with the
cluster. The kernel kills a direct child when its parent dies. A guard process holds a pipe from the cluster. When the
pipe closes, it kills every group that it received, and every process with a container's mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

MARK = "EVENKEEL_CONTAINER_ID"
CLUSTER_MARK = "EVENKEEL_GPU_CLUSTER"
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends; runs in the child, between fork and exec."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def marked_processes(mark: str, value: str | None = None) -> list[int]:
    """Return the ids of the processes with a mark in their environment, in any process group."""
    mark_text = f"{mark}={value}".encode() if value is not None else f"{mark}=".encode()
    processes: list[int] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = Path(entry.path, "environ").read_bytes()
        except OSError:
            continue
        for variable in environment.split(b"\0"):
            if variable == mark_text or (value is None and variable.startswith(mark_text)):
                processes.append(int(entry.name))
                break
    return processes


def kill_group(group: int, how: int) -> None:
    """Send a signal to a process group. An empty group is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, how)


def kill_container(container_id: str) -> None:
    """Kill every process of a container, in any process group."""
    for pid in marked_processes(MARK, container_id):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


class ProcessGuard:
    """The process that cleans up if the cluster is killed."""

    def __init__(self, cluster_mark: str) -> None:
        self._mark = cluster_mark
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the guard."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("process_guard.py")), CLUSTER_MARK, self._mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            close_fds=True,
        )

    def send(self, sign: str, group: int) -> None:
        """Tell the guard that a group starts (`+`) or ended (`-`)."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(f"{sign}{group}\n".encode())
                self._process.stdin.flush()

    def stop(self) -> None:
        """Close the pipe: the guard kills the remaining processes and ends."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


class ContainerLog:
    """Copies the output of a container from a pipe to its log file, and notes when each part arrived.

    The time of a line is the time at which it was read, as in a container runtime. `times_file` holds a line for each
    part: its offset in the log, and its time.
    """

    def __init__(self, path: Path) -> None:
        """Open the pipe and the files; the running event loop reads the pipe until all its writers are gone."""
        self._source, self.sink = os.pipe()
        os.set_blocking(self._source, False)
        self._log = path.open("ab", buffering=0)
        self._times = times_file(path).open("a", buffering=1)
        self._offset = path.stat().st_size
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._source, self.copy)

    def copy(self) -> None:
        """Copy the present content of the pipe."""
        while not self._log.closed:
            try:
                data = os.read(self._source, 65_536)
            except BlockingIOError:
                return
            if not data:
                self.close()
                return
            # The time comes first: a reader that sees the data can then find its time.
            self._times.write(f"{self._offset} {datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}000Z\n")
            self._log.write(data)
            self._offset += len(data)

    def close(self) -> None:
        """Stop copying. A second call does nothing."""
        if not self._log.closed:
            self._loop.remove_reader(self._source)
            os.close(self._source)
            self._log.close()
            self._times.close()


def times_file(log: Path) -> Path:
    """Return the file with the times of a container's log."""
    return log.with_name(f"{log.name}.times")


@dataclass
class RunningProcess:
    """One container's process."""

    process: asyncio.subprocess.Process
    container_id: str
    guard: ProcessGuard
    log: ContainerLog
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended_at: datetime | None = None
    forced_exit_code: int | None = None

    @property
    def group(self) -> int:
        """The process group, which is the leader's id."""
        return self.process.pid

    def terminate(self) -> None:
        """Send SIGTERM to the first process of the container, as a container runtime does."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)

    def send_signal(self, how: int) -> None:
        """Send a signal to the whole group."""
        kill_group(self.group, how)

    def kill(self) -> None:
        """Kill everything the container started."""
        kill_group(self.group, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for the first process, kill all other processes, and return the exit code."""
        code = await self.process.wait()
        kill_group(self.group, signal.SIGKILL)
        kill_container(self.container_id)
        self.log.copy()
        self.guard.send("-", self.group)
        self.ended_at = datetime.now(UTC)
        if self.forced_exit_code is not None:
            return self.forced_exit_code
        return code if code >= 0 else 128 - code


async def start_process(
    argv: list[str],
    env: Mapping[str, str],
    folder: Path,
    log: Path,
    container_id: str,
    guard: ProcessGuard,
    before_exec: Callable[[], None] = die_with_parent,
) -> RunningProcess:
    """Start a container's command.

    Raises:
        OSError: the command cannot be started (not found, not executable).
    """
    output = ContainerLog(log)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output.sink,
            stderr=output.sink,
            cwd=folder,
            env={**env, MARK: container_id},
            start_new_session=True,
            preexec_fn=before_exec,
        )
    except BaseException:
        output.close()
        raise
    finally:
        os.close(output.sink)
    guard.send("+", process.pid)
    return RunningProcess(process, container_id, guard, output)
