"""Unmanaged jobs on a faulty node come back: suspended and resumed, or deleted and created again."""

from dataclasses import replace
from typing import Any

import pytest

from evenkeel.domain.decisions import Decision
from evenkeel.domain.external.adoption_policy import AdoptionPolicy
from evenkeel.domain.external.unmanaged_workloads import Consent, PodRecreation, UnmanagedPod
from evenkeel.domain.health.incidents import IncidentState
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.unmanaged_restarts import (
    FailedPod,
    RestartStage,
    UnmanagedJob,
    UnmanagedJobState,
    UnmanagedRestart,
)
from evenkeel.domain.replay import replay
from evenkeel.ports import NotAllowed, Put, Table, Unreachable
from evenkeel.services.recovery import cordon_node, drain_node, plan_recovery, restart_unmanaged
from evenkeel.services.sweep import unmanaged_restart_steps
from evenkeel.services.sweep.sweep_run import SweepRun
from evenkeel.services.tables import fleet_rows, incident_rows, rows, unmanaged_restart_rows
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.unmanaged_jobs import FREE_NODE
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario
from tests.unit.services_recovery.test_draining import SAVES, evicted_pods

NODE = f"hyperpod-{instance_id(1)}"
LABEL = "JobSet research/llama"


def a_job(**changes: Any) -> UnmanagedJob:
    facts: dict[str, Any] = {
        "namespace": "research",
        "kind": WorkloadKind.JOB_SET,
        "name": "llama",
        "uid": "u-1",
        "state": UnmanagedJobState.RUNNING,
        "consent": Consent.ALLOWED,
        "live_nodes": (NODE, "node-b"),
    }
    return UnmanagedJob.model_validate({**facts, **changes})


def a_failed_job(**changes: Any) -> UnmanagedJob:
    failed = (FailedPod(node_name=NODE),)
    return a_job(**{"state": UnmanagedJobState.FAILED, "live_nodes": (), "failed_pods": failed, **changes})


def a_pod_of(job: UnmanagedJob) -> UnmanagedPod:
    return UnmanagedPod(
        namespace=job.namespace,
        name=f"{job.name}-0",
        uid=f"pod-{job.uid}",
        node_name=NODE,
        accelerators=8,
        kind=job.kind,
        workload=job.name,
        recreation=job.recreation,
    )


def recovery_with_unmanaged_jobs(
    *jobs: UnmanagedJob,
    ends_late: bool = False,
    is_held: bool = False,
    fault: dict[str, Any] | None = None,
    **settings: Any,
) -> RecoveryScenario:
    """A node with unmanaged jobs, up to the point at which its own jobs are stopped."""
    recovery = RecoveryScenario(**{"policy": SAVES, **settings})
    cluster = recovery.world.cluster
    for job in jobs:
        cluster.submit(CLUSTER, job)
        if NODE in job.live_nodes:
            cluster.unmanaged.append(a_pod_of(job))
    cluster.pods_end_late = ends_late
    if is_held:
        recovery.hold_automation()
    recovery.report_fault(fault_key="hp:NvidiaErrorReboot")
    for service in (plan_recovery, cordon_node, drain_node):
        recovery.run_state("", service)
    return recovery


def restart_steps(recovery: RecoveryScenario) -> list[tuple[str, str]]:
    names = ("suspend", "resume", "delete_job", "create_job")
    return [(call[0], call[1]) for call in recovery.world.cluster.calls if call[0] in names]


def restart_of(recovery: RecoveryScenario, job: UnmanagedJob) -> UnmanagedRestart:
    row = recovery.world.ledger.get(unmanaged_restart_rows.restart_key(CLUSTER, job.namespace, job.kind, job.name))
    assert row is not None
    return rows.decode(row, UnmanagedRestart)


def advance_restart(recovery: RecoveryScenario, job: UnmanagedJob) -> UnmanagedRestart:
    return restart_unmanaged.advance(restart_of(recovery, job), recovery.context())


