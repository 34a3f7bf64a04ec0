"""Look at the world once, and have every wait answered whose condition holds or whose deadline has passed.

`watch_cluster` calls it at each change and `sweep_fleet` each round; `open_wait` for the one row it has just put, since
what is waited for may have come first. Asking twice is harmless: `resolve_wait` answers a row once.
"""

import contextlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from evenkeel.domain.health.incidents import Incident, NodeCheck
from evenkeel.domain.nodes import KubernetesNode, NodeLife, ProviderCluster, ProviderNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery import approval
from evenkeel.domain.recovery import awaiting as recovery
from evenkeel.domain.recovery.leases import Lease
from evenkeel.domain.recovery.plan import hands_off
from evenkeel.domain.recovery.seats import Holder, SeatNow, look
from evenkeel.domain.recovery.validation import (
    CheckKind,
    CheckResult,
    expected_accelerators,
    judge_deep_check,
    judge_node,
    looks_sick,
    margin_seconds,
)
from evenkeel.domain.recovery.vetoes import veto
from evenkeel.domain.scheduling.attempts import lost_nodes
from evenkeel.domain.scheduling.awaiting import attempt_answer, is_doubtful
from evenkeel.domain.scheduling.jobs import Attempt, Job, WorkloadSeen
from evenkeel.domain.values import Value
from evenkeel.domain.waiting import DEADLINE_PASSED, Answer, ConditionKind, Wait, WaitState
from evenkeel.ports import (
    Cluster,
    Conflict,
    EvenkeelError,
    Ledger,
    Provider,
    Put,
    Row,
    Table,
    Telemetry,
    WaitAnswers,
    every,
)
from evenkeel.services import guard_queue, incident_record, plan_recovery, rows
from evenkeel.services.guard_acts import Fleet

_ATTEMPT_KINDS = (ConditionKind.ATTEMPT_RUNNING, ConditionKind.ATTEMPT_ENDED, ConditionKind.ATTEMPT_STOPPED)


class Evaluated(Value):
    """What one look at the waits found."""

    open: int = 0
    answered: tuple[str, ...] = ()
    """`<subject>/<name>: <outcome>` of each answer that was asked for."""
    failed: tuple[str, ...] = ()
    """Waits that could not be judged this time, and why."""


