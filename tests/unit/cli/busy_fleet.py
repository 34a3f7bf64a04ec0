"""A busy fleet, for the pictures and tests of the console."""

from datetime import datetime

from evenkeel.domain.decisions import Alternative, Decision
from evenkeel.domain.health.incidents import Incident, IncidentState, StageTimes, StoredRecoveryPlan
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.ports import Put, RowChange
from evenkeel.services.publishing import publish_events
from evenkeel.services.tables import incident_rows, job_rows, quota_rows, rows
from tests.fakes.world import a_context
from tests.unit.api.gateway import FLEET, Gateway
from tests.unit.api.seeds import (
    PLAN_AWAITING_APPROVAL,
    a_decision,
    a_fleet_node,
    a_job,
    affected,
    ago,
    an_attempt,
    an_incident,
    list_decision,
    some_evidence,
    store,
    store_fleet_counts,
    store_timeline_entries,
)
from tests.unit.cli.recovery_fixture import store_running_recovery

_NEW = {"If-None-Match": "*"}
_CLASSES = {"critical": 1000000, "high": 800000, "medium": 600000, "low": 400000}
_TEAMS = {
    "nlp": (256, 5),
    "vision": (128, 4),
    "speech": (64, 2),
    "research-and-evaluation-of-multimodal-models": (64, 1),
}
_AMOUNTS = {"cpu_millis": 192_000, "memory_mib": 2_097_152, "cpu_millis_in_use": 96_000, "memory_mib_in_use": 917_504}
_WAIT = "Team {} is at its borrowing limit: 16 of 16 GPUs. It needs 16 more."


def store_busy_fleet(gateway: Gateway) -> None:
    """Store a running recovery, a plan that awaits approval, an unhealthy node, and jobs of four teams."""
    store_running_recovery(gateway)
    quotas = {"quotas": {"priorityClasses": _CLASSES}, "reason": "The classes of the site."}
    gateway.call("PUT", f"/v1/clusters/{FLEET}/quotas", quotas, headers=_NEW)
    for name, (gpus, jobs) in _TEAMS.items():
        _store_team(gateway, name, gpus)
        _store_jobs(gateway, name, jobs)
    _store_incidents(gateway)
    ledger = gateway.fakes.ledger
    store(
        ledger,
        *(a_fleet_node(number, accelerators_in_use=8 if number % 9 else 0, **_AMOUNTS) for number in range(5, 61)),
        a_fleet_node(61, is_ready=False, not_ready_since=ago(minutes=3)),
        a_fleet_node(62, is_cordoned=True),
        *(
            a_fleet_node(number, pool="p5-on-demand", provider_status="", accelerators_in_use=8)
            for number in range(101, 107)
        ),
    )
    _store_hold_and_changes(gateway)
    store_fleet_counts(gateway.fakes)
    for key, row in tuple(ledger.rows.items()):
        if key.pk.startswith("DEC#"):
            list_decision(ledger, rows.decode(row, Decision))


def _store_hold_and_changes(gateway: Gateway) -> None:
    """Store a hold of a pool and some recorded changes."""
    reason = {"reason": "We change the switches of this rack.", "forSeconds": 7200, "pool": "p5-on-demand"}
    key = {"Idempotency-Key": "a-hold"}
    gateway.call("POST", f"/v1/clusters/{FLEET}/automation/hold", reason, headers=key)
    for minutes, state in ((28, "PENDING"), (25, "STARTING"), (24, "RUNNING")):
        job = a_job(131, state=state, submitted_at=ago(minutes=28), current_attempt=int(state != "PENDING"))
        before = job_rows.job_row(job.replace(state=JobState.PENDING), 1) if minutes != 28 else None
        publish_events.run(
            RowChange(before, job_rows.job_row(job, 2), ago(minutes=minutes)),
            a_context(gateway.fakes, now=ago(minutes=minutes)),
        )
    incident = an_incident(1, opened_at=ago(minutes=12))
    publish_events.run(
        RowChange(None, incident_rows.incident_row(incident, 1), ago(minutes=12)),
        a_context(gateway.fakes, now=ago(minutes=12)),
    )