def timeline_lines(recovery: RecoveryScenario) -> str:
    event_rows = recovery.world.ledger.partition(Table.INCIDENTS, f"INC#{recovery.incident_id}", "EVENT#")
    return " ".join(str(row.doc["text"]) for row in event_rows)


# ---------------------------------------------------------------- suspend, or delete and create again


def test_running_job_is_suspended_and_resumed() -> None:
    recovery = recovery_with_unmanaged_jobs(a_job())

    restart = advance_restart(recovery, a_job())

    assert restart_steps(recovery) == [("suspend", LABEL), ("resume", LABEL)]
    assert (restart.stage, restart.was_restarted) == (RestartStage.ENDED, True)
    (job,) = recovery.world.cluster.users_jobs.values()
    assert (job.state, job.live_nodes) == (UnmanagedJobState.RUNNING, (FREE_NODE,))
    assert evicted_pods(recovery) == []
    assert recovery.incident.unmanaged_jobs == {LABEL: "RESTART"}


def test_resume_waits_until_all_pods_have_ended() -> None:
    recovery = recovery_with_unmanaged_jobs(a_job(), ends_late=True)

    waiting = advance_restart(recovery, a_job())
    recovery.world.cluster.end_pods()
    ended = advance_restart(recovery, a_job())

    assert waiting.stage is RestartStage.SUSPENDED
    assert "2 of its pods are still terminating" in waiting.result
    assert ended.was_restarted


def test_failed_job_is_deleted_and_created_again() -> None:
    recovery = recovery_with_unmanaged_jobs(a_failed_job(), ends_late=True)

    waiting = advance_restart(recovery, a_job())
    recovery.world.cluster.end_pods()
    ended = advance_restart(recovery, a_job())

    assert waiting.stage is RestartStage.DELETED
    assert waiting.manifest
    assert restart_steps(recovery) == [("delete_job", LABEL), ("create_job", LABEL)]
    assert (ended.was_restarted, ended.manifest) == (True, "")


def test_job_that_its_operator_restarts_is_only_evicted() -> None:
    recovery = recovery_with_unmanaged_jobs(a_job(recreation=PodRecreation.BY_OWNER))

    assert restart_steps(recovery) == []
    assert evicted_pods(recovery) == ["llama-0"]


@pytest.mark.parametrize(
    ("job", "adopted", "is_restarted"),
    [
        (a_job(consent=Consent.UNSET), ("research",), True),
        (a_job(consent=Consent.UNSET), ("other",), False),
        (a_job(consent=Consent.FORBIDDEN), ("research",), False),
        (a_job(has_managed_labels=True), ("research",), False),
        (a_job(recreation=PodRecreation.BY_HYPERPOD), ("research",), False),
    ],
)
def test_only_jobs_that_consent_are_restarted(
    job: UnmanagedJob, adopted: tuple[str, ...], *, is_restarted: bool
) -> None:
    recovery = recovery_with_unmanaged_jobs(job, policy=SAVES.replace(adoption=AdoptionPolicy(namespaces=adopted)))

    assert bool(restart_steps(recovery)) is is_restarted
    assert evicted_pods(recovery) == []


@pytest.mark.parametrize("has_left", [False, True])
def test_failed_job_without_pods_is_found_through_last_sweep(*, has_left: bool) -> None:
    recovery = RecoveryScenario(policy=SAVES)
    world = recovery.world
    world.cluster.submit(CLUSTER, a_job(state=UnmanagedJobState.FAILED, live_nodes=(), failed_at=recovery.now))
    recovery.report_fault(fault_key="hp:NvidiaErrorReboot")
    document: dict[str, Any] = (
        {"left_workloads": {LABEL: recovery.now}} if has_left else {"unmanaged_workloads": (LABEL,)}
    )
    node = FleetNode(life=recovery.incident.life, slot="slot-1", changed_at=recovery.now, **document)
    world.ledger.commit(Put(fleet_rows.node_row(CLUSTER, instance_id(1), node.to_json(), 0, None)))

    for service in (plan_recovery, cordon_node, drain_node):
        recovery.run_state("", service)

    assert restart_steps(recovery) == [("delete_job", LABEL)]


