"""Where a job could start: nodes by pool, and the machines of preemptable jobs."""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.admission.request import Request
from evenkeel.domain.capacity import compatibility, efa, instance_types
from evenkeel.domain.capacity.compatibility import Needs, Requirements, differences
from evenkeel.domain.capacity.node_capacity import TAINTED, Room
from evenkeel.domain.capacity.pool_choices import all_tolerated, place_of
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.values import Value


class Offer(Value):
    """What one kind of node in one pool could give to a gang."""

    pool: str
    instance_type: str
    in_fleet: int
    """Machines of this kind, in whatever state."""
    leaving: int = 0
    """How many of those go before the gang could have saved there: they are nothing to wait for."""
    fitting: int
    """Machines with room for one pod now."""
    best: tuple[NodeLife, ...] = ()
    """Those that the gang would take; none where too few fit."""
    names: tuple[str, ...] = ()
    """Their node names, in the same order."""
    empty: int = 0
    """Machines that are wholly free."""
    empty_taken: int = 0
    """How many of those the gang would take."""
    kept_back: int = 0
    """Wholly free machines that must be left over: spares, unless this is a recovery."""
    closed: dict[str, int] = {}
    """How many are out, by reason."""
    choice: int = 0
    """Its place among the pools that the gang means; the first is taken where several fit."""

    @property
    def can_take(self) -> bool:
        """Whether the gang fits now."""
        return bool(self.best) and not self.breaks_spares

    @property
    def breaks_spares(self) -> bool:
        """Whether taking it would leave fewer wholly free machines than are kept back."""
        return self.empty_taken > 0 and self.empty - self.empty_taken < self.kept_back

    def why_not(self, request: Request) -> str:
        """Say why the gang does not fit now, in a few words."""
        if self.in_fleet < request.nodes:
            return f"{self.pool} has {count_of(self.in_fleet, 'node')} of {self.instance_type} in all"
        if self.best:
            return f"{self.pool} keeps {count_of(self.kept_back, 'free node')} for recoveries"
        out = ", ".join(f"{count} {reason}" for reason, count in sorted(self.closed.items()))
        text = f"{self.pool} has {self.fitting} of them"
        return f"{text} ({out})" if out else text


class VictimOf(Value):
    """Somebody who has to stop for a job."""

    job_id: str
    reason: str
    """Kueue's word for it: `InClusterQueue`, `InCohortReclamation`, …"""


class Way(Value):
    """How machines are made free for one that has quota: as few go as will do, of those whom its queue may have go."""

    victims: tuple[VictimOf, ...]
    offers: tuple[Offer, ...]
    """What there is once they have stopped."""


def pool_kinds(offers: Iterable[Offer]) -> frozenset[tuple[str, str]]:
    return frozenset((offer.pool, offer.instance_type) for offer in offers if offer.leaving < offer.in_fleet)


def without_seats(rooms: Iterable[Room], request: Request, lives: Iterable[NodeLife]) -> tuple[Room, ...]:
    """Return the rooms after a job has taken its seats."""
    taken = {life.instance_id: life for life in lives}
    return tuple(
        room.model_copy(update={"free": room.free - request.accelerators_per_node})
        if taken.get(room.life.instance_id) == room.life
        else room
        for room in rooms
    )


def why_no_seats(request: Request, offers: Iterable[Offer]) -> str:
    """Say why no pool has room for a gang now; empty where one has."""
    weighed = tuple(offers)
    if any(offer.can_take for offer in weighed):
        return ""
    seen = "; ".join(offer.why_not(request) for offer in weighed)
    return f"Waits for {describe_request(request)}: {seen or 'no node of the fleet fits'}."


def best_of(offers: Iterable[Offer]) -> Offer:
    """Return the offer that a gang takes: of the pool that it means first, of the tightest where it means several.

    The tightest, so that large free pools stay large.
    """
    fitting = (offer for offer in offers if offer.can_take)
    return min(fitting, key=lambda offer: (offer.choice, offer.fitting, offer.pool, offer.instance_type))


def offers_for(
    request: Request, rooms: Iterable[Room], policy: SchedulingPolicy, is_meant: Callable[[Room], bool] | None = None
) -> tuple[Offer, ...]:
    """Return what each kind of node in each pool could give to a gang.

    Args:
        request: What it asks for.
        rooms: The machines.
        policy: Spares.
        is_meant: Which machines count at all; without it all do.
    """
    kinds: dict[tuple[str, str], list[Room]] = defaultdict(list)
    choices: dict[tuple[str, str], int] = {}
    is_choosy = bool(request.pools) or request.requires != _NOTHING
    for room in _kept_or_common(request, rooms):
        if is_meant is not None and not is_meant(room):
            continue
        choice = _choice_of(request, room) if is_choosy else 0
        if choice is None or (request.requires.fabric and policy.efa_interfaces.get(room.pool) == 0):
            continue
        fits_kind = not request.instance_types or room.instance_type in request.instance_types
        is_unknown = not room.accelerators and not room.is_open
        large_enough = is_unknown or room.accelerators >= request.accelerators_per_node
        if room.cluster == request.cluster and fits_kind and large_enough:
            kind = (room.pool, room.instance_type)
            kinds[kind].append(room)
            choices[kind] = min(choice, choices.get(kind, choice))
    return tuple(
        _offer(request, pool, instance_type, kinds[pool, instance_type], policy, choices[pool, instance_type])
        for pool, instance_type in sorted(kinds)
    )


