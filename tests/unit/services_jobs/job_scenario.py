"""The services of a job in the order of its workflow, on the fakes of all ports."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.ports import Put, Row
from evenkeel.services.attempts import launch_job, mark_running, settle_attempt, stop_attempt
from evenkeel.services.context import Context
from evenkeel.services.jobs import cancel_job, submit_job
from evenkeel.services.jobs.check_role import Requester
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.scheduling import schedule_jobs
from evenkeel.services.storage import attempt_store, charge_rows
from evenkeel.services.sweep import sweep_fleet, watch_cluster
from evenkeel.services.tables import job_rows, quota_rows, rows
from tests.fakes import CrashPlan, FakeWorld, crashing
from tests.fakes.cluster import CLUSTER

NAMESPACE = "evenkeel-jobs"


def a_spec(**changes: Any) -> JobSpec:
    facts: dict[str, Any] = {
        "name": "llama",
        "image": "registry/llama:1",
        "command": ("python", "train.py"),
        "nodes": 2,
        "checkpoint_uri": "s3://checkpoints/llama",
    }
    return JobSpec.model_validate({**facts, **changes})


@dataclass
class JobScenario:
    """A fleet and its services. `plan` crashes at one effect; see `tests.fakes.crashes`."""

    size: int = 4
    runs_at_once: bool = False
    policy: Policy = field(default_factory=Policy)
    mode: Mode = Mode.ACT
    admission: AdmissionAuthority = AdmissionAuthority.EVENKEEL
    plan: CrashPlan = field(default_factory=CrashPlan)
    clusters: tuple[str, ...] = (CLUSTER,)

    def __post_init__(self) -> None:
        self.world = FakeWorld(size=self.size, runs_at_once=self.runs_at_once, policy=self.policy)
        world = self.world
        self.ledger = crashing(world.ledger, self.plan, "commit")
        self.cluster = crashing(
            world.cluster, self.plan, "launch", "publish_size", "stop", "force_delete_pods", "return_to_service"
        )
        self.checkpoints = crashing(world.checkpoints, self.plan, "raise_fence")
        self.workflows = crashing(world.workflows, self.plan, "start")
        self.cycle_requests = crashing(world.cycle_requests, self.plan, "request")

    # ------------------------------------------------------------ services

    def context(self, **given: Any) -> Context:
        """Return a context of this scenario's ports, policy, mode and site; `given` replaces some."""
        known = {
            "ledger": self.ledger,
            "cluster": self.cluster,
            "checkpoints": self.checkpoints,
            "workflows": self.workflows,
            "cycle_requests": self.cycle_requests,
            "policy": self.policy,
            "mode": self.mode,
            "admission": self.admission,
            "clusters": self.clusters,
            "drills_may_act": True,
        }
        return self.world.context(**{**known, **given})

    def submit(self, key: str = "key-1", **changes: Any) -> Job:
        return self.submission(key, **changes).job

    def submission(self, key: str = "key-1", principal: str = "role/ana", **changes: Any) -> submit_job.SubmitJobResult:
        own_path = {"checkpoint_uri": f"s3://checkpoints/{principal}/{key}"}
        request = submit_job.SubmitJobRequest(
            spec=a_spec(**(own_path | changes)),
            requester=Requester(principal=principal, identity=f"111122223333:{principal}"),
            idempotency_key=key,
        )
        return submit_job.run(request, self.context())

    def cancel(self, job_id: str, reason: str = "") -> cancel_job.CancelJobResult:
        request = cancel_job.CancelJobRequest(
            job_id=job_id,
            requester=Requester(principal="role/ana", identity="111122223333:role/ana", actor="ana"),
            reason=reason,
        )
        return cancel_job.run(request, self.context())

    def run_scheduling_cycle(self) -> schedule_jobs.ScheduleJobsResult:
        return schedule_jobs.run(self.context())

    def launch(self, job_id: str, attempt: int = 1) -> launch_job.LaunchJobResult:
        return launch_job.run(attempt_store.AttemptRequest(job_id=job_id, attempt=attempt), self.context())

    def mark_running(self, job_id: str, attempt: int = 1) -> mark_running.MarkRunningResult:
        request = attempt_store.AttemptRequest(job_id=job_id, attempt=attempt)
        return mark_running.run(request, self.context())

    def stop(self, job_id: str, attempt: int = 1) -> stop_attempt.StopAttemptResult:
        request = attempt_store.AttemptRequest(job_id=job_id, attempt=attempt)
        return stop_attempt.run(request, self.context())

    def settle(self, job_id: str, attempt: int = 1, **more: Any) -> settle_attempt.SettleAttemptResult:
        return settle_attempt.run(
            settle_attempt.SettleAttemptRequest(job_id=job_id, attempt=attempt, **more), self.context()
        )

    def sweep(self, *clusters: str) -> sweep_fleet.SweepFleetResult:
        return sweep_fleet.run(self.context(clusters=clusters or (CLUSTER,)))

    def watch(self, *clusters: str) -> watch_cluster.WatchClusterResult:
        return watch_cluster.run(self.context(clusters=clusters or (CLUSTER,)))

    # ------------------------------------------------------------ several beats at once

    def started(self, **changes: Any) -> Job:
        """Submit a job and admit it."""
        job = self.submit(f"key-{len(self.world.ledger.commits)}", **changes)
        self.run_scheduling_cycle()
        return self.job(job.job_id)

    def running(self, **changes: Any) -> Job:
        """Submit a job and bring its first attempt to RUNNING."""
        job = self.started(**changes)
        self.run_attempt(job.job_id, 1)
        return self.job(job.job_id)

    def run_attempt(self, job_id: str, attempt: int) -> None:
        """Launch an admitted attempt and let its pods run."""
        self.launch(job_id, attempt)
        self.world.cluster.run_pods(job_id, attempt)
        self.mark_running(job_id, attempt)

    # ------------------------------------------------------------ what is there now

    def job(self, job_id: str) -> Job:
        row = self.world.ledger.get(job_rows.job_key(job_id))
        assert row
        return rows.decode(row, Job)

    def attempt(self, job_id: str, number: int = 1) -> Attempt:
        row = self.world.ledger.get(job_rows.attempt_key(job_id, number))
        assert row
        return rows.decode(row, Attempt)

    def usage(self, team: str = "default") -> int:
        row = self.world.ledger.get(quota_rows.usage_key(team))
        return int(row.doc["accelerators"]) if row else 0

    def charges(self) -> list[str]:
        return [f"CHARGE#{charge.job_id}-a{charge.attempt}" for charge in charge_rows.live_charges(self.world.ledger)]

    def set_job(self, job: Job) -> None:
        """Store a job, as another service would."""
        self.store_row(job_rows.job_row(job, 0))

    def store_row(self, *written: Row) -> None:
        """Store rows, as other services would, at any version."""
        for row in written:
            stored = self.world.ledger.get(row.key)
            self.world.ledger.commit(Put(replace(row, version=stored.version if stored else 0)))

    def save_checkpoint(
        self, job_id: str, attempt: int, step: int, seconds: float = 0, save_seconds: float = 0, **metrics: float
    ) -> str:
        """Store a checkpoint whose write began some seconds from now."""
        began = self.world.clock.now() + timedelta(seconds=seconds)
        return self.world.checkpoints.save(
            self.job(job_id).spec.checkpoint_uri,
            job_id,
            attempt,
            step,
            began.isoformat(),
            metrics=metrics,
            save_seconds=save_seconds,
        )

    def timeline(self, job_id: str) -> list[str]:
        return [entry["kind"] for entry in read_jobs.job_timeline(self.world.ledger, job_id)]
