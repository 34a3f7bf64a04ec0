"""Rentals in a scheduling cycle: which jobs get rented nodes, why others do not, and which jobs migrate back.

A cycle that cannot start a job on the present nodes compares the cost of renting with its saving. If renting pays,
the rental is committed together with a new quota-tree version, as admissions are; so caps hold even if two cycles run
at once. After a crash that follows the commit, the sweeper starts the rental's workflow.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.admission.decide import Action, AdmissionDecision
from evenkeel.domain.capacity.node_capacity import TAINTED, NodeCapacity
from evenkeel.domain.capacity.pools import Pool
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.decisions import Alternative, Decision
from evenkeel.domain.economics import money
from evenkeel.domain.health.incidents import TimelineEntry
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState, PlacementNote
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.candidates import (
    PlacementContext,
    committed_pools,
    offered_pool,
    placement_facts,
    reserve_rented_nodes,
    shadow_price_of,
)
from evenkeel.domain.renting.demand import PlacementAction, PlacementDecision
from evenkeel.domain.renting.migration import (
    MigrationAction,
    MigrationTarget,
    TemporaryCapacityFacts,
    TemporaryCapacityState,
    decide_migration,
    decide_temporary_capacity,
    migration_facts,
    temporary_capacity_of,
)
from evenkeel.domain.renting.placement import must_avoid_spot, place_in_queue_order, recorded_placement_reason
from evenkeel.domain.renting.policy import RentedPool
from evenkeel.domain.renting.rental import (
    Rental,
    RentalAllocation,
    RentalOffer,
    RentalState,
    nodes_subject,
    note_key,
    runs_on_rental,
)
from evenkeel.domain.values import Value
from evenkeel.ports import (
    Ledger,
    Put,
    Row,
    TransientError,
    WorkflowName,
    Write,
    get_all,
)
from evenkeel.services.context import Context
from evenkeel.services.storage import rows

WRITER = "schedule_jobs"
_MAX_PLACED = 20
"""Waiting jobs whose place one pass weighs."""
_LAST_ATTEMPTS = 20
_RENTABLE_ACTIONS = (Action.WAIT, Action.BLOCKED, Action.NEVER_FITS)
"""Machines are what these wait for. Who waits for quota, a limit or others to stop would wait on rented nodes too."""
_WAITING_FOR_NODES = (Action.WAIT, Action.BLOCKED, Action.PREEMPT)
"""Who waits for quota cannot use what is free: it is no reason to go on paying for rented nodes."""

VersionedJobs = Mapping[str, tuple[Job, int]]
"""By id: the job and its row's version."""
Placements = Mapping[str, PlacementDecision | str]
"""By job: where it should run, or why nothing is rented for the job."""
Decide = Callable[[tuple[NodeCapacity, ...], VersionedJobs, tuple[Charge, ...]], Sequence[AdmissionDecision]]
"""What the pass would decide if machines, waiting jobs and charges were these."""


class RentalBook(NamedTuple):
    """What is rented when a pass looks."""

    rentals: tuple[Rental, ...] = ()
    holds: tuple[RentalAllocation, ...] = ()
    budgets_left: Mapping[str, int] = {}
    """By team that has a budget in dollars: what is left of it, in parts of `economics.money`."""

    @property
    def serving(self) -> Mapping[str, Rental]:
        """By job: those that it has, or is to have, nodes of."""
        return {rental.job_id: rental for rental in self.rentals if rental.state.serves}

    def in_rented_cluster(self, job: Job) -> Job:
        """Return a job as it asks: in the cluster of the nodes that were handed over to it, where there are any."""
        rental = self.serving.get(job.job_id)
        if rental is None or rental.state is not RentalState.READY or job.is_migrating_back:
            return job
        return job if rental.offer.cluster == job.cluster else job.but(cluster=rental.offer.cluster)

    def capacities(
        self, capacities: Iterable[NodeCapacity], jobs: VersionedJobs, pools: Sequence[Pool]
    ) -> tuple[NodeCapacity, ...]:
        """Return the capacities, with rented nodes reserved for their jobs. Migrating jobs reserve none."""
        listed = tuple(capacities)
        if not pools and not self.rentals:
            return listed
        target = {name for name, (job, _) in jobs.items() if job.is_migrating_back}
        kept = (rental.but(state=RentalState.ENDING) if rental.job_id in target else rental for rental in self.rentals)
        return reserve_rented_nodes(listed, kept, pools)