def test_decision_is_recorded_once_and_replays() -> None:
    recovery = recovery_with_unmanaged_jobs(a_job(owner="TrainJob llama"))
    recovery.run_state("", drain_node)

    page = recovery.world.ledger.by_state(Table.INCIDENTS, f"DEC#{recovery.incident_id}")
    (record,) = [decision for row in page.rows if (decision := rows.decode(row, Decision)).kind == "RESTART"]

    assert record.action == "LEAVE"
    assert "belongs to TrainJob llama" in timeline_lines(recovery)
    assert not replay(record, SAVES, SAVES.catalogue.hash).differs_from(record)


# ---------------------------------------------------------------- what forbids it


def test_job_keeps_running_under_a_hold() -> None:
    assert restart_steps(recovery_with_unmanaged_jobs(a_job(), is_held=True)) == []


def test_stopped_job_is_restarted_even_under_a_hold() -> None:
    recovery = recovery_with_unmanaged_jobs(a_job(), ends_late=True)
    recovery.world.cluster.end_pods()
    recovery.hold_automation()

    assert advance_restart(recovery, a_job()).was_restarted


def test_hold_delays_the_deletion_of_a_job_that_failed_later() -> None:
    recovery = recovery_with_unmanaged_jobs(a_job(), ends_late=True)
    recovery.world.cluster.submit(CLUSTER, a_failed_job())
    recovery.hold_automation()

    assert advance_restart(recovery, a_job()).stage is RestartStage.SUSPENDED
    assert restart_steps(recovery) == [("suspend", LABEL)]


@pytest.mark.parametrize("state", [UnmanagedJobState.RUNNING, UnmanagedJobState.FAILED])
def test_no_job_is_stopped_after_its_consent_was_withdrawn(state: UnmanagedJobState) -> None:
    recovery = recovery_with_unmanaged_jobs(a_job(), ends_late=True)
    recovery.world.cluster.submit(CLUSTER, a_job(state=state, consent=Consent.FORBIDDEN))

    restart = advance_restart(recovery, a_job())

    assert restart_steps(recovery) == [("suspend", LABEL)]  # from the time before
    assert (restart.stage, restart.was_restarted) == (RestartStage.ENDED, False)
    assert "no longer allows it" in restart.result


def test_job_that_evenkeel_suspended_resumes_without_consent() -> None:
    recovery = recovery_with_unmanaged_jobs(a_job(), ends_late=True)
    recovery.world.cluster.submit(
        CLUSTER, a_job(state=UnmanagedJobState.SUSPENDED, live_nodes=(), consent=Consent.FORBIDDEN)
    )

    assert advance_restart(recovery, a_job()).was_restarted


def test_job_is_left_alone_in_observe_mode() -> None:
    recovery = recovery_with_unmanaged_jobs(a_job(), mode=Mode.OBSERVE)

    assert restart_steps(recovery) == []


def test_job_in_namespace_without_rights_stays_unchanged() -> None:
    recovery = RecoveryScenario(policy=SAVES)
    recovery.world.cluster.missing_verbs = ("patch", "create")
    recovery.world.cluster.submit(CLUSTER, a_job())
    recovery.report_fault(fault_key="hp:NvidiaErrorReboot")
    for service in (plan_recovery, cordon_node, drain_node):
        recovery.run_state("", service)

    assert restart_steps(recovery) == []
    assert "has no right to patch jobsets, create jobsets in its namespace" in timeline_lines(recovery)