def _kept_or_common(request: Request, rooms: Iterable[Room]) -> Iterable[Room]:
    """Return the machines that a job may be offered: those rented for it, where they are enough; else nobody's."""
    everything = tuple(rooms)
    kept = [room for room in everything if room.kept_for]
    if not kept:
        return everything
    own = [room for room in kept if room.kept_for == request.job_id]
    fitting = [
        room
        for room in own
        if is_open_to(request, room)
        and room.free >= request.accelerators_per_node
        and room.life.key not in request.avoid
    ]
    if own and len(fitting) >= request.nodes:
        return own
    return [room for room in everything if not room.kept_for]


_NOTHING = Requirements()


def _choice_of(request: Request, room: Room) -> int | None:
    """Return the place of a machine among those that a job means; None where it means others, or needs them.

    What was rented for it was weighed before it was rented: that needs no label, and no entry in the catalogue.
    """
    if room.kept_for and room.kept_for == request.job_id:
        return 0
    return place_of(request.pools, room.pool, room.labels) if _suits(request.requires, room.instance_type) else None


@functools.lru_cache(maxsize=1024)
def _suits(requires: Requirements, instance_type: str) -> bool:
    """Whether a job would run on a machine of a type as it says that it must."""
    return not differences(Needs(**dict(requires)), compatibility.place_on(instance_type, instance_types.shipped()))


def lasts_for(request: Request, room: Room) -> bool:
    """Whether a machine stays for as long as it has to in order to be of use to a job."""
    return not (room.usable_until and request.stays_until and request.stays_until > room.usable_until)


def is_open_to(request: Request, room: Room) -> bool:
    """Whether a pod of a job may start on a machine now: taints that it tolerates keep it off no more."""
    if room.closed_because == TAINTED and request.tolerations:
        return all_tolerated(room.taints, request.tolerations)
    return room.is_open


def lacks_efa(request: Request, room: Room, policy: SchedulingPolicy) -> str:
    """Return what a machine lacks of the EFA interfaces that each pod of a job asks for; empty where it lacks none."""
    if room.efa is None or request.nodes < 2 or request.is_serving:
        return ""
    machine = efa.Machine(room.pool, room.instance_type, room.accelerators, room.efa)
    asked = efa.interfaces_per_pod(machine, request.nodes, request.accelerators_per_node, policy.efa_interfaces)
    return f"offering {room.efa} of {asked} EFA interfaces" if room.efa < asked else ""


def _offer(
    request: Request, pool: str, instance_type: str, rooms: list[Room], policy: SchedulingPolicy, choice: int
) -> Offer:
    closed: Counter[str] = Counter()
    fits: list[Room] = []
    leaving = 0
    for room in rooms:
        lasts = lasts_for(request, room) if room.usable_until else True
        leaving += not lasts
        if room.closed_because and not is_open_to(request, room):
            closed[room.closed_because] += 1
        elif not lasts:
            closed[f"to be left by {room.usable_until:%d %b %H:%M} UTC"] += 1
        elif request.avoid and room.life.key in request.avoid:
            closed["to be avoided"] += 1
        elif room.free < request.accelerators_per_node:
            closed["in use"] += 1
        elif lacking := lacks_efa(request, room, policy):
            closed[lacking] += 1
        else:
            fits.append(room)
    # The fullest node that still has room first, so that wholly free nodes stay free for gangs that need them.
    fits.sort(key=lambda room: (room.free, room.node_name))
    best = fits[: request.nodes] if len(fits) >= request.nodes else []
    return Offer(
        pool=pool,
        instance_type=instance_type,
        in_fleet=len(rooms),
        leaving=leaving,
        fitting=len(fits),
        best=tuple(room.life for room in best),
        names=tuple(room.node_name for room in best),
        empty=sum(room.is_empty for room in rooms),
        empty_taken=sum(room.is_empty for room in best),
        kept_back=0 if request.is_recovery else policy.spare_nodes.get(pool, 0),
        closed=dict(closed),
        choice=choice,
    )


def describe_request(request: Request) -> str:
    nodes = count_of(request.nodes, "node")
    if not request.accelerators_per_node:
        return nodes
    return f"{nodes} with {count_of(request.accelerators_per_node, 'free accelerator')} each"


def count_of(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
