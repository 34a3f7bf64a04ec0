"""Child processes that end with their parent.

Every child leads a process group of its own. So its descendants (an engine's function workers, a trainer's ranks) end
with it. A Ctrl-C in the terminal reaches only the parent, which stops its children in order. A guard runs between the
parent and the command:

    parent ── pipe ──▶ guard (leads the group) ──▶ command ──▶ its descendants
                         └ the pipe closes when the parent ends: the guard ends the group

A child that outlives the command that started it (`evenkeel dev up`) is started with `detached=True`. Its pid file also
holds the start time, because a pid is reused.

Linux only: this module reads /proc, and the local cluster needs the whole of 127.0.0.0/8.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Self

GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.02
_DEAD = ("Z", "X")  # process states that hold a pid and no other resource


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, distinguished from later processes with the same pid."""

    pid: int
    started: str  # opaque; differs between two processes with the same pid

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the mark of the process with this pid; None if there is none or only a zombie."""
        start_time = _start_time(pid)
        return None if start_time is None else cls(pid, start_time)

    @classmethod
    def read(cls, path: Path) -> ProcessIdentity | None:
        """Read a pid file; return None if it is missing or damaged."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return cls(int(document["pid"]), str(document["started"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, path: Path) -> None:
        """Write a pid file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(json.dumps({"pid": self.pid, "started": self.started}), encoding="utf-8")
        draft.replace(path)

    def is_alive(self) -> bool:
        return _start_time(self.pid) == self.started

    def stop_group(self, grace_seconds: float = GRACE_SECONDS) -> bool:
        """End the group that this process leads: SIGTERM, the grace, SIGKILL.

        Idempotent: yes; a process that is gone, and a reused pid, are left alone.

        Returns:
            Whether there was anything to stop.
        """
        if not self.is_alive():
            return False
        _signal_group(self.pid, signal.SIGTERM)
        if not _ends_within(self.pid, grace_seconds):
            _signal_group(self.pid, signal.SIGKILL)
            _ends_within(self.pid, GRACE_SECONDS)
        return True


class Child:
    """A command in a process group of its own."""

    def __init__(
        self, process: subprocess.Popen[bytes], mark: ProcessIdentity, lifeline: int | None, pid_file: Path | None
    ) -> None:
        self._process = process
        self._lifeline = lifeline
        self._pid_file = pid_file
        self.identity = mark

    @classmethod
    def start(
        cls,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        pid_file: Path | None = None,
        detached: bool = False,
    ) -> Child:
        """Start `command` with its output appended to `log`.

        Args:
            command: The program and its arguments; no shell is involved.
            log: File that receives standard output and error.
            env: The whole environment of the child; the caller's own if None.
            cwd: Working folder of the child.
            pid_file: Receives the group's pid and start time; removed by `stop`.
            detached: Whether the child outlives this process. Otherwise it ends with this process, even on SIGKILL.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        words = [str(word) for word in command]
        read_end, write_end = (None, None) if detached else os.pipe()
        if read_end is not None:
            words = [sys.executable, "-I", "-S", "-c", _GUARD, str(read_end), str(GRACE_SECONDS), *words]
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=None if env is None else dict(env),
                    cwd=cwd,
                    start_new_session=True,
                    pass_fds=() if read_end is None else (read_end,),
                )
        except BaseException:
            if write_end is not None:
                os.close(write_end)
            raise
        finally:
            if read_end is not None:
                os.close(read_end)
        mark = ProcessIdentity.of(process.pid) or ProcessIdentity(process.pid, "gone")
        if pid_file is not None:
            mark.write(pid_file)
        return cls(process, mark, write_end, pid_file)

    @property
    def pid(self) -> int:
        """The pid of the group leader."""
        return self._process.pid

    def returncode(self) -> int | None:
        """Return the command's exit code, or None while it runs. Its descendants may run until `stop`."""
        if self._process.returncode is not None:
            return self._process.returncode
        # WNOWAIT keeps the dead leader as a zombie, so that its group id is not reused.
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def is_running(self) -> bool:
        return self.returncode() is None

    def wait(self, timeout_seconds: float) -> int | None:
        """Wait for the command to end by itself. None if it still runs after `timeout_seconds`."""
        deadline = time.monotonic() + timeout_seconds
        while (code := self.returncode()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return code

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> int:
        """End the whole group, SIGTERM first, and return the command's exit code.

        Idempotent: yes; a second call returns the same code.
        """
        if self._process.returncode is None:
            if self.is_running():
                _signal_group(self.pid, signal.SIGTERM)
                self.wait(grace_seconds)
            # The leader has ended or ignores SIGTERM. It still holds the group's id, so the signal hits no other group.
            _signal_group(self.pid, signal.SIGKILL)
            _ends_within(self.pid, GRACE_SECONDS)  # a killed process ends a moment later
            self._process.wait()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if self._pid_file is not None:
            self._pid_file.unlink(missing_ok=True)
        return self._process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _ends_within(group: int, seconds: float) -> bool:
    """Wait until a group has no live process; return whether that happened in time."""
    deadline = time.monotonic() + seconds
    while members := group_members(group):
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    return not members


def group_members(group: int) -> list[int]:
    """Return the live processes of a process group, without zombies."""
    members = []
    for entry in Path("/proc").iterdir():
        fields = _stat_fields(int(entry.name)) if entry.name.isdigit() else None
        if fields is not None and int(fields[2]) == group and fields[0] not in _DEAD:
            members.append(int(entry.name))
    return members


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt, so that every `with` block cleans up."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


# Runs in a new interpreter, with the standard library only. argv: the pipe, the grace period, the command.
# The guard ignores the signals of its group, outlives the command, and returns its exit code.
_GUARD = """
import os, select, signal, subprocess, sys, time
pipe, grace, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda *_: None)
ended, ending = os.pipe()
os.set_blocking(ending, False)
signal.set_wakeup_fd(ending)
signal.signal(signal.SIGCHLD, lambda *_: None)
try:
    child = subprocess.Popen(command)
except OSError as error:
    sys.exit(f"{command[0]}: {error}")
while child.poll() is None:
    ready, _, _ = select.select([pipe, ended], [], [])
    if ended in ready:
        os.read(ended, 64)
    elif pipe in ready:
        os.killpg(0, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(0, signal.SIGKILL)
sys.exit(child.returncode if child.returncode >= 0 else 128 - child.returncode)
"""


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _stat_fields(pid: int) -> list[str] | None:
    """Return /proc/<pid>/stat from the state on: state, ppid, pgrp, … (the name before it may hold anything)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(") ")[2].split()


def _start_time(pid: int) -> str | None:
    fields = _stat_fields(pid)
    if fields is None or fields[0] in _DEAD:
        return None
    # Ticks since boot (field 22 of stat): with the boot's id, unique to this holder of the pid.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{boot}/{fields[19]}"
