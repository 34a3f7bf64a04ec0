"""Acts of people while the GPU cluster, or every process in it, is killed: each act counts once."""

import contextlib
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel_local.data_centre import DataCentre
from evenkeel_local.drills import TrainingWork, await_all_nodes_ready, last_step
from tests.local import signals
from tests.local.killed_functions import changes_with, without_pauses
from tests.local.training import TrainingJob
from tests.waiting import until

pytestmark = pytest.mark.timeout(400)

SECONDS = 90.0


@pytest.fixture
def centre(data_centre: DataCentre) -> Iterator[DataCentre]:
    await_all_nodes_ready(data_centre.client(), data_centre)
    yield data_centre
    await_all_nodes_ready(data_centre.client(), data_centre)


def children_of(pid: int) -> list[int]:
    """Return the live processes below a process."""
    pids: list[int] = []
    with contextlib.suppress(OSError):  # the process ended meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in map(int, (thread / "children").read_text("ascii").split()):
                    pids += [child, *children_of(child)]
    return pids


def kill_processes_in_cluster(centre: DataCentre) -> None:
    """Kill every process that the GPU cluster runs: the containers of all pods. The cluster itself stays."""
    killed = children_of(centre.cluster.pid)
    assert killed, "the cluster runs no process"
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_cluster(centre: DataCentre) -> None:
    """Kill the GPU cluster itself, and start it again as a supervisor does."""
    os.kill(centre.cluster.pid, signal.SIGKILL)
    until(lambda: not centre.cluster.is_running, "the end of the killed cluster")
    centre.restart_cluster()


KILLS = pytest.mark.parametrize("kill", [kill_processes_in_cluster, kill_cluster])


def running_job(centre: DataCentre, name: str) -> TrainingJob:
    """Submit a job that trains until it is stopped, and wait for its first checkpoints."""
    job = TrainingJob.submit(centre, name, TrainingWork(nodes=1, steps=2_000, paced_attempts=9))
    until(lambda: last_step(centre.client(), job.job_id) > 5, "the job to save a checkpoint", SECONDS)
    return job


@KILLS
def test_cancel_counts_once_through_a_killed_cluster(centre: DataCentre, kill: object) -> None:
    assert callable(kill)
    client, run = without_pauses(centre.client()), secrets.token_hex(4)
    job = running_job(centre, "cancelled")

    client.post(f"/jobs/{job.job_id}/cancel", {"reason": f"killed {run}"}, key=f"cancel-{run}")
    kill(centre)
    ended = job.end()

    assert (ended["state"], len(ended["attempts"])) == ("CANCELLED", 1)
    assert changes_with(run, client.get(f"/jobs/{job.job_id}/timeline")["entries"]) == ["cancelled"]


@KILLS
def test_suspension_and_resume_count_once_through_a_killed_cluster(centre: DataCentre, kill: object) -> None:
    assert callable(kill)
    client, run = without_pauses(centre.client()), secrets.token_hex(4)
    job = running_job(centre, "suspended")
    path = f"/jobs/{job.job_id}"

    client.post(f"{path}/suspend", {"reason": f"killed {run}"}, key=f"suspend-{run}")
    kill(centre)
    suspended = job.reach_state("SUSPENDED")
    client.post(f"{path}/resume", {"reason": f"killed {run}"}, key=f"resume-{run}")
    resumed = job.reach_state("RUNNING")

    assert len(suspended["attempts"]) == 1
    assert resumed["attempts"][0]["resumeFrom"]["step"] > 0
    assert changes_with(run, client.get(f"{path}/timeline")["entries"]) == ["suspended", "resumed"]
    client.post(f"{path}/cancel", {"reason": "the test is over"})
    job.end()


@KILLS
def test_replacement_counts_once_through_a_killed_cluster(centre: DataCentre, kill: object) -> None:
    assert callable(kill)
    client, run = without_pauses(centre.client()), secrets.token_hex(4)
    job = running_job(centre, "moved")
    machine = job.show()["attempts"][0]["nodes"][0]["instanceId"]

    answer = client.post(f"/nodes/{machine}/replace", {"reason": f"killed {run}"}, key=f"replace-{run}")
    kill(centre)
    signals.await_handled(centre, answer["envelopeId"])
    settled = signals.settled_incident(centre, machine)
    until(lambda: len(job.show()["attempts"]) > 1 and job.show()["state"] == "RUNNING", "the job to run again", SECONDS)

    assert (settled["state"], settled["repairs"]) == ("RECOVERED", ["replace"])
    client.post(f"/jobs/{job.job_id}/cancel", {"reason": "the test is over"})
    job.end()
