"""A node is drained: its jobs save as far as they can, and work that is not ours is treated as its owner allows."""

from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.decisions import Decision
from evenkeel.domain.external.unmanaged_workloads import Consent, PodRecreation, UnmanagedPod
from evenkeel.domain.health.incidents import JobAction
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.jobs.spec import OnNodeFault
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.replay import replay
from evenkeel.ports import EvictionAnswer, EvictionStatus, NotAllowed, Table
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.records import explain
from evenkeel.services.recovery import cordon_node, drain_node, plan_recovery, repair_node
from evenkeel.services.resume import plan_resume
from evenkeel.services.tables import incident_rows, rows
from tests.fakes import CrashPlan
from tests.fakes.cluster import instance_id
from tests.unit.services_recovery.recovery_scenario import QUICK, RecoveryScenario, a_fact

NODE = f"hyperpod-{instance_id(1)}"
SAVES = QUICK.replace(repair=QUICK.repair.replace(drain_scale=1.0))


def recovery_at_drain(fault_key: str = "hp:NvidiaErrorReboot", **settings: Any) -> RecoveryScenario:
    """A recovery up to the point at which its jobs are stopped."""
    pods, spec = settings.pop("pods", ()), settings.pop("spec", {})
    fact = settings.pop("fact", {})
    recovery = RecoveryScenario(**{"policy": SAVES, **settings})
    recovery.world.cluster.unmanaged.extend(pods)
    if recovery.job_id:
        recovery.scenario.set_job(recovery.job.replace(spec=recovery.job.spec.replace(**spec)))
    recovery.report_fault(fault_key=fault_key, **fact)
    for service in (plan_recovery, cordon_node, drain_node):
        recovery.run_state("", service)
    return recovery


def a_pod(name: str, recreation: PodRecreation = PodRecreation.BY_OWNER, **changes: Any) -> UnmanagedPod:
    facts: dict[str, Any] = {
        "namespace": "research",
        "name": name,
        "uid": f"uid-{name}",
        "node_name": NODE,
        "accelerators": 0,
        "kind": "PyTorchJob",
        "workload": name,
        "recreation": recreation,
    }
    return UnmanagedPod.model_validate({**facts, **changes})


def evicted_pods(recovery: RecoveryScenario) -> list[str]:
    return [call[1] for call in recovery.world.cluster.calls if call[0] == "evict"]


# ---------------------------------------------------------------- our jobs


def test_grace_of_a_job_is_recorded_once_and_replays() -> None:
    recovery = recovery_at_drain(spec={"grace_seconds": 600})
    recovery.run_state("", drain_node)

    page = recovery.world.ledger.by_state(Table.INCIDENTS, f"DEC#{recovery.incident_id}")
    (record,) = [decision for row in page.rows if (decision := rows.decode(row, Decision)).kind == "DRAIN"]

    assert (record.action, record.reason) == ("SAVE", "Its pods get 300 s to save, the most that this fault allows.")
    assert [alternative.option for alternative in record.alternatives] == ["600 s, as the job requests"]
    assert replay(record, SAVES).differs_from(record) == ""


def test_earlier_stop_gives_no_grace_on_node_that_cannot_save() -> None:
    recovery = RecoveryScenario(policy=SAVES)
    recovery.scenario.set_job(recovery.job.replace(spec=recovery.job.spec.replace(grace_seconds=600)))
    suspension = recovery.job.stop_request_now("Suspended by ana.", "suspend/ana", recovery.now)
    recovery.scenario.set_job(recovery.job.replace(stop_request=suspension))
    recovery.report_fault(fault_key="xid:79", source="kubernetes.node")
    for service in (plan_recovery, cordon_node, drain_node, drain_node):
        recovery.run_state("", service)

    stop = recovery.job.stop_of(1)
    assert stop
    assert (stop.by, stop.grace_seconds) == ("suspend/ana", SAVES.jobs.others_save_seconds)
    assert stop.nodes_without_grace == (NODE,)


def test_only_pods_on_healthy_nodes_get_grace_to_save() -> None:
    recovery = recovery_at_drain("xid:79", fact={"source": "kubernetes.node"}, spec={"grace_seconds": 600})

    stop = recovery.job.stop_of(1)
    assert stop
    assert (stop.grace_seconds, stop.nodes_without_grace) == (SAVES.jobs.others_save_seconds, (NODE,))
    assert recovery.world.cluster.ended_at_once == {f"{recovery.job_id}-a1-0"}