class Observation:
    """The world as it is needed, each part read once and only if some wait asks for it."""

    def __init__(
        self,
        ledger: Ledger,
        cluster: Cluster,
        provider: Provider,
        *,
        now: datetime,
        policy: Policy,
        reads_all: bool,
    ) -> None:
        self.ledger = ledger
        self.now = now
        self.policy = policy
        self._cluster = cluster
        self._provider = provider
        self._reads_all = reads_all
        """Whether workloads are listed all at once, or read one by one."""
        self._let_go: frozenset[str] | None = None
        self._nodes: dict[str, tuple[KubernetesNode, ...]] = {}
        self._workloads: dict[str, dict[tuple[str, int], WorkloadSeen]] = {}

    def nodes(self, cluster: str) -> tuple[KubernetesNode, ...]:
        """Return the node objects of a cluster."""
        if cluster not in self._nodes:
            self._nodes[cluster] = self._cluster.nodes(cluster)
        return self._nodes[cluster]

    @cached_property
    def records(self) -> tuple[ProviderNode, ...]:
        """HyperPod's list of its machines."""
        return self._provider.nodes()

    @cached_property
    def fleet(self) -> Fleet:
        """What guardrails need to know."""
        return Fleet(self.ledger, self.policy, self.now)

    def may_go(self, incident: Incident) -> bool:
        """Whether the act that a guardrail bars would be allowed now, by the turn of those that wait."""
        if self._let_go is None or incident.incident_id not in self._blocked:
            self._blocked[incident.incident_id] = incident  # the index may lag behind
            self._let_go = guard_queue.let_go(self._blocked.values(), self.fleet, self._looks_well)
        return incident.incident_id in self._let_go

    @cached_property
    def _blocked(self) -> dict[str, Incident]:
        return guard_queue.blocked(self.ledger)

    def _looks_well(self, incident: Incident) -> bool:
        records, nodes = self.records, self.nodes(incident.life.cluster)
        seat = look(incident.life, incident.slot, incident.pool, records=records, nodes=nodes, since=incident.opened_at)
        machine = seat.successor or seat.patient
        return judge_node(machine, expected=self.expected(machine)).is_valid

    @cached_property
    def settings(self) -> ProviderCluster | None:
        """HyperPod's settings and status; None in a fleet without that half."""
        return plan_recovery.settings_of(self._provider)

    def check_result(self, cluster: str, check: NodeCheck) -> CheckResult:
        """Return how a node's test job ended."""
        return self._cluster.check_result(cluster, check.namespace, check.name)

    def returns_of(self, incident: Incident) -> int:
        """Return how often the machine of an incident was returned to service lately."""
        row = self.ledger.get(rows.lease_key(incident.slot))
        since = self.now - timedelta(hours=self.policy.repair.flap_window_hours)
        return len(rows.read(row, Lease).returns_of(incident.life, since)) if row else 0

    def has_work(self, node: KubernetesNode) -> bool:
        """Whether a pod with accelerators runs on a node."""
        return self._cluster.accelerators_in_use(node.cluster).get(node.name, 0) > 0

    def workload(self, attempt: Attempt) -> WorkloadSeen:
        """Return an attempt's Job and pods."""
        if not self._reads_all:
            return self._cluster.workload(attempt.cluster, attempt.namespace, attempt.job_id, attempt.attempt)
        if attempt.cluster not in self._workloads:
            listed = self._cluster.workloads(attempt.cluster)
            self._workloads[attempt.cluster] = {(seen.job_id, seen.attempt): seen for seen in listed}
        nothing = WorkloadSeen(job_id=attempt.job_id, attempt=attempt.attempt)
        return self._workloads[attempt.cluster].get((attempt.job_id, attempt.attempt), nothing)

    def seat(self, facts: Mapping[str, Any]) -> SeatNow:
        """Return who holds the seat that a wait is about."""
        life = NodeLife.from_key(facts["life"])
        return look(
            life,
            facts["slot"],
            facts["pool"],
            records=self.records,
            nodes=self.nodes(life.cluster),
            since=datetime.fromisoformat(facts["since"]),
        )

    def expected(self, machine: Holder) -> int:
        """Return how many accelerators a machine should offer."""
        node = machine.node
        if node is None:
            return 0
        kind = node.instance_type or (machine.record.instance_type if machine.record else "")
        return expected_accelerators(kind, (peer for peer in self.nodes(node.cluster) if peer.name != node.name))


def run(
    *,
    ledger: Ledger,
    cluster: Cluster,
    provider: Provider,
    wait_answers: WaitAnswers,
    telemetry: Telemetry,
    policy: Policy,
    now: datetime,
    subject: str = "",
    repeat_answered: bool = False,
) -> Evaluated:
    """Evaluate the open waits, of one subject or of all, against one look at the world.

    One wait that cannot be judged does not hold the others up. With `repeat_answered` (the sweeper) an answer that was
    recorded and never delivered is asked for again.

    Idempotent: yes, an answer is only ever asked for.
    """
    found = _rows(ledger, subject, repeat_answered=repeat_answered)
    world = Observation(ledger, cluster, provider, now=now, policy=policy, reads_all=len(found) > 1)
    answered, failed = [], []
    for row in found:
        wait = rows.read(row, Wait)
        try:
            outcome = _ask(wait, row, world, wait_answers)
        except EvenkeelError as error:
            failed.append(f"{wait.subject}/{wait.name}: {type(error).__name__}")
            telemetry.warning("WaitNotJudged", subject=wait.subject, wait=wait.name, detail=str(error))
            continue
        if outcome:
            answered.append(f"{wait.subject}/{wait.name}: {outcome}")
    return Evaluated(open=len(found), answered=tuple(answered), failed=tuple(failed))


