"""A supervised data centre: each part is killed, found dead, and restarted."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenkeel_client.client import ApiClient
from evenkeel_client.context import read_context
from evenkeel_local import dev_data_centre
from evenkeel_local.processes import ProcessIdentity
from tests.waiting import until

pytestmark = pytest.mark.timeout(420)

Json = dict[str, Any]
_UP_SECONDS = 240.0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of a data centre with its own supervisor process, as after `evenkeel dev up`."""
    folder = tmp_path_factory.mktemp("kept-up")
    (folder / "template.yaml").touch()
    (folder / "local").mkdir()
    assert run_command(folder, "dev", "up").returncode == 0
    yield folder
    dev_data_centre.down(folder)
    assert dev_data_centre.status(folder)["isUp"] is False


def run_command(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in the folder, as if it were a clone of the project."""
    line = [sys.executable, "-m", "evenkeel_cli.main", *words]
    return subprocess.run(line, cwd=root, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


def parts_down(root: Path) -> set[str]:
    return {part["part"] for part in dev_data_centre.status(root)["parts"] if not part["isUp"]}


def supervisor_state(root: Path) -> Json:
    document: Json = json.loads(dev_data_centre.DevPaths(root).state.read_text(encoding="utf-8"))
    return document


def client(root: Path) -> ApiClient:
    context = json.loads(dev_data_centre.DevPaths(root).context.read_text(encoding="utf-8"))
    return ApiClient(read_context(context, "the data centre", {}))


def restart_count(root: Path, part: str) -> list[Json]:
    if not dev_data_centre.DevPaths(root).state.exists():
        return []
    return [restart for restart in supervisor_state(root)["restarts"] if restart["part"] == part]


def machines(root: Path) -> set[str]:
    return {node["instanceId"] for node in client(root).get("/nodes")["items"] if node["state"] == "IN_SERVICE"}


def engine_pid(root: Path) -> int:
    """Return the pid of the engine, not of the guard process that leads its group."""
    leader = supervisor_state(root)["pids"]["engine"]
    children = Path(f"/proc/{leader}/task/{leader}/children").read_text(encoding="utf-8").split()
    return int(children[0])


def test_supervisor_reports_that_every_part_answers(root: Path) -> None:
    assert until(lambda: not parts_down(root), "the first answer of every part", 60)


def test_killed_gpu_cluster_is_restarted_with_the_same_machines(root: Path) -> None:
    before = until(lambda: len(nodes := machines(root)) == 5 and nodes, "five nodes in service", _UP_SECONDS)

    os.kill(supervisor_state(root)["pids"]["gpuCluster"], signal.SIGKILL)

    until(lambda: parts_down(root) >= {"GPU cluster", "Kubernetes"}, "the loss to be seen", 30)
    until(lambda: restart_count(root, "GPU cluster"), "the restart to be told", 60)
    assert "all running processes" in restart_count(root, "GPU cluster")[-1]["lost"]
    assert until(lambda: machines(root) == before, "the same machines in service", 120)
    assert run_command(root, "dev", "status").returncode == 0


@pytest.mark.exhaustive
def test_gpu_cluster_that_hangs_is_restarted(root: Path) -> None:
    restarts_before = len(restart_count(root, "GPU cluster"))
    before = until(lambda: len(nodes := machines(root)) == 5 and nodes, "five nodes in service", _UP_SECONDS)

    os.kill(supervisor_state(root)["pids"]["gpuCluster"], signal.SIGSTOP)

    until(lambda: len(restart_count(root, "GPU cluster")) > restarts_before, "the restart to be told", 120)
    assert until(lambda: machines(root) == before, "the same machines in service", 120)


@pytest.mark.exhaustive
@pytest.mark.parametrize("killed", ["the engine", "its guard"])
def test_killed_engine_restarts_and_its_loss_is_reported(root: Path, killed: str) -> None:
    restarts_before = len(restart_count(root, "engine"))
    pid = engine_pid(root) if killed == "the engine" else supervisor_state(root)["pids"]["engine"]

    os.kill(pid, signal.SIGKILL)

    until(lambda: len(restart_count(root, "engine")) > restarts_before, "the data centre to be built anew", _UP_SECONDS)
    assert "all jobs, incidents" in restart_count(root, "engine")[-1]["lost"]
    assert (dev_data_centre.DevPaths(root).previous_run_dir / "engine" / "engine.log").exists()
    assert parts_down(root) == set()
    assert client(root).get("/status")["fleet"] == "laptop"
    assert until(lambda: len(machines(root)) == 5, "five nodes in service again", _UP_SECONDS)


def test_status_command_fails_after_the_supervisor_is_killed(root: Path) -> None:
    mark = ProcessIdentity.read(dev_data_centre.DevPaths(root).pid)
    assert mark is not None

    os.kill(mark.pid, signal.SIGKILL)
    until(lambda: not mark.is_alive(), "the supervisor to be gone", 10)

    completed = run_command(root, "dev", "status")
    assert completed.returncode == 1
    assert "its supervisor process has ended" in completed.stdout
