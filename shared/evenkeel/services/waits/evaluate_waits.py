"""Look at the world once, and have every wait answered whose condition holds or whose deadline has passed.

`watch_cluster` calls it at each change and `sweep_fleet` each round; `open_wait` for the one row it has just put, since
what is waited for may have come first. Asking twice is harmless: `resolve_wait` answers a row once.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

from evenkeel.domain.external import kueue_status
from evenkeel.domain.external.workloads import ForeignPod
from evenkeel.domain.health.incidents import HurtJob, Incident, NodeCheck, TimelineEntry
from evenkeel.domain.jobs.attempt import Attempt, WorkloadSeen
from evenkeel.domain.jobs.attempt_end import lost_nodes
from evenkeel.domain.jobs.awaiting import attempt_answer, is_doubtful
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.nodes import KubernetesNode, NodeLife, ProviderCluster, ProviderNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery import approval
from evenkeel.domain.recovery import awaiting as recovery
from evenkeel.domain.recovery.guardrails import Act
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
from evenkeel.domain.renting.rental import Offer, Rental, came_answer, end_answer, nodes_answer, nodes_that_came
from evenkeel.domain.renting.serving import as_seen, empty_answer, why_unwanted_for
from evenkeel.domain.values import Value
from evenkeel.domain.waiting import DEADLINE_PASSED, Answer, Condition, ConditionKind, Wait, WaitState
from evenkeel.ports import (
    Cluster,
    Conflict,
    EvenkeelError,
    Key,
    Ledger,
    NotFound,
    Provider,
    Put,
    Row,
    Table,
    Telemetry,
    Unreachable,
    WaitAnswers,
    every,
    get_all,
)
from evenkeel.services.recovery import guard_queue, plan_recovery
from evenkeel.services.recovery.guard_acts import Fleet
from evenkeel.services.storage import incident_record, rows

T = TypeVar("T")
WRITER = "evaluate_waits"
_RENTAL_KINDS = (ConditionKind.RENTAL_READY, ConditionKind.RENTAL_OVER)
_ATTEMPT_KINDS = (
    ConditionKind.ATTEMPT_ADMITTED,
    ConditionKind.ATTEMPT_RUNNING,
    ConditionKind.ATTEMPT_ENDED,
    ConditionKind.ATTEMPT_STOPPED,
)


class Evaluated(Value):
    """What one look at the waits found."""

    open: int = 0
    answered: tuple[str, ...] = ()
    """`<subject>/<name>: <outcome>` of each answer that was asked for."""
    failed: tuple[str, ...] = ()
    """Waits that could not be judged this time, and why."""

    @property
    def failure(self) -> str:
        """One sentence on the waits that could not be judged; empty if all were."""
        if not self.failed:
            return ""
        return f"{len(self.failed)} of {self.open} waits could not be judged. The first: {self.failed[0]}"


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
        self._found: dict[Key, Row] = {}
        self._let_go: frozenset[str] | None = None
        self._nodes: dict[str, tuple[KubernetesNode, ...]] = {}
        self._workloads: dict[str, dict[tuple[str, int], list[WorkloadSeen]]] = {}
        self._no_answer: dict[str, Unreachable] = {}
        """By cluster, or `HyperPod`: the call that got no answer. It is not called again for each of many waits."""

    def _ask(self, whom: str, read: Callable[[], T]) -> T:
        if whom in self._no_answer:
            raise Unreachable(str(self._no_answer[whom]))
        try:
            return read()
        except Unreachable as error:
            self._no_answer[whom] = error
            raise

    def read_ahead(self, waits: Iterable[Wait]) -> None:
        """Read what these waits are about in a few calls: there may be one for each machine of a fleet."""
        about = [(wait.subject, wait.condition) for wait in waits]
        keys = [key for subject, condition in about for key in _rests_on(subject, condition)]
        self._found = get_all(self.ledger, keys)
        for subject, condition in about:
            row = self._found.get(rows.incident_key(subject)) if condition.kind is ConditionKind.JOBS_BACK else None
            keys += [key for hurt in (rows.read(row, Incident).hurt_jobs if row else ()) for key in _rows_of(hurt)]
        self._found |= get_all(self.ledger, (key for key in keys if key not in self._found))

    def row(self, key: Key) -> Row | None:
        """Return a row, as it was when it was first needed."""
        return self._found.get(key) or self.ledger.get(key)

    def incident(self, incident_id: str) -> Incident:
        """Return an incident.

        Raises:
            NotFound: there is no such incident.
        """
        row = self._found.get(rows.incident_key(incident_id))
        return rows.read(row, Incident) if row else incident_record.load(self.ledger, incident_id)[0]

    def nodes(self, cluster: str) -> tuple[KubernetesNode, ...]:
        """Return the node objects of a cluster."""
        if cluster not in self._nodes:
            self._nodes[cluster] = self._ask(cluster, lambda: self._cluster.nodes(cluster))
        return self._nodes[cluster]

    @cached_property
    def records(self) -> tuple[ProviderNode, ...]:
        """HyperPod's list of its machines."""
        return self._ask("HyperPod", self._provider.nodes)

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

    def needs_no_place(self, incident: Incident) -> bool:
        """Whether an incident waits for a place to cordon its machine in, and that is gone: it would wait for ever."""
        if incident.block is None or incident.block.act != Act.CORDON:
            return False
        return all(node.instance_id != incident.life.instance_id for node in self.nodes(incident.life.cluster))

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
        row = self.ledger.get(rows.lease_key(incident.slot, is_drill=incident.is_drill))
        since = self.now - timedelta(hours=self.policy.repair.flap_window_hours)
        return len(rows.read(row, Lease).returns_of(incident.life, since)) if row else 0

    def has_work(self, node: KubernetesNode) -> bool:
        """Whether a pod with accelerators runs on a node."""
        in_use = self._ask(node.cluster, lambda: self._cluster.accelerators_in_use(node.cluster))
        return in_use.get(node.name, 0) > 0

    def workload(self, attempt: Attempt) -> WorkloadSeen:
        """Return an attempt's Job and pods."""
        if not self._reads_all:
            return self._cluster.workload(attempt)
        if attempt.cluster not in self._workloads:
            listed = self._ask(attempt.cluster, lambda: self._cluster.workloads(attempt.cluster))
            by_name = self._workloads.setdefault(attempt.cluster, {})
            for seen in listed:
                by_name.setdefault((seen.job_id, seen.attempt), []).append(seen)
        return attempt.own(self._workloads[attempt.cluster].get((attempt.job_id, attempt.attempt), ()))

    def refusal(self, offer: Offer) -> str:
        """Return what Karpenter was told of a pool since it was opened, where it found no capacity."""
        return self._cluster.refusal(offer.cluster, offer.pool, offer.opened_at)

    def pods_on(self, cluster: str, names: Iterable[str]) -> tuple[ForeignPod, ...]:
        """Return the pods on these nodes, and none of the rest of the cluster."""
        return tuple(pod for name in names for pod in self._cluster.pods(cluster, name))

    def arriving(self, rental: Rental) -> tuple[tuple[ForeignPod, ...], tuple[KubernetesNode, ...]]:
        """Return the pods without a node, and on nodes of a rental that is on its way; and the nodes.

        The order matters: a pod that finds a node meanwhile is seen without one, or its node is seen.
        """
        cluster = rental.offer.cluster
        waiting = self._cluster.pods(cluster, "")
        nodes = self._cluster.nodes(cluster)
        came = [node.name for node in nodes_that_came(rental, nodes, rental.not_its)]
        known = {pod.uid for pod in waiting}
        return (*waiting, *(pod for pod in self.pods_on(cluster, came) if pod.uid not in known)), nodes

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
    waits = [rows.read(row, Wait) for row in found]
    if len(waits) > 1:
        world.read_ahead(wait for wait in waits if wait.state is WaitState.OPEN)
    answered, failed = [], []
    for wait, row in zip(waits, found, strict=True):
        try:
            outcome = _ask(wait, row, world, wait_answers)
        except EvenkeelError as error:
            failed.append(f"{wait.subject}/{wait.name}: {type(error).__name__}: {error}")
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
    if wait.condition.kind is ConditionKind.ATTEMPT_ADMITTED:
        wait, row = _follow(wait, row, world)
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
    incident = world.incident(wait.subject)
    hurt = _hurt(incident, world)
    return recovery.late_from(hurt, incident, world.policy, deadline_at=wait.deadline_at, now=world.now)


