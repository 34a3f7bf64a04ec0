"""The part of a scheduling pass that rents nodes for replicas of a Deployment: `domain/renting/serving.py` decides.

A rental, its reason and its record are one commit, held to the tree's version as admissions are: so caps hold, whoever
else runs a pass. A crash after it leaves a rental without its workflow, which the sweeper starts.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from evenkeel.domain.admission.request import AdmissionRequest
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.external.policy import ServingWorkload
from evenkeel.domain.external.serving import ReplicaShortfall, holder_id, replicas_of
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.health.incidents import TimelineEntry
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import PlacementNote
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.renting.candidates import PlacementContext
from evenkeel.domain.renting.demand import PlacementAction, PlacementDecision
from evenkeel.domain.renting.placement import recorded_placement_reason
from evenkeel.domain.renting.rental import (
    UNASSIGNED,
    Rental,
    RentalOffer,
    RentalState,
    ServingTarget,
    nodes_subject,
    note_key,
)
from evenkeel.domain.renting.serving import (
    ServingState,
    allocation_of,
    budgets_after_rentals,
    decide_serving_rentals,
    free_replica_slots,
    pool_by_name,
)
from evenkeel.ports import Put, Refused, Write, get_all
from evenkeel.services.context import Context, QuotaTreeVersion
from evenkeel.services.rentals import rentals
from evenkeel.services.storage import batches, rows

WRITER = "rent_for_serving"
_FITS_COMMITTED = PlacementNote(
    key="ROOM", text="Committed nodes can run its replicas now, or after other jobs have stopped or shrunk."
)


class ServingRentalPlan(NamedTuple):
    """One Deployment whose replicas wait, or of which it was said last that they do."""

    registered: ServingWorkload
    memory: ServingState
    version: int
    """Of its row."""
    per_replica: int = 0
    decisions: tuple[PlacementDecision, ...] = ()
    """One for each node that is to be rented; or one that says why none is."""
    last_note: PlacementNote | None = None
    """Where nothing is decided: what is said instead."""

    @property
    def to_rent(self) -> tuple[PlacementDecision, ...]:
        """What is to be rented."""
        return tuple(each for each in self.decisions if each.action is PlacementAction.RENT)


def satisfied_replicas(
    registered: Iterable[ServingWorkload],
    rented: rentals.RentalBook,
    pods: Mapping[str, Sequence[UnmanagedPod]],
    capacities: Iterable[NodeCapacity],
) -> dict[str, int]:
    """Return, by the id of a Deployment, for how many more of its replicas there are rented nodes, or will be."""
    nobodys = {
        (capacity.cluster, capacity.node_name): capacity.pool
        for capacity in capacities
        if capacity.reserved_for == UNASSIGNED
    }
    found = {}
    for each in registered:
        if each.rents_from:
            name, there = holder_id(each), pods.get(each.cluster, ())
            left = free_replica_slots([rental for rental in rented.rentals if rental.job_id == name], there)
            # Some may stand on a node that is not handed over yet: they need no other.
            landed = sum(
                nobodys.get((each.cluster, pod.node_name)) in each.rents_from
                for pod in replicas_of(each.namespace, each.name, there)
            )
            found[name] = max(0, left - landed)
    return found


# ---------------------------------------------------------------- decide


class ServingDemand(NamedTuple):
    """What a pass knows of those who serve."""

    short: tuple[ReplicaShortfall, ...]
    satisfied_replicas: Mapping[str, int]
    """Replicas that rented nodes will take."""
    demands: tuple[AdmissionRequest, ...]
    """What the others ask for."""
    satisfied_demands: Mapping[str, int]
    """`cluster/demand` → committed nodes for it."""


def plan_rentals(
    seen: ServingDemand,
    capacities: tuple[NodeCapacity, ...],
    charges: tuple[Charge, ...],
    rented: rentals.RentalBook,
    context: Context,
) -> tuple[ServingRentalPlan, ...]:
    """Return what is to be rented for replicas that no committed node will take, the most urgent first."""
    registered = {holder_id(each): each for each in context.policy.scheduling.serving if each.rents_from}
    if not registered:
        return ()
    stored = get_all(context.ledger, map(rows.serving_key, registered))
    memories = {
        name: (rows.read(row, ServingState), row.version)
        if (row := stored.get(rows.serving_key(name)))
        else (ServingState.of(each), 0)
        for name, each in registered.items()
    }
    short = {holder_id(each.registered): each for each in seen.short}
    places = {f"{demand.cluster}/{demand.job_id}": place for place, demand in enumerate(seen.demands)}
    labels = {name: f"{each.cluster}/{each.label}" for name, each in registered.items()}
    common: PlacementContext | None = None
    left, serving_rental_plans = context.policy.burst.rentals_per_cycle, []
    for name in sorted(registered, key=lambda each: (places.get(labels[each], len(places)), each)):
        each, (memory, version) = registered[name], memories[name]
        rental_plan = ServingRentalPlan(each, memory, version)
        waiting = len(short[name].waiting) - seen.satisfied_replicas.get(name, 0) if name in short else 0
        if waiting > 0:
            demand = seen.demands[places[labels[name]]]
            shared = max(1, demand.accelerators_per_node // short[name].per_replica)
            waiting -= shared * seen.satisfied_demands.get(labels[name], 0)
        if waiting > 0:
            common = common or _placement_context(capacities, charges, rented, context)
            decisions = decide_serving_rentals(short[name], waiting, common, memory, context.policy, most=left)
            rental_plan = rental_plan._replace(decisions=decisions, per_replica=short[name].per_replica)
            left -= len(rental_plan.to_rent)
            common = common.but(
                holds=(*common.holds, *(allocation_of(one, context.policy) for one in rental_plan.to_rent)),
                budgets_left=budgets_after_rentals(common.budgets_left, rental_plan.to_rent),
            )
        elif name in short and not seen.satisfied_replicas.get(name):
            rental_plan = rental_plan._replace(last_note=_FITS_COMMITTED)
        if rental_plan.decisions or rental_plan.last_note or (memory.last_note and name not in short):
            serving_rental_plans.append(rental_plan)
    return tuple(serving_rental_plans)


def _placement_context(
    capacities: tuple[NodeCapacity, ...], charges: tuple[Charge, ...], rented: rentals.RentalBook, context: Context
) -> PlacementContext:
    row = context.ledger.get(rows.shortages_key())
    return PlacementContext(
        capacities=capacities,
        charges=charges,
        classes=rentals.priority_classes_of(context.ledger, charges),
        queue=(),
        holds=rented.holds,
        budgets_left=dict(rented.budgets_left),
        shortages=rows.read(row, Shortages) if row else Shortages(),
        now=context.now,
    )


def with_planned_rentals(
    rented: rentals.RentalBook, serving_rental_plans: Iterable[ServingRentalPlan], policy: Policy
) -> tuple[rentals.RentalBook, int]:
    """Return what is rented with what is about to be, for whoever is weighed after, and how many nodes those are."""
    to_rent = [each for rental_plan in serving_rental_plans for each in rental_plan.to_rent]
    holds = (*rented.holds, *(allocation_of(each, policy) for each in to_rent))
    return rented._replace(holds=holds, budgets_left=budgets_after_rentals(rented.budgets_left, to_rent)), len(to_rent)


# ---------------------------------------------------------------- act and record


def carry_out(
    serving_rental_plans: Sequence[ServingRentalPlan],
    tree: QuotaTreeVersion,
    context: Context,
) -> None:
    """Begin the rentals, and say once what is done or why nothing is; in any mode but `act` say it alone.

    Idempotent: yes, each commit is conditional on the tree's and the Deployment's versions; what is rented counts as
    room in the next pass.
    """
    for each in serving_rental_plans:
        try:
            if not each.to_rent or context.mode is not Mode.ACT:
                _record_note(each, context)
                continue
            rental_plan = each
            for decided in each.to_rent:
                rental_plan = _begin(rental_plan, decided, tree, context)
        except Refused as refused:
            batches.note_refusal(context.telemetry, each.memory.holder_id, refused)


def _begin(
    rental_plan: ServingRentalPlan,
    decided: PlacementDecision,
    tree: QuotaTreeVersion,
    context: Context,
) -> ServingRentalPlan:
    """Write one rental and start its workflow; return the Deployment as it is remembered then."""
    each, memory, now = rental_plan.registered, rental_plan.memory, context.now
    burst = context.policy.burst
    pool = pool_by_name(decided.pool, context.policy)
    record = rentals.record_of(decided, context.ids.new("dec"), context)
    reason = f"{nodes_subject(1, pool.name)} rented for the Deployment. {decided.reason}"
    rental = Rental(
        job_id=memory.holder_id,
        number=memory.rentals + 1,
        serving_target=ServingTarget(
            namespace=each.namespace, name=each.name, accelerators_per_replica=rental_plan.per_replica
        ),
        team=each.team,
        namespace=burst.capacity_pod_namespace,
        state=RentalState.OPENING,
        reason=decided.reason,
        nodes=1,
        offers=(RentalOffer.of(pool, now),),
        begun_at=now,
        ready_by=now + timedelta(seconds=burst.ready_seconds),
        due_at=now + timedelta(seconds=each.rented_seconds) if each.rented_seconds else None,
        decision_id=record.decision_id,
        expected_parts=decided.row.rent_parts if decided.row else 0,
    )
    entry = TimelineEntry(at=now, kind="rented", text=reason, decision_id=record.decision_id, writer=WRITER)
    note = PlacementNote(key=_key(decided), text=reason, decision_id=record.decision_id)
    remembered = memory.but(rentals=rental.number, last_note=note)
    context.ledger.commit(
        tree.put(tree.memory),
        Put(rows.rental_allocation_row(rental, 0)),
        Put(rows.rental_row(rental, 0)),
        Put(rows.serving_row(remembered, rental_plan.version)),
        Put(rows.decision_row(record)),
        Put(rows.timeline_row(rental.job_id, entry, f"rented-{rental.number}")),
        token=record.decision_id,
    )
    tree.raised(tree.memory)
    context.telemetry.count("RentalsStarted")
    context.telemetry.info("A node is rented for a Deployment", job_id=each.label, rental=rental.name, pool=pool.name)
    rentals.start(rental, context)
    return rental_plan._replace(memory=remembered, version=rental_plan.version + 1)


def _record_note(rental_plan: ServingRentalPlan, context: Context) -> None:
    """Write down what is decided, with its record, where that is news; that nobody waits any more, where one did."""
    note, writes = _note(rental_plan, context)
    if note != rental_plan.memory.last_note:
        context.ledger.commit(
            Put(rows.serving_row(rental_plan.memory.but(last_note=note), rental_plan.version)), *writes
        )


def _note(rental_plan: ServingRentalPlan, context: Context) -> tuple[PlacementNote | None, tuple[Write, ...]]:
    before = rental_plan.memory.last_note
    if not rental_plan.decisions:
        return rental_plan.last_note, ()
    decided = rental_plan.decisions[0]
    key = _key(decided)
    if context.mode is not Mode.ACT:
        key = f"{key}/{context.mode}"
    if before and before.key == key:
        return before, ()
    record = rentals.record_of(decided, context.ids.new("dec"), context)
    text = recorded_placement_reason(decided, context.mode)
    return PlacementNote(key=key, text=text, decision_id=record.decision_id), (Put(rows.decision_row(record)),)


def _key(decided: PlacementDecision) -> str:
    return note_key(decided.action, decided.pool, {row.pool: row.why_not for row in decided.table})