def _store_team(gateway: Gateway, name: str, gpus: int) -> None:
    team = {
        "name": name,
        "budgets": [{"period": "month", "gpuHours": 10 * gpus}],
        "queue": {"cohort": "company", "groups": [{"ml.p5.48xlarge": {"nvidia.com/gpu": gpus}}]},
        "namespace": name[:20],
        "serviceAccount": "trainer",
        "images": ["registry/*"],
    }
    gateway.call("PUT", f"/v1/teams/{name}/quota", {"team": team, "reason": "The plan of the quarter."}, headers=_NEW)


def _store_jobs(gateway: Gateway, team: str, number: int) -> None:
    first = 100 + 10 * list(_TEAMS).index(team)
    for index, (name, state) in enumerate(
        [("pretrain-70b", "RUNNING"), ("finetune", "RUNNING"), ("ablation", "PENDING"), ("eval", "PENDING")][:number]
    ):
        job = a_job(first + index, state=state, submitted_at=ago(hours=3 + index), current_attempt=1)
        spec = job.spec.replace(name=f"{team}-{name}", team=team, priority_class=list(_CLASSES)[index])
        running = state == JobState.RUNNING
        job = job.replace(
            spec=spec,
            queue=team,
            priority=_CLASSES[spec.priority_class],
            reason="All 2 pods are running." if running else _WAIT.format(team),
            started_at=ago(hours=2 + index) if running else None,
            current_attempt=1 if running else 0,
        )
        store(gateway.fakes.ledger, job)
        if running:
            attempt = _an_attempt(job, 5 + 2 * (first // 10 % 10 * 2 + index))
            store(gateway.fakes.ledger, attempt)
            gateway.fakes.ledger.commit(Put(quota_rows.charge_row(attempt, job)))


def _an_attempt(job: Job, node: int) -> Attempt:
    return an_attempt(
        job, 1, nodes=(node, node + 1), running_at=ago(hours=2), team=job.spec.team, instance_type="ml.p5.48xlarge"
    )


def _store_incidents(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    awaiting_answer = an_incident(
        61,
        plan=PLAN_AWAITING_APPROVAL,
        fault_key="node:not_ready",
        opened_at=ago(minutes=3),
        first_signal_at=ago(minutes=3),
        stages=_stages(ago(minutes=3)),
    )
    over = [
        _a_settled_incident(
            70, "xid:63", 47, "hyperpod-i-000000000000000ac is back in service. Every interrupted job runs again."
        ),
        _a_settled_incident(
            71, "xid:74", 130, "The node answered a reboot, and passed validation. No job was interrupted."
        ),
    ]
    store(
        ledger, awaiting_answer, some_evidence(awaiting_answer), *over, *(some_evidence(incident) for incident in over)
    )
    store(
        ledger,
        a_decision(
            9,
            awaiting_answer.incident_id,
            reason=_plan_of(awaiting_answer.plan),
            action="ASK",
            alternatives=(Alternative(option="ACT", why_not="The mode recommend asks a person first."),),
        ),
    )
    store_timeline_entries(
        ledger,
        awaiting_answer.incident_id,
        (ago(minutes=3), "fault", "The node is NotReady: kubelet stopped posting its status."),
        (ago(minutes=2, seconds=58), "decided", _plan_of(awaiting_answer.plan)),
    )


def _plan_of(plan: StoredRecoveryPlan | None) -> str:
    assert plan is not None
    return plan.reason


def _stages(start: datetime) -> StageTimes:
    return StageTimes(detected_at=start, planned_at=start)


def _a_settled_incident(number: int, fault: str, minutes: int, outcome: str) -> Incident:
    opened = ago(minutes=minutes)
    stages = StageTimes(
        detected_at=opened,
        planned_at=ago(minutes=minutes, seconds=-0.4),
        cordoned_at=ago(minutes=minutes, seconds=-0.9),
        jobs_stopped_at=ago(minutes=minutes, seconds=-31),
        repair_requested_at=ago(minutes=minutes, seconds=-33),
        jobs_resumed_at=ago(minutes=minutes - 4),
        node_back_at=ago(minutes=minutes - 15),
        validated_at=ago(minutes=minutes - 16),
        returned_at=ago(minutes=minutes - 16.2),
        settled_at=ago(minutes=minutes - 16.5),
    )
    job = a_job(100)
    return an_incident(
        number,
        fault_key=fault,
        state=IncidentState.RECOVERED,
        outcome=outcome,
        opened_at=opened,
        first_signal_at=opened,
        stages=stages,
        affected_jobs=affected(job),
        repairs=("replace",),
    )