def test_save_ends_thirty_seconds_before_a_spot_instance_ends() -> None:
    recovery = recovery_at_drain(
        "ec2:spot_interruption",
        spec={"grace_seconds": 3600},
        fact={"source": "ec2.spot", "deadline_at": RecoveryScenario().now + timedelta(seconds=120)},
    )

    stop = recovery.job.stop_of(1)
    assert stop
    assert (stop.requested_at, stop.grace_seconds) == (recovery.incident.opened_at, 90)


def test_timeline_says_whether_a_checkpoint_was_saved_during_drain() -> None:
    def launch_text(saves: bool) -> str:
        recovery = recovery_at_drain(spec={"grace_seconds": 60, "checkpoint_uri": "s3://checkpoints/one"})
        recovery.scenario.save_checkpoint(recovery.job_id, 1, 10, seconds=5 if saves else -60)
        recovery.run_state("", plan_resume)
        recovery.run_jobs()
        recovery.run_jobs()
        lines = recovery.world.ledger.partition(Table.JOBS, f"JOB#{recovery.job_id}", "EVENT#")
        return str(next(row.doc["text"] for row in reversed(lines) if row.doc["kind"] == "launched"))

    assert "Step 10 was saved while attempt 1 was stopped." in launch_text(saves=True)
    assert "No usable checkpoint was saved while attempt 1 was stopped." in launch_text(saves=False)


def test_repair_waits_for_a_job_that_may_finish() -> None:
    recovery = recovery_at_drain("hp:NvidiaErrorReboot", spec={"on_node_fault": OnNodeFault.FINISH})

    assert recovery.job.stop_request is None
    assert recovery.world.cluster.by_name["research-eks", NODE].is_cordoned
    repair = recovery.run_state("RepairNode", repair_node)
    assert repair.outcome not in ("REQUESTED", "ASK_PERSON")
    assert recovery.provider.accepted_calls("reboot").total() == 0
    assert recovery.incident.plan
    assert recovery.incident.plan.work_may_run_until == recovery.incident.opened_at + timedelta(
        seconds=SAVES.jobs.finish_seconds
    )


def test_worse_fault_stops_job_that_might_finish() -> None:
    recovery = recovery_at_drain("hp:NvidiaErrorReboot", spec={"on_node_fault": OnNodeFault.FINISH})
    recovery.world.clock.advance(1)
    recovery.ingest(
        a_fact(fault_key="xid:79", source="hyperpod.node-labels", observed_at=recovery.now, envelope_id="worse")
    )

    recovery.run_state("RepairNode", repair_node)

    assert recovery.job.stop_of(1)


def test_job_is_stopped_once_its_finishing_time_is_over() -> None:
    recovery = recovery_at_drain("hp:NvidiaErrorReboot", spec={"on_node_fault": OnNodeFault.FINISH})
    recovery.world.clock.advance(SAVES.jobs.finish_seconds + 1)

    recovery.run_state("RepairNode", repair_node)

    assert recovery.job.stop_of(1)


@pytest.mark.parametrize(
    ("act", "fault_key", "state", "failures"),
    [
        (JobAction.MOVE, "hp:NvidiaErrorReboot", JobState.PENDING, 0),
        (JobAction.RESTART, "train:hang", JobState.PENDING, 1),
        (JobAction.ROLLBACK, "train:nan_or_inf", JobState.PENDING, 1),
        (JobAction.ROLLBACK, "train:silent_corruption", JobState.PENDING, 0),
        (JobAction.STOP, "train:exit_do_not_requeue", JobState.FAILED, 0),
    ],
)
def test_only_application_failures_use_restarts_of_a_drained_job(
    act: JobAction, fault_key: str, state: JobState, failures: int
) -> None:
    recovery = RecoveryScenario()
    recovery.report_fault()
    recovery.run_state("", plan_recovery)
    assert recovery.incident.plan
    plan = recovery.incident.plan.replace(jobs=act)
    recovery.scenario.store_row(
        incident_rows.incident_row(recovery.incident.replace(plan=plan, fault_key=fault_key), 0)
    )

    recovery.run_state("DrainNode", drain_node)
    recovery.scenario.stop(recovery.job_id)
    recovery.scenario.settle(recovery.job_id)

    assert (recovery.job.state, recovery.job.application_failures) == (state, failures)


# ---------------------------------------------------------------- work that is not ours


