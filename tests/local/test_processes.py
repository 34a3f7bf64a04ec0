"""Child processes end with their parent, and no other process is ever killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel_local.processes import Child, ProcessIdentity, group_members, interruptible
from tests.waiting import PATIENCE_SECONDS, until

# Starts a grandchild in its own group, prints its pid, and sleeps.
FAMILY = """
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(grandchild.pid, flush=True)
time.sleep(600)
"""

# A process that starts a child of ours and is then killed without a chance to clean up.
CARELESS_PARENT = """
import sys, time
from pathlib import Path
from evenkeel_local.processes import Child
child = Child.start([sys.executable, "-c", {family!r}], log=Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    return ProcessIdentity.of(pid) is not None


@pytest.fixture
def unrelated_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process of another owner."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_stopped_child_ends_with_its_descendants(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Child.start([sys.executable, "-c", FAMILY], log=log, pid_file=tmp_path / "pid") as child:
        until(lambda: log.read_text().strip() != "", "the grandchild's pid")
        grandchild = int(log.read_text())
        assert is_alive(grandchild)

        child.stop()

    assert not is_alive(grandchild)
    assert group_members(child.pid) == []
    assert not (tmp_path / "pid").exists()


def test_child_that_ignores_its_stop_request_is_killed(tmp_path: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    with Child.start([sys.executable, "-c", deaf], log=tmp_path / "log") as child:
        until(lambda: "up" in (tmp_path / "log").read_text(), "the child is up")

        code = child.stop(grace_seconds=0.2)

    assert code == -signal.SIGKILL
    assert group_members(child.pid) == []


def test_repeated_stop_of_a_child_returns_same_exit_code(tmp_path: Path) -> None:
    child = Child.start([sys.executable, "-c", "import time; time.sleep(600)"], log=tmp_path / "log")

    assert child.stop() == child.stop()


@pytest.mark.parametrize("detached", [False, True])
def test_exit_code_of_the_command_is_returned(tmp_path: Path, detached: bool) -> None:
    command = [sys.executable, "-c", "print('said', flush=True); raise SystemExit(7)"]
    with Child.start(command, log=tmp_path / "log", detached=detached) as child:
        code = child.wait(PATIENCE_SECONDS)

    assert code == 7
    assert child.returncode() == 7
    assert (tmp_path / "log").read_text() == "said\n"


def test_missing_command_gives_an_exit_code_and_log_line(tmp_path: Path) -> None:
    with Child.start([tmp_path / "absent"], log=tmp_path / "log") as child:
        code = child.wait(PATIENCE_SECONDS)

    assert code == 1
    assert "absent" in (tmp_path / "log").read_text()


def test_child_processes_end_if_their_parent_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = CARELESS_PARENT.format(family=FAMILY)
    with subprocess.Popen([sys.executable, "-c", script, str(log)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        until(lambda: log.exists() and log.read_text().strip() != "", "the grandchild's pid")
        grandchild = int(log.read_text())

        parent.send_signal(signal.SIGKILL)

        until(lambda: group_members(group) == [], "the group to end")
    assert not is_alive(grandchild)


def test_detached_child_is_found_by_its_pid_file(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = Child.start(
        [sys.executable, "-c", "import time; time.sleep(600)"], log=tmp_path / "log", pid_file=pid_file, detached=True
    )

    mark = ProcessIdentity.read(pid_file)
    assert mark == child.identity
    assert mark is not None
    was_stopped = mark.stop_group()

    assert was_stopped
    child.stop()
    assert not mark.stop_group()


def test_process_that_reused_the_pid_is_not_stopped(unrelated_process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    ProcessIdentity(unrelated_process.pid, "the start time of a process that is gone").write(tmp_path / "pid")

    mark = ProcessIdentity.read(tmp_path / "pid")
    assert mark is not None
    was_stopped = mark.stop_group(grace_seconds=0)

    assert not was_stopped
    assert unrelated_process.poll() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', "4711"])
def test_incomplete_pid_file_names_no_process(tmp_path: Path, text: str) -> None:
    (tmp_path / "pid").write_text(text)

    assert ProcessIdentity.read(tmp_path / "pid") is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_ends_a_process_like_ctrl_c(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    with pytest.raises(KeyboardInterrupt), interruptible():
        os.kill(os.getpid(), number)

    assert signal.getsignal(number) is before