def load(ledger: Ledger) -> RentalBook:
    """Read what is rented: two round trips, and one where nothing is."""
    partition = rows.rental_allocation_key("", 0).pk
    found = ledger.partition(rows.tree_key().table, partition, "RENTAL#")
    holds = tuple(rows.read(row, RentalAllocation) for row in found)
    keys = [rows.rental_key(hold.job_id, hold.number) for hold in holds]
    return RentalBook(tuple(rows.read(row, Rental) for row in get_all(ledger, keys).values()), holds)


# ---------------------------------------------------------------- decide


def place_waiting_jobs(
    decisions: Sequence[AdmissionDecision],
    jobs: VersionedJobs,
    capacities: tuple[NodeCapacity, ...],
    charges: tuple[Charge, ...],
    rented: RentalBook,
    context: Context,
    decide: Decide,
    begun: int = 0,
) -> Placements:
    """Return where jobs that cannot start now should run; a sentence where rented nodes would not help.

    Each that is to be rented for would start on such nodes: the very rules of the pass are asked, with them in it.
    `begun` rentals are begun in this pass already, and count among `rented.holds`.
    """
    burst = context.policy.burst
    waiting = [
        jobs[each.job_id][0]
        for each in decisions
        if each.action in _RENTABLE_ACTIONS and each.job_id not in rented.serving
    ]
    # Who has a deadline is told whether anything meets it, though nothing may be rented here.
    asked = jobs_to_place(
        [job for job in waiting if job.spec.deadline_at or (burst.pools and burst.delay_of(job.spec.priority_class))],
        context.now,
    )
    if not asked:
        return {}
    row = context.ledger.get(rows.shortages_key())
    seen = PlacementContext(
        capacities=_remaining_capacity(capacities, decisions),
        charges=charges,
        classes=priority_classes_of(context.ledger, charges),
        queue=tuple(waiting),
        holds=rented.holds,
        shortages=rows.read(row, Shortages) if row else Shortages(),
        budgets_left=dict(rented.budgets_left),
        now=context.now,
    )
    done = done_seconds(context.ledger, asked)
    placed = place_in_queue_order(
        [placement_facts(job, seen, context.policy, done.get(job.job_id, 0.0)) for job in asked]
    )
    answers: dict[str, PlacementDecision | str] = {}
    for job, answer in zip(asked, placed, strict=True):
        answers[job.job_id] = answer
        if answer.action is not PlacementAction.RENT:
            continue
        pool = next(each for each in burst.pools if each.name == answer.pool)
        would = would_start_on_rental(job, pool, jobs, capacities, charges, decide, context.now)
        why_not = why_rental_would_not_help(would, pool)
        if why_not:
            answers[job.job_id] = why_not
        elif begun >= burst.rentals_per_cycle:
            answers[job.job_id] = "Evenkeel rents nodes for the job in one of the next scheduling cycles."
        else:
            begun += 1
    return answers