@pytest.mark.parametrize("job", [a_job(), a_failed_job()])
def test_missing_rights_are_recorded_once_until_granted(job: UnmanagedJob) -> None:
    recovery = RecoveryScenario(policy=SAVES)
    cluster = recovery.world.cluster
    cluster.missing_verbs = ("create",)
    cluster.submit(CLUSTER, job)
    recovery.report_fault(fault_key="hp:NvidiaErrorReboot")
    for service in (plan_recovery, cordon_node, drain_node, drain_node, drain_node):
        recovery.run_state("", service)
    lines = timeline_lines(recovery)

    cluster.missing_verbs = ()
    recovery.run_state("", drain_node)

    assert lines.count(LABEL) == lines.count(f"{LABEL} is not restarted: Evenkeel has no right to create") == 1
    assert len(restart_steps(recovery)) == 1


def test_too_long_manifest_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recovery = RecoveryScenario(policy=SAVES)
    monkeypatch.setattr(recovery.world.cluster, "manifest_of", lambda *_: "x" * 200_001)
    recovery.world.cluster.submit(CLUSTER, a_failed_job())
    recovery.report_fault(fault_key="hp:NvidiaErrorReboot")
    for service in (plan_recovery, cordon_node, drain_node, drain_node):
        recovery.run_state("", service)

    assert timeline_lines(recovery).count(LABEL) == 1
    assert restart_steps(recovery) == []


def test_repeatedly_failing_job_has_limited_restarts() -> None:
    recovery = recovery_with_unmanaged_jobs(
        a_failed_job(), policy=SAVES.replace(adoption=AdoptionPolicy(max_restarts=2))
    )
    for number in range(4):
        advance_restart(recovery, a_job())
        recovery.world.cluster.submit(CLUSTER, a_failed_job(uid=f"again-{number}"))
        recovery.run_state("", drain_node)

    assert restart_steps(recovery).count(("create_job", LABEL)) == 2
    assert "2 times within 24 hours" in timeline_lines(recovery)


# ---------------------------------------------------------------- crashes, races and refusals


def test_job_deleted_by_owner_during_restart_is_not_recreated() -> None:
    recovery = recovery_with_unmanaged_jobs(a_job(), ends_late=True)
    recovery.world.cluster.users_jobs.clear()

    assert not advance_restart(recovery, a_job()).was_restarted
    assert restart_steps(recovery) == [("suspend", LABEL)]


def test_job_deleted_by_owner_before_restart_is_not_recreated(monkeypatch: pytest.MonkeyPatch) -> None:
    recovery = RecoveryScenario(policy=SAVES)
    cluster = recovery.world.cluster
    cluster.submit(CLUSTER, a_failed_job())

    def find_none(*_: Any) -> bool:
        cluster.users_jobs.clear()
        return False

    monkeypatch.setattr(cluster, "delete_job", find_none)
    recovery.report_fault(fault_key="hp:NvidiaErrorReboot")
    for service in (plan_recovery, cordon_node, drain_node):
        recovery.run_state("", service)

    assert restart_of(recovery, a_job()).stage is RestartStage.ENDED
    assert cluster.users_jobs == {}


def test_refused_creation_is_repeated_until_it_succeeds() -> None:
    recovery = recovery_with_unmanaged_jobs(a_failed_job())
    recovery.world.cluster.creation_error = NotAllowed("exceeded quota: gpus")

    waiting = advance_restart(recovery, a_job())
    recovery.world.cluster.creation_error = None
    ended = advance_restart(recovery, a_job())

    assert "cannot be created again yet: exceeded quota: gpus" in waiting.result
    assert (waiting.stage, ended.was_restarted) == (RestartStage.DELETED, True)


def test_job_is_created_once_despite_crash_after_creation() -> None:
    recovery = recovery_with_unmanaged_jobs(a_failed_job())
    restart = restart_of(recovery, a_job())
    recovery.world.cluster.create_job(restart)  # and then the function crashed

    ended = advance_restart(recovery, a_job())

    assert ended.was_restarted
    assert restart_steps(recovery).count(("create_job", LABEL)) == 1