def test_only_workloads_that_allow_it_are_evicted_at_once() -> None:
    recovery = recovery_at_drain(
        with_job=False,
        pods=[
            a_pod("allowed", consent=Consent.ALLOWED),
            a_pod("silent"),
            a_pod("hyperpod", PodRecreation.BY_HYPERPOD, consent=Consent.ALLOWED),
            a_pod("bare", PodRecreation.NEVER, consent=Consent.ALLOWED),
            a_pod("elsewhere", consent=Consent.ALLOWED, node_name=f"hyperpod-{instance_id(2)}"),
        ],
    )

    assert evicted_pods(recovery) == ["allowed"]
    # Workloads that it does not evict are named only if they use accelerators.
    assert recovery.incident.unmanaged_workloads == ("PyTorchJob research/allowed",)
    why = explain.why_incident(recovery.incident_id, Reader(), recovery.world.context())
    assert why["evidence"]["unmanagedWorkloads"] == ["PyTorchJob research/allowed"]


def test_unmanaged_workloads_are_named_in_the_incident_once() -> None:
    recovery = recovery_at_drain(with_job=False, pods=[a_pod("silent", accelerators=8)])

    recovery.run_state("DrainNode", drain_node)

    assert recovery.incident.unmanaged_workloads == ("PyTorchJob research/silent",)
    lines = recovery.world.ledger.partition(Table.INCIDENTS, f"INC#{recovery.incident_id}", "EVENT#")
    assert [row.doc["text"] for row in lines if "outside Evenkeel" in row.doc["text"]] == [
        "Workloads outside Evenkeel run on the node: PyTorchJob research/silent."
    ]


def test_unmanaged_pods_are_evicted_within_their_disruption_budget() -> None:
    recovery = recovery_at_drain(with_job=False, pods=[a_pod("silent"), a_pod("kept")])
    recovery.world.cluster.budgeted.add("kept")

    first = recovery.run_state("RepairNode", repair_node)

    assert (first.outcome, evicted_pods(recovery)) == ("RETRY", ["silent"])
    assert recovery.provider.accepted_calls("reboot").total() == 0

    recovery.world.cluster.budgeted.clear()
    recovery.world.clock.advance(first.wait_seconds)
    recovery.run_state("RepairNode", repair_node)
    assert recovery.run_state("RepairNode", repair_node).outcome == "REQUESTED"
    assert evicted_pods(recovery) == ["silent", "kept"]