UNMET = {
    ConditionKind.ATTEMPT_ADMITTED: "Kueue has not let it in.",
    ConditionKind.ATTEMPT_RUNNING: "Not every pod runs.",
    ConditionKind.ATTEMPT_ENDED: "The run has not ended.",
    ConditionKind.ATTEMPT_STOPPED: "Not every pod has ended.",
    ConditionKind.NODE_BACK: "The seat holds no Ready machine.",
    ConditionKind.NODE_VALID: "The machine does not pass its validation.",
    ConditionKind.JOBS_BACK: "Not every hurt job runs again.",
    ConditionKind.WAY_CLEAR: "Something is still in the way.",
    ConditionKind.RELEASED: "It is held still, or a guardrail bars it.",
    ConditionKind.RENTAL_READY: "Not all rented nodes came.",
    ConditionKind.RENTAL_OVER: "The rented nodes are in use still.",
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
    if kind in _RENTAL_KINDS:
        return _rental(wait, world)
    incident = world.incident(wait.subject)
    if kind is ConditionKind.JOBS_BACK:
        return recovery.jobs_back(_hurt(incident, world), incident, world.policy, now=world.now)
    forbidden = _vetoed(incident, world)
    if forbidden is not None:
        return forbidden
    if kind is ConditionKind.RELEASED:
        return recovery.released(may_go=world.needs_no_place(incident) or world.may_go(incident))
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


def _rental(wait: Wait, world: Observation) -> Answer | None:
    number = int(wait.condition.facts["rental"])
    row = world.row(rows.rental_key(wait.subject, number))
    if row is None:
        raise NotFound(f"There is no rental {number} of {wait.subject}.")
    rental = rows.read(row, Rental)
    if rental.serves is not None:
        return _replicas(wait, rental, row, world)
    nodes = world.nodes(rental.offer.cluster)
    stored = world.row(rows.job_key(wait.subject))
    if stored is None:
        raise NotFound(f"There is no {wait.subject} for rental {number}.")
    job = rows.read(stored, Job)
    if wait.condition.kind is ConditionKind.RENTAL_READY:
        return nodes_answer(rental, job, nodes, world.refusal(rental.offer), rental.not_its)
    held = world.row(rows.attempt_key(job.job_id, job.current_attempt)) if job.current_attempt else None
    attempt = rows.read(held, Attempt) if held else None
    return end_answer(rental, job, attempt, nodes, world.policy.burst.quiet_seconds, world.now)


def _replicas(wait: Wait, rental: Rental, row: Row, world: Observation) -> Answer | None:
    """Judge a node that is rented for a Deployment: on its way, or there, where it is noted whether it is used."""
    policy = world.policy
    if wait.condition.kind is ConditionKind.RENTAL_READY:
        pods, nodes = world.arriving(rental)
        # What other rentals will take is not known here: the steps of the workflow know it.
        unwanted = why_unwanted_for(rental, (), policy.scheduling.serving, pods, nodes)
        return came_answer(rental, unwanted, nodes, world.refusal(rental.offer), rental.not_its)
    pods = world.pods_on(rental.offer.cluster, rental.node_names)
    seen = as_seen(rental, pods, world.now)
    if seen != rental:
        with contextlib.suppress(Conflict):  # it is given back, or was seen by somebody else: the next look knows
            world.ledger.commit(Put(rows.rental_row(seen, row.version)))
    return empty_answer(seen, pods, world.nodes(rental.offer.cluster), policy.burst.quiet_seconds, world.now)


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
    job_row = world.row(rows.job_key(wait.subject))
    attempt_row = world.row(rows.attempt_key(wait.subject, number))
    if job_row is None or attempt_row is None:
        return None
    job, attempt = rows.read(job_row, Job), rows.read(attempt_row, Attempt)
    nodes = {node.name: node for node in world.nodes(attempt.cluster)}
    seen = world.workload(attempt)
    names = attempt.seats_in(seen)
    lost = lost_nodes(nodes, names, world.now, world.policy.jobs.lost_node_seconds)
    sick = frozenset(name for name in names if name in nodes and looks_sick(nodes[name]))
    return attempt_answer(wait.condition.kind, seen, job, attempt, lost, sick)


def _follow(wait: Wait, row: Row, world: Observation) -> tuple[Wait, Row]:
    """Write down where a job stands with Kueue, where that has changed: who asks for it looks into no cluster.

    Told in the job's story is each step; what changes from one of Kueue's cycles to the next is on the wait alone.
    """
    number = int(wait.condition.facts["attempt"])
    found = world.row(rows.attempt_key(wait.subject, number))
    if found is None:
        return wait, row
    attempt = rows.read(found, Attempt)
    seen = world.workload(attempt).kueue
    told = wait.but(
        said=kueue_status.said_of(seen, attempt.local_queue, world.now),
        step=kueue_status.step_of(seen),
        position=seen.position if seen else None,
    )
    if told == wait:
        return wait, row
    entry = TimelineEntry(at=world.now, kind="kueue", text=told.said, writer=WRITER)
    story = (
        [Put(rows.timeline_row(wait.subject, entry, f"kueue-{number}-{told.step}"))] if told.step != wait.step else []
    )
    try:
        world.ledger.commit(Put(rows.wait_row(told, row.version)), *story)
    except Conflict:  # answered, opened anew, or followed by somebody else: the next look sees it
        return wait, row
    return told, rows.wait_row(told, row.version + 1)


def _hurt(incident: Incident, world: Observation) -> list[recovery.HurtNow]:
    found = []
    for hurt in incident.hurt_jobs:
        job, attempt = map(world.row, _rows_of(hurt))
        found.append(
            recovery.HurtNow(
                hurt=hurt,
                job=rows.read(job, Job) if job else None,
                hurt_attempt=rows.read(attempt, Attempt) if attempt else None,
            )
        )
    return found


def _rests_on(subject: str, condition: Condition) -> tuple[Key, ...]:
    if condition.kind in _ATTEMPT_KINDS:
        return (rows.job_key(subject), rows.attempt_key(subject, int(condition.facts["attempt"])))
    if condition.kind in _RENTAL_KINDS:
        return (rows.job_key(subject), rows.rental_key(subject, int(condition.facts["rental"])))
    return (rows.incident_key(subject),)


def _rows_of(hurt: HurtJob) -> tuple[Key, Key]:
    return (rows.job_key(hurt.job_id), rows.attempt_key(hurt.job_id, hurt.attempt))