def evaluate_one(
    wait: Wait,
    row: Row,
    *,
    ledger: Ledger,
    cluster: Cluster,
    provider: Provider,
    wait_answers: WaitAnswers,
    policy: Policy,
    now: datetime,
) -> str:
    """Evaluate one wait that was just opened; return the outcome that was asked for, or nothing."""
    world = Observation(ledger, cluster, provider, now=now, policy=policy, reads_all=False)
    return _ask(wait, row, world, wait_answers)


def _rows(ledger: Ledger, subject: str, *, repeat_answered: bool) -> list[Row]:
    states = [WaitState.OPEN, *([WaitState.ANSWERED] if repeat_answered else [])]
    if subject:
        table, pk = rows.subject_partition(subject)
        there = ledger.partition(table, pk, "WAIT#")
        return [row for row in there if row.doc.get("state") in states]
    return [
        row
        for table in (Table.JOBS, Table.INCIDENTS)
        for state in states
        for row in every(lambda cursor, t=table, s=state: ledger.by_state(t, f"WAIT#{s}", cursor=cursor))  # type: ignore[misc]
    ]


def _ask(wait: Wait, row: Row, world: Observation, wait_answers: WaitAnswers) -> str:
    if wait.state is WaitState.ANSWERED and wait.answer:
        wait_answers.request(wait.subject, wait.name, wait.generation, wait.answer.to_json())
        return wait.answer.outcome
    answer = judge(wait, world)
    if answer is not None and is_doubtful(answer) and not _has_stood(wait, row, world):
        answer = None
    if answer is None and world.now >= wait.deadline_at and world.now >= _late_from(wait, world):
        answer = Answer(outcome=DEADLINE_PASSED, reason=f"{UNMET[wait.condition.kind]} The deadline passed.")
    if answer is None:
        return ""
    wait_answers.request(wait.subject, wait.name, wait.generation, answer.to_json())
    return answer.outcome


def _late_from(wait: Wait, world: Observation) -> datetime:
    """Return when a wait's time is over: its deadline, but for jobs that ran on for a while."""
    if wait.condition.kind is not ConditionKind.JOBS_BACK:
        return wait.deadline_at
    incident, _ = incident_record.load(world.ledger, wait.subject)
    hurt = _hurt(incident, world.ledger)
    return recovery.late_from(hurt, incident, world.policy, deadline_at=wait.deadline_at, now=world.now)


UNMET = {
    ConditionKind.ATTEMPT_RUNNING: "Not every pod runs.",
    ConditionKind.ATTEMPT_ENDED: "The run has not ended.",
    ConditionKind.ATTEMPT_STOPPED: "Not every pod has ended.",
    ConditionKind.NODE_BACK: "The seat holds no Ready machine.",
    ConditionKind.NODE_VALID: "The machine does not pass its validation.",
    ConditionKind.JOBS_BACK: "Not every hurt job runs again.",
    ConditionKind.WAY_CLEAR: "Something is still in the way.",
    ConditionKind.RELEASED: "It is held still, or a guardrail bars it.",
    ConditionKind.APPROVED: "Nobody approved it.",
}
"""What a person is told of a wait whose time is over."""


def _has_stood(wait: Wait, row: Row, world: Observation) -> bool:
    """Whether a doubtful answer was first seen long enough ago; remembers when it is seen first."""
    if wait.doubted_since is not None:
        return world.now - wait.doubted_since >= timedelta(seconds=world.policy.jobs.blame_seconds)
    if world.policy.jobs.blame_seconds <= 0:
        return True
    with contextlib.suppress(Conflict):  # answered, opened anew or doubted by somebody else: the next look sees it
        world.ledger.commit(Put(rows.wait_row(wait.but(doubted_since=world.now), row.version)))
    return False