ANSWERS = [
    EvictionAnswer(EvictionStatus.NOT_NOW, "429 TooManyRequests: its budget allows no eviction"),
    EvictionAnswer(EvictionStatus.NOT_NOW, "500 : This pod has more than one PodDisruptionBudget"),
    EvictionAnswer(EvictionStatus.NOT_NOW, "403 Forbidden: namespace research is being terminated"),
    EvictionAnswer(EvictionStatus.REFUSED, "403 Forbidden: evenkeel may not create pods/eviction"),
    EvictionAnswer(EvictionStatus.NO_ANSWER, "no answer: timed out"),
    EvictionAnswer(EvictionStatus.GONE),
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_unanswered_eviction_does_not_end_the_drain(answer: EvictionAnswer) -> None:
    recovery = recovery_at_drain(with_job=False, pods=[a_pod("kept"), a_pod("other"), a_pod("third")])
    recovery.world.cluster.evictions["kept"] = answer

    first = recovery.run_state("RepairNode", repair_node)

    assert (first.outcome, sorted(evicted_pods(recovery))) == ("RETRY", ["other", "third"])
    assert recovery.incident.failed_evictions == ({"research/kept": answer.why} if answer.why else {})
    recovery.world.clock.advance(3600)
    last = recovery.run_state("RepairNode", repair_node)
    assert last.outcome == "ASK_PERSON"
    assert ("PyTorchJob research/kept still runs" in last.reason, answer.why in last.reason) == (True, True)


@pytest.mark.parametrize("answer", ANSWERS)
def test_repair_continues_if_the_policy_deletes_remaining_pods(answer: EvictionAnswer) -> None:
    policy = SAVES.replace(repair=SAVES.repair.replace(ends_unmanaged_pods=True))
    recovery = recovery_at_drain(with_job=False, policy=policy, pods=[a_pod("kept")])
    recovery.world.cluster.evictions["kept"] = answer
    recovery.run_state("RepairNode", repair_node)

    recovery.world.clock.advance(3600)

    assert recovery.run_state("RepairNode", repair_node).outcome == "REQUESTED"


def test_refused_eviction_is_reported_once_with_pod_and_reason() -> None:
    recovery = recovery_at_drain(with_job=False, pods=[a_pod("kept")])
    recovery.world.cluster.evictions["kept"] = ANSWERS[1]

    for _ in range(3):
        recovery.world.clock.advance(5)
        recovery.run_state("RepairNode", repair_node)

    lines = recovery.world.ledger.partition(Table.INCIDENTS, f"INC#{recovery.incident_id}", "EVENT#")
    texts = [row.doc["text"] for row in lines if "was not evicted" in row.doc["text"]]
    assert texts == [f"research/kept was not evicted: {ANSWERS[1].why}."]


def test_few_evictions_are_requested_at_once_from_unresponsive_server() -> None:
    recovery = recovery_at_drain(with_job=False, pods=[a_pod(f"pod-{number:02d}") for number in range(10)])
    for number in range(9):
        recovery.world.cluster.evictions[f"pod-{number:02d}"] = EvictionAnswer(EvictionStatus.NO_ANSWER, "no answer")
    evictions = []

    for _ in range(10):
        before = len(recovery.world.cluster.calls)
        recovery.run_state("RepairNode", repair_node)
        recovery.world.clock.advance(1)
        evictions.append([call for call in recovery.world.cluster.calls[before:] if call[0] == "ask to evict"])

    assert max(len(calls) for calls in evictions) <= 3
    assert evicted_pods(recovery) == ["pod-09"]


def test_job_with_undeletable_pods_does_not_end_recovery() -> None:
    recovery = RecoveryScenario(policy=SAVES)

    def stop(*_: Any) -> None:
        raise NotAllowed("DELETE pods: 403 Forbidden")

    recovery.world.cluster.stop = stop  # type: ignore[method-assign, assignment]
    recovery.report_fault()

    for service in (plan_recovery, cordon_node, drain_node):
        result = recovery.run_state("", service)

    assert result.outcome == "JOBS_AFFECTED"
    assert recovery.job.stop_of(1) is not None


def test_person_decides_about_remaining_pods_unless_policy_deletes_them() -> None:
    def repair_outcome_after_drain(**repair: Any) -> str:
        policy = SAVES.replace(repair=RepairPolicy.model_validate({**SAVES.repair.model_dump(), **repair}))
        recovery = recovery_at_drain(with_job=False, policy=policy, pods=[a_pod("bare", PodRecreation.NEVER)])
        recovery.world.clock.advance(3600)
        return str(recovery.run_state("RepairNode", repair_node).outcome)

    assert repair_outcome_after_drain() == "ASK_PERSON"
    assert repair_outcome_after_drain(ends_unmanaged_pods=True) == "REQUESTED"


def test_unmanaged_pods_stay_in_observe_mode() -> None:
    recovery = RecoveryScenario(with_job=False, policy=SAVES, drills_may_act=False)
    recovery.world.cluster.unmanaged.append(a_pod("allowed", consent=Consent.ALLOWED))
    recovery.report_fault(is_drill=True)
    for service in (plan_recovery, drain_node):
        recovery.run_state("", service)

    assert evicted_pods(recovery) == []


def test_unmanaged_pods_stay_under_a_hold() -> None:
    recovery = RecoveryScenario(with_job=False, policy=SAVES)
    recovery.world.cluster.unmanaged.append(a_pod("allowed", consent=Consent.ALLOWED))
    recovery.hold_automation()
    recovery.report_fault()
    for service in (plan_recovery, cordon_node, drain_node):
        recovery.run_state("", service)

    assert evicted_pods(recovery) == []
    assert recovery.incident.unmanaged_workloads == ("PyTorchJob research/allowed",)


def test_pod_is_evicted_once_over_repeated_drains() -> None:
    recovery = recovery_at_drain(pods=[a_pod("allowed", consent=Consent.ALLOWED)])

    recovery.run_state("DrainNode", drain_node)

    assert evicted_pods(recovery) == ["allowed"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_pod_is_evicted_once_after_a_crash(when: str) -> None:
    pods = [a_pod("allowed", consent=Consent.ALLOWED), a_pod("silent")]
    effects = recovery_at_drain(with_job=False, pods=pods).plan.effects
    plan = CrashPlan(at=effects.index("evict") + 1, when=when)

    recovery = recovery_at_drain(with_job=False, pods=pods, plan=plan)

    assert (recovery.crashes, evicted_pods(recovery)) == (1, ["allowed"])


def test_drain_of_a_day_fits_the_loop_limit_of_workflow() -> None:
    policy = SAVES.replace(repair=SAVES.repair.replace(retry_seconds=30))
    recovery = recovery_at_drain("xid:63", with_job=False, policy=policy, pods=[a_pod("kept")])
    recovery.set_fault_label(instance_id(1), "NvidiaErrorReboot")
    recovery.world.cluster.budgeted.add("kept")

    rounds, waited = 0, 0
    while (outcome := recovery.run_state("RepairNode", repair_node)).outcome == "RETRY":
        rounds, waited = rounds + 1, waited + outcome.wait_seconds
        recovery.world.clock.advance(outcome.wait_seconds)

    assert waited >= 86_000
    assert rounds < 40 * (policy.repair.max_attempts + 1)
