"""Combined faults: the recovery from one fault must not block the recovery from another."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evenkeel_local.data_centre import CHECKPOINTS_BUCKET, DataCentre
from evenkeel_local.drills import (
    ENDED,
    JOB_SECONDS,
    DrillResult,
    RepairCounters,
    TrainingWork,
    await_all_nodes_ready,
    check_outcome,
    last_step,
    node_of_rank,
    wait_for,
)

Json = dict[str, Any]


@dataclass
class FaultCombination:
    """A job in a data centre with all nodes in service, and faults for it."""

    centre: DataCentre
    name: str
    work: TrainingWork
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = self.centre.client()
        await_all_nodes_ready(self.client, self.centre)
        self.before = RepairCounters.read(self.centre)
        self.uri = f"s3://{CHECKPOINTS_BUCKET}/combined/{self.name}-{time.time_ns()}"
        self.job_id = self.client.post("/jobs", self.work.submission(self.name, self.uri))["jobId"]

    def job(self) -> Json:
        job: Json = self.client.get(f"/jobs/{self.job_id}")
        return job

    def until(self, what: str, await_that: Callable[[Json], Any]) -> None:
        wait_for(what, JOB_SECONDS, lambda: await_that(self.job()))

    def until_step(self, step: int) -> None:
        wait_for(f"step {step}", JOB_SECONDS, lambda: last_step(self.client, self.job_id) >= step)

    def inject_fault(self, fault: str, *ranks: int) -> None:
        """Inject the fault on the nodes of these ranks, one immediately after the other."""
        job = self.job()
        for node in [node_of_rank(self.centre, job, rank) for rank in ranks]:
            self.faults.append(self.centre.cluster.inject(fault, node=node)["faultId"])

    def call_fault(self, **rule: Any) -> None:
        self.centre.cluster.control("POST", "call-faults", rule)

    def processes(self, attempt: int) -> list[Json]:
        listed = self.centre.cluster.control("GET", f"processes?job={self.job_id}")["processes"]
        return [process for process in listed if process["job"] == f"{self.job_id}-a{attempt}"]

    def failures(self, *, may_overlap: bool = False) -> list[str]:
        """Wait for the end, remove the faults, and return the failed checks."""
        self.until("the job to end", lambda job: job["state"] in ENDED)
        for fault in self.faults:
            self.centre.cluster.clear(fault)
        result = DrillResult(self.name, 0, self.job_id)
        check_outcome(result, self.centre, self.job(), self.uri, self.work, self.before, may_overlap=may_overlap)
        return result.failures()


@pytest.mark.exhaustive
def test_job_completes_despite_three_consecutive_node_faults(data_centre: DataCentre) -> None:
    trouble = FaultCombination(data_centre, "chain", TrainingWork(paced_attempts=2))
    trouble.until_step(6)

    trouble.inject_fault("gpu-xid79", 0, 1)
    trouble.until("a later attempt runs", lambda job: job["currentAttempt"] > 1 and job["state"] == "RUNNING")
    trouble.inject_fault("gpu-xid79", 0)

    assert trouble.failures() == []
    assert trouble.job()["currentAttempt"] > 2


def test_partitioned_attempt_ends_when_its_next_save_is_fenced(data_centre: DataCentre) -> None:
    trouble = FaultCombination(data_centre, "alone", TrainingWork(nodes=1, steps=120, paced_attempts=1))
    # The reboot would kill the old process, so it is delayed until the process has ended by itself.
    trouble.call_fault(
        effect="throttle", api="hyperpod", operation="BatchRebootClusterNodes", times=6, code="ThrottlingException"
    )
    trouble.until_step(6)

    trouble.inject_fault("node-lost", 0)
    wait_for("the old process to end", JOB_SECONDS, lambda: all(process["endedAt"] for process in trouble.processes(1)))

    (old,) = trouble.processes(1)
    (log,) = data_centre.run_dir.rglob(f"pods/{old['podUid']}/logs/*.log")
    assert json.loads(log.read_text(encoding="utf-8").splitlines()[-1])["event"] == "fenced"
    assert trouble.failures(may_overlap=True) == []


def test_recovery_survives_function_deaths_and_a_lost_repair_reply(data_centre: DataCentre) -> None:
    trouble = FaultCombination(data_centre, "dying", TrainingWork(paced_attempts=1))
    trouble.call_fault(effect="lost-reply", api="hyperpod", operation="BatchReplaceClusterNodes")
    trouble.until_step(6)

    trouble.inject_fault("gpu-xid79", 1)
    for function in ("plan_recovery", "cordon_node", "drain_node", "repair_node", "open_wait", "watch_cluster"):
        wait_for(f"a process of {function}", 20, partial(kill_processes, data_centre, function))

    assert trouble.failures() == []


def kill_processes(centre: DataCentre, function: str) -> int:
    """Kill the processes of a function, found by their working folder. Return their number."""
    killed = 0
    for entry in Path("/proc").iterdir():
        try:
            folder = str((entry / "cwd").readlink()) if entry.name.isdigit() else ""
            if str(centre.engine.run_dir) in folder and f"-evenkeel-{function}-" in folder:
                os.kill(int(entry.name), signal.SIGKILL)
                killed += 1
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended already
    return killed