def judge(wait: Wait, world: Observation) -> Answer | None:
    """Return the answer of a wait whose condition holds; None while it does not."""
    kind, facts = wait.condition.kind, wait.condition.facts
    if kind in _ATTEMPT_KINDS:
        return _attempt(wait, world)
    incident, _ = incident_record.load(world.ledger, wait.subject)
    if kind is ConditionKind.JOBS_BACK:
        return recovery.jobs_back(_hurt(incident, world.ledger), incident, world.policy, now=world.now)
    forbidden = _vetoed(incident, world)
    if forbidden is not None:
        return forbidden
    if kind is ConditionKind.RELEASED:
        return recovery.released(may_go=world.may_go(incident))
    if kind is ConditionKind.APPROVED:
        nodes = world.nodes(incident.life.cluster)
        return approval.answer(incident, next((node for node in nodes if node.name == incident.node_name), None))
    seat = world.seat(facts)
    if kind is ConditionKind.WAY_CLEAR:
        return _way_clear(incident, seat, world)
    if kind is ConditionKind.NODE_BACK:
        return recovery.node_back(
            seat,
            rung=facts["rung"],
            boot_id_before=facts["bootId"],
            owner=facts.get("owner", ""),
            since=datetime.fromisoformat(facts["since"]),
            progress=incident.progress,
        )
    if kind is ConditionKind.NODE_VALID:
        machine = seat.successor or seat.patient
        return recovery.node_valid(
            machine,
            judge_node(machine, expected=world.expected(machine)),
            opened_at=wait.opened_at,
            # What joins an incident is about its own life: late news of what is gone is none of its successor.
            last_signal_at=None if seat.successor else incident.last_signal_at,
            margin=margin_seconds(world.returns_of(incident), world.policy.repair),
            now=world.now,
            check=_check(incident, machine, world),
        )
    return None


def _check(incident: Incident, machine: Holder, world: Observation) -> CheckResult:
    """Return what is known of the check that is to vouch for a machine; passed where none was begun for it."""
    check = incident.check
    if check is None or machine.node is None or check.instance_id != machine.instance_id:
        return CheckResult.PASSED
    match check.kind:
        case CheckKind.DEEP:
            least = world.policy.repair.deep_check_least_seconds
            return judge_deep_check(machine.node, started_at=check.started_at, least_seconds=least, now=world.now)
        case CheckKind.TEST_JOB:
            return world.check_result(machine.node.cluster, check)
        case _:
            return CheckResult.PASSED


def _vetoed(incident: Incident, world: Observation) -> Answer | None:
    """Answer when a person forbids what this wait leads to."""
    nodes = world.nodes(incident.life.cluster)
    patient = next((node for node in nodes if node.instance_id == incident.life.instance_id), None)
    said = veto(incident, patient, nodes)
    return Answer(outcome=recovery.VETOED, reason=said) if said else None


def _way_clear(incident: Incident, seat: SeatNow, world: Observation) -> Answer | None:
    record, node = seat.patient.record, seat.patient.node
    until = incident.plan.work_may_run_until if incident.plan else None
    return recovery.way_clear(
        hands_off(world.settings.status if world.settings else "", record.status if record else ""),
        has_work=until is not None and node is not None and world.has_work(node),
        work_may_run_until=until,
        now=world.now,
    )


def _attempt(wait: Wait, world: Observation) -> Answer | None:
    number = int(wait.condition.facts["attempt"])
    job_row = world.ledger.get(rows.job_key(wait.subject))
    attempt_row = world.ledger.get(rows.attempt_key(wait.subject, number))
    if job_row is None or attempt_row is None:
        return None
    job, attempt = rows.read(job_row, Job), rows.read(attempt_row, Attempt)
    nodes = {node.name: node for node in world.nodes(attempt.cluster)}
    lost = lost_nodes(nodes, attempt.node_names, world.now, world.policy.jobs.lost_node_seconds)
    sick = frozenset(name for name in attempt.node_names if name in nodes and looks_sick(nodes[name]))
    return attempt_answer(wait.condition.kind, world.workload(attempt), job, attempt, lost, sick)


def _hurt(incident: Incident, ledger: Ledger) -> list[recovery.HurtNow]:
    found = []
    for hurt in incident.hurt_jobs:
        job = ledger.get(rows.job_key(hurt.job_id))
        attempt = ledger.get(rows.attempt_key(hurt.job_id, hurt.attempt))
        found.append(
            recovery.HurtNow(
                hurt=hurt,
                job=rows.read(job, Job) if job else None,
                hurt_attempt=rows.read(attempt, Attempt) if attempt else None,
            )
        )
    return found