def test_suspension_is_repeated_if_its_patch_was_lost() -> None:
    recovery = recovery_with_unmanaged_jobs(a_job(), ends_late=True)
    recovery.world.cluster.submit(CLUSTER, a_job())

    assert advance_restart(recovery, a_job()).stage is RestartStage.SUSPENDED
    assert restart_steps(recovery) == [("suspend", LABEL), ("suspend", LABEL)]


def test_unreadable_job_does_not_prevent_restart_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    recovery = RecoveryScenario(policy=SAVES)
    cluster = recovery.world.cluster
    for name in ("broken", "llama"):
        cluster.submit(CLUSTER, a_job(name=name))
    read_job = cluster.unmanaged_job

    def read(cluster_name: str, namespace: str, kind: WorkloadKind, name: str) -> UnmanagedJob | None:
        if name == "broken":
            raise Unreachable("no answer")
        return read_job(cluster_name, namespace, kind, name)

    monkeypatch.setattr(cluster, "unmanaged_job", read)
    recovery.report_fault(fault_key="hp:NvidiaErrorReboot")
    for service in (plan_recovery, cordon_node, drain_node):
        recovery.run_state("", service)

    assert restart_steps(recovery) == [("suspend", LABEL)]


def test_unreadable_restart_does_not_stop_the_drain() -> None:
    recovery = recovery_with_unmanaged_jobs(a_job(), ends_late=True)
    ledger = recovery.world.ledger
    row = ledger.get(unmanaged_restart_rows.key_of(restart_of(recovery, a_job())))
    assert row is not None
    ledger.commit(Put(replace(row, doc={**row.doc, "stage": "OF_A_NEWER_RELEASE"})))
    recovery.world.cluster.submit(CLUSTER, a_job(name="other", uid="u-2"))

    recovery.run_state("", drain_node)

    assert restart_steps(recovery) == [("suspend", LABEL), ("suspend", "JobSet research/other")]


def test_unmanaged_job_is_not_stopped_for_an_ended_incident() -> None:
    recovery = recovery_with_unmanaged_jobs(
        a_job()
    )  # suspended; then its owner resumes it, and it lands on the repaired node
    recovery.world.cluster.submit(CLUSTER, a_job())
    incident = recovery.incident
    row = recovery.world.ledger.get(incident_rows.incident_key(incident.incident_id))
    assert row is not None
    settled = incident.replace(state=IncidentState.RECOVERED)
    recovery.world.ledger.commit(Put(incident_rows.incident_row(settled, row.version)))

    restart = advance_restart(recovery, a_job())

    assert restart_steps(recovery) == [("suspend", LABEL)]
    assert "the incident is over" in restart.result


def test_jobs_without_restart_are_recorded_up_to_limit() -> None:
    recovery = recovery_with_unmanaged_jobs(
        *(a_job(name=f"job-{number}", owner="CronJob nightly") for number in range(60))
    )
    recovery.run_state("", drain_node)

    page = recovery.world.ledger.partition(Table.INCIDENTS, f"INC#{recovery.incident_id}", "EVENT#")

    assert sum("belongs to CronJob nightly" in row.doc["text"] for row in page) <= 60
    assert len(recovery.incident.unmanaged_jobs) == 50


def test_sweeper_finds_a_job_that_failed_after_the_drain() -> None:
    recovery = recovery_with_unmanaged_jobs(a_job(recreation=PodRecreation.BY_OWNER))
    recovery.world.cluster.submit(CLUSTER, a_failed_job())

    unmanaged_restart_steps.continue_restarts(run_sweep(recovery))
    unmanaged_restart_steps.continue_restarts(run_sweep(recovery))

    assert restart_steps(recovery) == [("delete_job", LABEL), ("create_job", LABEL)]


def run_sweep(recovery: RecoveryScenario) -> SweepRun:
    return SweepRun(recovery.context(), {})