def jobs_to_place(jobs: Sequence[Job], now: datetime) -> list[Job]:
    """Return the jobs that one cycle weighs: the first of the queue, and one page of the others, by the minute.

    Else jobs at the head that no pool could take would keep all jobs behind them from rented nodes.
    """
    size = _MAX_PLACED // 2
    head, others = list(jobs[:size]), list(jobs[size:])
    pages = max(1, -(-len(others) // size))
    start = int(now.timestamp()) // 60 % pages * size
    return head + others[start : start + size]


def would_start_on_rental(
    job: Job,
    pool: RentedPool,
    jobs: VersionedJobs,
    capacities: tuple[NodeCapacity, ...],
    charges: tuple[Charge, ...],
    decide: Decide,
    now: datetime,
) -> AdmissionDecision | None:
    """Return what the rules of a pass would say of a job if nodes of a pool were rented for it; None if nothing."""
    on_its_cluster = {**jobs, job.job_id: (job.but(cluster=pool.cluster), jobs[job.job_id][1])}
    answers = decide((*capacities, *hypothetical_rented_nodes(job, pool, now)), on_its_cluster, charges)
    return next((each for each in answers if each.job_id == job.job_id), None)


def hypothetical_rented_nodes(job: Job, pool: RentedPool, now: datetime) -> tuple[NodeCapacity, ...]:
    """Return the nodes of a pool as they would be if they were rented for a job."""
    return tuple(
        NodeCapacity(
            life=NodeLife(cluster=pool.cluster, instance_id=f"to-be-rented-{number}", launched_at=now),
            node_name=f"to-be-rented-{number}",
            cluster=pool.cluster,
            pool=pool.name,
            instance_type=pool.instance_type,
            accelerators=pool.accelerators_per_node,
            free=pool.accelerators_per_node,
            labels={"karpenter.sh/nodepool": pool.name, "karpenter.sh/capacity-type": str(pool.market)},
            unschedulable_reason=TAINTED if pool.taints else "",
            taints=pool.taints,
            reserved_for=job.job_id,
        )
        for number in range(job.spec.nodes)
    )


def why_rental_would_not_help(would: AdmissionDecision | None, pool: Pool) -> str:
    """Say why a job would not start on rented nodes of a pool though they were there; empty where it would."""
    if would is not None and would.action is Action.ADMIT and would.pool == pool.name:
        return ""
    return (
        f"Rented nodes would not help the job: {would.reason if would else 'The job is not at the head of its queue.'}"
    )


def _remaining_capacity(
    capacities: Iterable[NodeCapacity], decisions: Iterable[AdmissionDecision]
) -> tuple[NodeCapacity, ...]:
    """Return the machines with what this pass admits taken off."""
    taken: dict[str, int] = {}
    for each in decisions:
        if each.action is Action.ADMIT:
            taken |= {life.key: each.facts.request.accelerators_per_node for life in each.nodes}
    return tuple(
        capacity.but(free=max(0, capacity.free - taken[capacity.life.key])) if capacity.life.key in taken else capacity
        for capacity in capacities
    )


def priority_classes_of(ledger: Ledger, charges: Iterable[Charge]) -> dict[str, str]:
    """Return the priority class of each job that holds a charge."""
    found = get_all(ledger, (rows.job_key(charge.job_id) for charge in charges)).values()
    return {str(row.doc["jobId"]): str(row.doc["spec"].get("priorityClass") or "") for row in found}


def done_seconds(ledger: Ledger, jobs: Iterable[Job], until: datetime | None = None) -> dict[str, float]:
    """Return how long the attempts of jobs ran that have ended; where it is said, those that run still until then."""
    keys = [
        rows.attempt_key(job.job_id, number)
        for job in jobs
        for number in range(max(1, job.current_attempt - _LAST_ATTEMPTS + 1), job.current_attempt + 1)
    ]
    done: dict[str, float] = {}
    for attempt in (rows.read(row, Attempt) for row in get_all(ledger, keys).values()):
        ended_at = attempt.ended_at or until
        if attempt.running_at and ended_at:
            ran = (ended_at - attempt.running_at).total_seconds()
            done[attempt.job_id] = done.get(attempt.job_id, 0.0) + max(0.0, ran)
    return done


def free_nodes(job: Job, attempt: Attempt, context: Context) -> None:
    """End the capacity pods on an attempt's nodes: its own pods are there now, and wait for what those use.

    Idempotent: yes, gone is success.
    """
    row = context.ledger.get(rows.rental_key(job.job_id, job.rentals)) if job.rentals else None
    rental = rows.read(row, Rental) if row else None
    if rental is not None and runs_on_rental(attempt, rental):
        context.cluster.delete_capacity_pods(rental.offer.cluster, rental.namespace, rental.pods_name)


def should_rent(answer: PlacementDecision | str | None) -> bool:
    """Whether nodes are to be rented for a job."""
    return isinstance(answer, PlacementDecision) and answer.action is PlacementAction.RENT


# ---------------------------------------------------------------- act and record


def begin(
    job: Job, version: int, placed: PlacementDecision | str, context: Context
) -> tuple[Rental, tuple[Write, ...], str]:
    """Return a rental with the writes that begin it, and the token of their commit."""
    assert isinstance(placed, PlacementDecision)  # or nothing is to be rented
    pool = next(each for each in context.policy.burst.pools if each.name == placed.pool)
    record = record_of(placed, context.ids.new("dec"), context)
    plan = job.live_plan()
    plan = plan if plan and plan.lost_committed else None
    due_at = context.now + timedelta(seconds=context.policy.burst.temporary_seconds) if plan else None
    temporary = (
        f" The nodes are temporary capacity for {plan.incident_id}, until {due_at:%d %b %H:%M} UTC at the latest."
        if plan
        else ""
    )
    reason = f"{nodes_subject(job.spec.nodes, pool.name)} rented for the job. {placed.reason}{temporary}"
    rental = Rental(
        job_id=job.job_id,
        number=job.rentals + 1,
        team=job.spec.team,
        namespace=job.namespace,
        state=RentalState.OPENING,
        reason=placed.reason,
        nodes=job.spec.nodes,
        offers=(RentalOffer.of(pool, context.now),),
        begun_at=context.now,
        ready_by=context.now + timedelta(seconds=context.policy.burst.ready_seconds),
        decision_id=record.decision_id,
        incident_id=plan.incident_id if plan else "",
        due_at=due_at,
        expected_parts=placed.row.rent_parts if placed.row else 0,
    )
    entry = TimelineEntry(at=context.now, kind="rented", text=reason, decision_id=record.decision_id, writer=WRITER)
    waits = job.but(
        reason=reason,
        rentals=rental.number,
        placement=None,
        avoids_spot=must_avoid_spot(placed.facts),
        is_migrating_back=False,
    )
    writes = (
        Put(rows.rental_allocation_row(rental, 0)),
        Put(rows.rental_row(rental, 0)),
        Put(rows.job_row(waits, version)),
        Put(rows.decision_row(record)),
        Put(rows.timeline_row(job.job_id, entry, f"rented-{rental.number}")),
    )
    return rental, writes, record.decision_id


def start(rental: Rental, context: Context) -> bool:
    """Start the workflow of a rental; False where that failed, which the sweeper makes good.

    Idempotent: yes, by the execution's name; one that exists already is success.
    """
    document = {"schemaVersion": 1, "jobId": rental.job_id, "rental": rental.number}
    try:
        context.workflows.start(WorkflowName.BURST_CAPACITY, rental.execution_name, document)
    except TransientError as error:
        context.telemetry.warning(
            "The workflow of a rental could not be started yet", job_id=rental.job_id, error=str(error)
        )
        return False
    return True


def placement_note(
    job: Job, answer: PlacementDecision | str | None, context: Context
) -> tuple[PlacementNote | None, tuple[Write, ...]]:
    """Return what a waiting job is told of its place, with the record of it where the answer is new."""
    if answer is None:
        return None, ()
    if isinstance(answer, str):
        note = PlacementNote(key=note_key("HELD", answer.partition(":")[0], {}), text=answer)
        return (job.placement if job.placement and job.placement.key == note.key else note), ()
    why_nots = {row.pool: row.why_not for row in answer.table}
    key = note_key(answer.action, answer.pool, why_nots, is_late=answer.late_seconds is not None)
    if job.placement and job.placement.key == key:
        return job.placement, ()
    record = record_of(answer, context.ids.new("dec"), context)
    return PlacementNote(key=key, text=record.reason, decision_id=record.decision_id), (Put(rows.decision_row(record)),)


def record_of(placed: PlacementDecision, decision_id: str, context: Context) -> Decision:
    """Return the record of a placement."""
    return Decision(
        decision_id=decision_id,
        kind="PLACEMENT",
        subject=placed.job_id,
        action=placed.action,
        reason=recorded_placement_reason(placed, context.mode),
        alternatives=placed.alternatives,
        facts=placed.facts.to_json(),
        policy_hash=context.policy.hash,
        mode=context.mode,
        decided_at=context.now,
    )


# ---------------------------------------------------------------- home


class Migration(NamedTuple):
    """What the commit of a migration holds, besides the quota tree."""

    job_id: str
    writes: tuple[Write, ...]
    token: str


def next_migration(
    decisions: Sequence[AdmissionDecision],
    capacities: tuple[NodeCapacity, ...],
    charges: tuple[Charge, ...],
    rented: RentalBook,
    context: Context,
    decide: Decide,
) -> Migration | None:
    """Return the first job on rented nodes to migrate back to committed capacity; None if there is none.

    Jobs that wait for that capacity come first. The rules of the scheduling cycle would start the job there, and the
    saving pays for its move (`decide_migration`). Temporary capacity is returned as soon as the job could start on
    committed nodes, and at its due time in any case (`decide_temporary_capacity`). Each cycle migrates one job.
    """
    ready = [rental for rental in rented.rentals if rental.state is RentalState.READY]
    if not ready:
        return None
    is_waited_for = any(each.action in _WAITING_FOR_NODES for each in decisions)
    left = () if is_waited_for else _remaining_capacity(capacities, decisions)
    is_there_room = any(capacity.is_open and capacity.free and not capacity.reserved_for for capacity in left)
    for rental in ready:
        if not is_there_room and rental.due_at is None:
            continue
        row = context.ledger.batch_get(rows.job_key(rental.job_id))[0]
        job = rows.read(row, Job) if row else None
        if row is None or job is None:
            continue
        on_it = [charge for charge in charges if _is_on(charge, job, rental)]
        if job.state is not JobState.RUNNING or job.stop_of(job.current_attempt) or not on_it:
            continue
        place = _migration_case(job, row, rental, left, charges, decide, context.policy) if is_there_room else None
        candidate = _MigrationCase(job, row, rental, place)
        judged = _decide_temporary_capacity(candidate, context.now) or _decide_migration(candidate, context)
        if judged is not None:
            return _migration_writes(candidate, judged, context)
    return None


def _is_on(charge: Charge, job: Job, rental: Rental) -> bool:
    is_its = (charge.job_id, charge.attempt) == (job.job_id, job.current_attempt)
    return is_its and set(charge.node_names) <= set(rental.node_names)


class _MigrationCase(NamedTuple):
    """A job on rented nodes, and where it could go on."""

    job: Job
    row: Row
    rental: Rental
    target: Pool | None
    """Committed room on which the pass would start it; None where there is none."""


def _migration_case(
    job: Job,
    row: Row,
    rental: Rental,
    capacities: tuple[NodeCapacity, ...],
    charges: tuple[Charge, ...],
    decide: Decide,
    policy: Policy,
) -> Pool | None:
    common = tuple(capacity for capacity in capacities if not capacity.reserved_for)
    others = tuple(charge for charge in charges if charge.job_id != job.job_id)
    asked = {job.job_id: (job.but(state=JobState.PENDING), row.version)}
    would = next(iter(decide(common, asked, others)), None)
    if would is None or would.action is not Action.ADMIT or len(would.nodes) != rental.nodes:
        return None
    return next(
        each
        for each in committed_pools(common, policy)
        if (each.name, each.instance_type) == (would.pool, would.instance_type)
    )


class _MigrationOutcome(NamedTuple):
    kind: str
    action: str
    reason: str
    alternatives: tuple[Alternative, ...]
    facts: Value
    message: str
    """To the job."""


def _decide_temporary_capacity(candidate: _MigrationCase, now: datetime) -> _MigrationOutcome | None:
    """Say whether nodes on loan go back, since what they stand in for is there again or their time is over."""
    temporary = temporary_capacity_of(candidate.rental)
    if temporary is None:
        return None
    judged = decide_temporary_capacity(
        TemporaryCapacityFacts(
            temporary=temporary,
            has_baseline_recovered=candidate.target is not None,
            is_job_running=True,
            keeps_checkpoints=bool(candidate.job.spec.checkpoint_uri),
            save_seconds=candidate.job.spec.grace_seconds,
            now=now,
        )
    )
    if judged.state is TemporaryCapacityState.KEEP:
        return None
    reason = f"The job's nodes were temporary capacity. {judged.reason}"
    return _MigrationOutcome(
        kind="LOAN", action=judged.state, reason=judged.reason, alternatives=(), facts=judged.facts, message=reason
    )


def _decide_migration(candidate: _MigrationCase, context: Context) -> _MigrationOutcome | None:
    """Migrate a job back to committed capacity if that saves more than the move costs."""
    job, rental, place = candidate.job, candidate.rental, candidate.target
    pool = offered_pool(rental, context.policy.burst.pools)
    if place is None or pool is None:
        return None
    target = MigrationTarget(
        pool=place.name,
        shadow_micros_per_accelerator_hour=shadow_price_of(place, 0, context.policy.burst),
        launch_seconds=place.launch.p50_seconds,
        usable_until=place.reservation.usable_until if place.reservation else None,
    )
    ran = done_seconds(context.ledger, [job], context.now).get(job.job_id, 0.0)
    judged = decide_migration(
        migration_facts(job, rental.nodes, pool, target, context.policy, context.now, ran_seconds=ran)
    )
    if judged.action is not MigrationAction.MIGRATE:
        return None
    reason = f"The job migrates back to committed capacity: {judged.reason}"
    return _MigrationOutcome(
        kind="STAY",
        action=judged.action,
        reason=judged.reason,
        alternatives=judged.alternatives,
        facts=judged.facts,
        message=reason,
    )


def _migration_writes(candidate: _MigrationCase, judged: _MigrationOutcome, context: Context) -> Migration:
    job = candidate.job
    record = Decision(
        decision_id=context.ids.new("dec"),
        kind=judged.kind,
        subject=job.job_id,
        action=judged.action,
        reason=judged.reason,
        alternatives=judged.alternatives,
        facts=judged.facts.to_json(),
        policy_hash=context.policy.hash,
        mode=context.mode,
        decided_at=context.now,
    )
    entry = TimelineEntry(
        at=context.now, kind="migrating back", text=judged.message, decision_id=record.decision_id, writer=WRITER
    )
    wish = job.with_stop_request(judged.message, f"{WRITER}/home", context.now)
    writes = (
        Put(
            rows.job_row(
                job.but(stop_request=wish, reason=judged.message, is_migrating_back=True), candidate.row.version
            )
        ),
        Put(rows.decision_row(record)),
        Put(rows.timeline_row(job.job_id, entry, f"home-{job.current_attempt}")),
    )
    return Migration(job.job_id, writes, record.decision_id)


def exact_cost_text(parts: int) -> str:
    """Write a rental's cost to the micro-dollar, beside the cents that people read."""
    return f"{money.format_usd(parts)} ({parts / money.PARTS:.6f} dollars)"
