"""The part of a scheduling pass that rents nodes for replicas of a Deployment: `domain/renting/serving.py` decides.

A rental, its reason and its record are one commit, held to the tree's version as admissions are: so caps hold, whoever
else runs a pass. A crash after it leaves a rental without its workflow, which the sweeper starts.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.admission.request import Request
from evenkeel.domain.capacity.node_capacity import Room
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.external.policy import ServingWorkload
from evenkeel.domain.external.serving import Short, holder_id, replicas_of
from evenkeel.domain.external.workloads import ForeignPod
from evenkeel.domain.health.incidents import TimelineEntry
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import PlacementNote
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.renting.candidates import Conditions
from evenkeel.domain.renting.demand import Placement, PlacementDecision
from evenkeel.domain.renting.placement import placement_said
from evenkeel.domain.renting.rental import NOBODYS, Offer, Rental, RentalState, Served, counted, note_key
from evenkeel.domain.renting.serving import ServingMemory, budgets_after, hold_of, nodes_for, pool_named, room_left
from evenkeel.ports import Ledger, Put, Refused, Workflows, Write, get_all
from evenkeel.services.context import Desk, Tree
from evenkeel.services.rentals import rentals
from evenkeel.services.storage import batches, rows

WRITER = "rent_for_serving"
_ROOM = PlacementNote(key="ROOM", text="Committed nodes have room for its replicas, or will once others have made it.")


class Spike(NamedTuple):
    """One Deployment whose replicas wait, or of which it was said last that they do."""

    registered: ServingWorkload
    memory: ServingMemory
    version: int
    """Of its row."""
    per_replica: int = 0
    decisions: tuple[PlacementDecision, ...] = ()
    """One for each node that is to be rented; or one that says why none is."""
    said: PlacementNote | None = None
    """Where nothing is decided: what is said instead."""

    @property
    def wished(self) -> tuple[PlacementDecision, ...]:
        """What is to be rented."""
        return tuple(each for each in self.decisions if each.action is Placement.RENT)


def covered(
    registered: Iterable[ServingWorkload],
    rented: rentals.Rented,
    pods: Mapping[str, Sequence[ForeignPod]],
    rooms: Iterable[Room],
) -> dict[str, int]:
    """Return, by the id of a Deployment, for how many more of its replicas there are rented nodes, or will be."""
    nobodys = {(room.cluster, room.node_name): room.pool for room in rooms if room.kept_for == NOBODYS}
    found = {}
    for each in registered:
        if each.rents_from:
            name, there = holder_id(each), pods.get(each.cluster, ())
            left = room_left([rental for rental in rented.rentals if rental.job_id == name], there)
            # Some may stand on a node that is not handed over yet: they need no other.
            landed = sum(
                nobodys.get((each.cluster, pod.node_name)) in each.rents_from
                for pod in replicas_of(each.namespace, each.name, there)
            )
            found[name] = max(0, left - landed)
    return found


# ---------------------------------------------------------------- decide


class Seen(NamedTuple):
    """What a pass knows of those who serve."""

    short: tuple[Short, ...]
    covered: Mapping[str, int]
    """Replicas that rented nodes will take."""
    demands: tuple[Request, ...]
    """What the others ask for."""
    helped: Mapping[str, int]
    """`cluster/demand` → committed nodes for it."""


def weigh(
    seen: Seen,
    rooms: tuple[Room, ...],
    charges: tuple[Charge, ...],
    rented: rentals.Rented,
    ledger: Ledger,
    policy: Policy,
    now: datetime,
) -> tuple[Spike, ...]:
    """Return what is to be rented for replicas that no committed node will take, the most urgent first."""
    registered = {holder_id(each): each for each in policy.scheduling.serving if each.rents_from}
    if not registered:
        return ()
    stored = get_all(ledger, map(rows.serving_key, registered))
    memories = {
        name: (rows.read(row, ServingMemory), row.version)
        if (row := stored.get(rows.serving_key(name)))
        else (ServingMemory.of(each), 0)
        for name, each in registered.items()
    }
    short = {holder_id(each.registered): each for each in seen.short}
    places = {f"{demand.cluster}/{demand.job_id}": place for place, demand in enumerate(seen.demands)}
    labels = {name: f"{each.cluster}/{each.label}" for name, each in registered.items()}
    common: Conditions | None = None
    left, spikes = policy.burst.rentals_per_pass, []
    for name in sorted(registered, key=lambda each: (places.get(labels[each], len(places)), each)):
        each, (memory, version) = registered[name], memories[name]
        spike = Spike(each, memory, version)
        waiting = len(short[name].waiting) - seen.covered.get(name, 0) if name in short else 0
        if waiting > 0:
            demand = seen.demands[places[labels[name]]]
            shared = max(1, demand.accelerators_per_node // short[name].per_replica)
            waiting -= shared * seen.helped.get(labels[name], 0)
        if waiting > 0:
            common = common or _conditions(rooms, charges, rented, ledger, now)
            decisions = nodes_for(short[name], waiting, common, memory, policy, most=left)
            spike = spike._replace(decisions=decisions, per_replica=short[name].per_replica)
            left -= len(spike.wished)
            common = common.but(
                holds=(*common.holds, *(hold_of(one, policy) for one in spike.wished)),
                budgets_left=budgets_after(common.budgets_left, spike.wished),
            )
        elif name in short and not seen.covered.get(name):
            spike = spike._replace(said=_ROOM)
        if spike.decisions or spike.said or (memory.said and name not in short):
            spikes.append(spike)
    return tuple(spikes)


def _conditions(
    rooms: tuple[Room, ...], charges: tuple[Charge, ...], rented: rentals.Rented, ledger: Ledger, now: datetime
) -> Conditions:
    row = ledger.get(rows.shortages_key())
    return Conditions(
        rooms=rooms,
        charges=charges,
        classes=rentals.classes_of(ledger, charges),
        queue=(),
        holds=rented.holds,
        budgets_left=dict(rented.budgets_left),
        shortages=rows.read(row, Shortages) if row else Shortages(),
        now=now,
    )


def beside(rented: rentals.Rented, spikes: Iterable[Spike], policy: Policy) -> tuple[rentals.Rented, int]:
    """Return what is rented with what is about to be, for whoever is weighed after, and how many nodes those are."""
    wished = [each for spike in spikes for each in spike.wished]
    holds = (*rented.holds, *(hold_of(each, policy) for each in wished))
    return rented._replace(holds=holds, budgets_left=budgets_after(rented.budgets_left, wished)), len(wished)


# ---------------------------------------------------------------- act and record


def carry_out(spikes: Sequence[Spike], tree: Tree, workflows: Workflows, desk: Desk) -> None:
    """Begin the rentals, and say once what is done or why nothing is; in any mode but `act` say it alone.

    Idempotent: yes, each commit is conditional on the tree's and the Deployment's versions; what is rented counts as
    room in the next pass.
    """
    for each in spikes:
        try:
            if not each.wished or desk.mode is not Mode.ACT:
                _say(each, desk)
                continue
            spike = each
            for decided in each.wished:
                spike = _begin(spike, decided, tree, workflows, desk)
        except Refused as refused:
            batches.note_refusal(desk.telemetry, each.memory.holder_id, refused)


def _begin(spike: Spike, decided: PlacementDecision, tree: Tree, workflows: Workflows, desk: Desk) -> Spike:
    """Write one rental and start its workflow; return the Deployment as it is remembered then."""
    each, memory, now = spike.registered, spike.memory, desk.now
    burst = desk.policy.burst
    pool = pool_named(decided.pool, desk.policy)
    record = rentals.record_of(decided, desk.ids.new("dec"), desk.policy, desk.mode, now)
    reason = f"{counted(1, pool.name)} rented for it. {decided.reason}"
    rental = Rental(
        job_id=memory.holder_id,
        number=memory.rentals + 1,
        serves=Served(namespace=each.namespace, name=each.name, accelerators_per_replica=spike.per_replica),
        team=each.team,
        namespace=burst.capacity_pod_namespace,
        state=RentalState.OPENING,
        reason=decided.reason,
        nodes=1,
        offers=(Offer.of(pool, now),),
        begun_at=now,
        ready_by=now + timedelta(seconds=burst.ready_seconds),
        due_at=now + timedelta(seconds=each.rented_seconds) if each.rented_seconds else None,
        decision_id=record.decision_id,
        expected_parts=decided.row.rent_parts if decided.row else 0,
    )
    entry = TimelineEntry(at=now, kind="rented", text=reason, decision_id=record.decision_id, writer=WRITER)
    note = PlacementNote(key=_key(decided), text=reason, decision_id=record.decision_id)
    remembered = memory.but(rentals=rental.number, said=note)
    desk.ledger.commit(
        tree.put(tree.memory),
        Put(rows.rental_hold_row(rental, 0)),
        Put(rows.rental_row(rental, 0)),
        Put(rows.serving_row(remembered, spike.version)),
        Put(rows.decision_row(record)),
        Put(rows.timeline_row(rental.job_id, entry, f"rented-{rental.number}")),
        token=record.decision_id,
    )
    tree.raised(tree.memory)
    desk.telemetry.count("RentalsBegun")
    desk.telemetry.info("A node is rented for a Deployment", job_id=each.label, rental=rental.name, pool=pool.name)
    rentals.start(rental, workflows, desk.telemetry)
    return spike._replace(memory=remembered, version=spike.version + 1)


def _say(spike: Spike, desk: Desk) -> None:
    """Write down what is decided, with its record, where that is news; that nobody waits any more, where one did."""
    note, writes = _noted(spike, desk)
    if note != spike.memory.said:
        desk.ledger.commit(Put(rows.serving_row(spike.memory.but(said=note), spike.version)), *writes)


def _noted(spike: Spike, desk: Desk) -> tuple[PlacementNote | None, tuple[Write, ...]]:
    before = spike.memory.said
    if not spike.decisions:
        return spike.said, ()
    decided = spike.decisions[0]
    key = _key(decided)
    if desk.mode is not Mode.ACT:
        key = f"{key}/{desk.mode}"
    if before and before.key == key:
        return before, ()
    record = rentals.record_of(decided, desk.ids.new("dec"), desk.policy, desk.mode, desk.now)
    text = placement_said(decided, desk.mode)
    return PlacementNote(key=key, text=text, decision_id=record.decision_id), (Put(rows.decision_row(record)),)


def _key(decided: PlacementDecision) -> str:
    return note_key(decided.action, decided.pool, {row.pool: row.why_not for row in decided.table})
