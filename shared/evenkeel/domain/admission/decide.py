"""Admission: which pending jobs start now, and where.

Where no teams are set up, first come, first served on free nodes: the queue is walked in order, each job whose gang
fits on one kind of node of one pool is admitted, and the first that does not fit holds up everybody behind it who could
take those nodes, so that a large job is never starved by small ones. A job that a recovery is bringing back goes before
all others: its capacity was granted once already. Where teams share the fleet, `sharing.py` decides who is next; what
is said of a job, and how its record is decided again, stands here for both.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum

from evenkeel.domain.capacity import efa, instance_types
from evenkeel.domain.capacity.compatibility import Needs, Requirements, differences
from evenkeel.domain.capacity.pool_choices import PoolChoice, Toleration, all_tolerated, place_of
from evenkeel.domain.decisions import Alternative
from evenkeel.domain.jobs.job import Charge, Job, ResumeOption, WorkloadSeen
from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.cycle import Decision, Result
from evenkeel.domain.kueue.flavors import Mode as FlavorMode
from evenkeel.domain.nodes import Node, NodeLife
from evenkeel.domain.policy import Mode, SchedulingPolicy
from evenkeel.domain.quotas import flavor_matching
from evenkeel.domain.quotas.claims import Claim, weigh
from evenkeel.domain.quotas.spending import Limit
from evenkeel.domain.values import Instant, Sentence, Value

TAINTED = "tainted"
"""Why a machine is closed to those alone who do not tolerate its taints."""
UNHEALTHY = "unhealthy"
"""Why a node is closed that needs a repair and gets none, cordoned or not."""


class Admission(StrEnum):
    """Who decides which jobs start."""

    EVENKEEL = "evenkeel"
    KUEUE = "kueue"
    """Kueue alone: Evenkeel hands each job over, and follows."""


class Room(Value):
    """One machine as admission sees it."""

    life: NodeLife
    node_name: str
    cluster: str
    pool: str
    instance_type: str
    accelerators: int
    """Allocatable when it is in service; 0 where no node object says so yet."""
    free: int
    """Neither used by a pod nor charged to an attempt."""
    closed_because: str = ""
    """Why no pod may start on it now; empty where one may."""
    labels: dict[str, str] = {}
    """Of its node object: what flavors tell machines by."""
    taints: tuple[str, ...] = ()
    """`key=value:Effect`: those that keep pods off which do not tolerate them."""
    efa: int | None = None
    """EFA interfaces that its node object offers; None where no node object says so yet."""
    kept_for: str = ""
    """The job that it was rented for: nobody else may have it; empty where it is anybody's."""
    usable_until: Instant | None = None
    """When work must have left it; None where nothing says that it goes."""

    @property
    def is_open(self) -> bool:
        """Whether a pod may start on it now."""
        return not self.closed_because

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all uses it."""
        return self.is_open and self.free == self.accelerators


class Request(Value):
    """What one pending job asks for, reduced to what admission needs."""

    job_id: str
    submitted_at: Instant
    cluster: str
    nodes: int
    accelerators_per_node: int
    instance_types: tuple[str, ...] = ()
    not_before: Instant | None = None
    attempts: int = 0
    """Attempts so far."""
    is_recovery: bool = False
    """Whether a resume plan is due, and it gave way to nobody since: it may take spares, and goes first."""
    is_interrupted: bool = False
    """Whether its last attempt was lost and it was not preempted, for as long as a replacement may take: nodes are kept
    for it, as for a recovery, also before a resume plan is there."""
    avoid: tuple[str, ...] = ()
    """Life keys not to be used."""
    team: str = ""
    owner: str = ""
    """The principal that submitted it."""
    priority: int = 0
    queued_at: Instant | None = None
    """When it lost its place in its queue, where it did."""
    wanted: int = 0
    """Nodes that an elastic job asked for, whatever it is weighed at; 0 where it runs at one size only."""
    sizes: tuple[int, ...] = ()
    """Fewer nodes that would do, too, ascending."""
    shrinks_at: Instant | None = None
    """Until then it has no fewer nodes than it had: one that lost some gives spares a chance."""
    had: int = 0
    """Nodes of its last attempt, where it can run at several sizes; 0 where it had none."""
    takes_place: bool = False
    """Whether its recovery chose that others give way to it: where it has quota and no machines, some are stopped."""
    is_resize: bool = False
    """Whether it was stopped to change size: what it asks for was its own, or was idle."""
    is_serving: bool = False
    """Whether it is replicas of a Deployment: their pods ask for no EFA."""
    pools: tuple[PoolChoice, ...] = ()
    """Where it may run, in this order; empty = anywhere."""
    tolerations: tuple[Toleration, ...] = ()
    requires: Requirements = Requirements()
    stays_until: Instant | None = None
    """The soonest that it could leave a machine again with something saved: one that goes before is none for it. None
    where no machine is known to go."""

    @classmethod
    def of(cls, job: Job) -> "Request":
        """Return what a job asks for."""
        plan, resize = job.live_plan(), job.live_resize()
        # Who gave way takes its old place: were it first, it would take back at once what it was stopped for.
        comes_back = plan is not None and not job.is_preempted
        nodes = resize.nodes if resize else job.nodes_wanted
        return cls(
            job_id=job.job_id,
            submitted_at=job.submitted_at,
            cluster=job.cluster,
            nodes=nodes,
            wanted=job.spec.nodes if job.spec.sizes else 0,
            sizes=tuple(size for size in job.spec.sizes.legal if size < nodes) if job.spec.sizes else (),
            shrinks_at=plan.shrinks_at if plan else None,
            had=job.size if job.spec.sizes else 0,
            takes_place=comes_back and plan is not None and plan.option is ResumeOption.PREEMPT,
            is_resize=resize is not None and not plan,
            accelerators_per_node=job.spec.accelerators_per_node,
            instance_types=job.spec.instance_types,
            not_before=job.not_before,
            attempts=job.current_attempt,
            is_recovery=comes_back,
            avoid=plan.avoid if plan else (),
            team=job.spec.team,
            owner=job.owner,
            priority=job.priority,
            queued_at=job.queued_at,
            pools=job.spec.pools,
            tolerations=job.spec.tolerations,
            requires=job.spec.requires,
        )

    @property
    def place_in_queue(self) -> tuple[bool, datetime, str]:
        """Recoveries first, then by submission; the id makes the order total."""
        return (not self.goes_first, self.submitted_at, self.job_id)

    @property
    def goes_first(self) -> bool:
        """Whether its capacity was granted once already: a recovery brings it back, or it changes size."""
        return self.is_recovery or self.is_resize

    @property
    def keeps_nodes(self) -> bool:
        """Whether nodes and quota are kept for it while too few nodes are there."""
        return self.is_recovery or self.is_interrupted

    @property
    def patient_sizes(self) -> tuple[int, ...]:
        """The smaller sizes that do while spares have their time: none below what it had."""
        return tuple(size for size in self.sizes if 0 < self.had <= size)

    def at(self, nodes: int) -> "Request":
        """Return the same request for another number of nodes."""
        return self.model_copy(update={"nodes": nodes})


class Snapshot(Value):
    """All that one pass over the queue of everybody rests on."""

    rooms: tuple[Room, ...]
    pending: tuple[Request, ...]


class Action(StrEnum):
    """What a pass decides about one pending job."""

    ADMIT = "ADMIT"
    WAIT = "WAIT"
    """It is the first that does not fit now."""
    BEHIND = "BEHIND"
    """Somebody before it waits."""
    BACK_OFF = "BACK_OFF"
    """Its pause after a failure is not over; it holds up nobody."""
    NEVER_FITS = "NEVER_FITS"
    """No pool is large enough even when all of it is free; it holds up nobody."""
    PREEMPT = "PREEMPT"
    """Others are asked to stop for it, and it waits until they have."""
    NO_QUOTA = "NO_QUOTA"
    """Its team may not use more now, and nobody may be asked to stop for it."""
    ALIKE = "ALIKE"
    """One that asks for just the same waits; it holds up nobody."""
    HELD = "HELD"
    """A limit, or its queue, holds it back whatever is free; it holds up nobody."""


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
            return f"{self.pool} has {_count(self.in_fleet, 'node')} of {self.instance_type} in all"
        if self.best:
            return f"{self.pool} keeps {_count(self.kept_back, 'free node')} for recoveries"
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


class AdmissionFacts(Value):
    """All that the answer for one job rests on. The decision replays from it."""

    request: Request
    offers: tuple[Offer, ...]
    behind: str = ""
    """The job before it that waits."""
    behind_for: str = "free nodes"
    """What that one waits for."""
    alike: str = ""
    """Why the job before it waits, where it asks for just the same."""
    barred: str = ""
    """Why nobody starts now in its queue, or where it is to run."""
    local_queue: str = ""
    """Kueue's LocalQueue that it goes to, where Kueue admits."""
    limits: tuple[Limit, ...] = ()
    """What it must stay below."""
    claim: Claim | None = None
    """The quota side, where that was weighed; `offers` are then those of the flavor that was found, if one was, with
    the room that is being made."""
    way: Way | None = None
    """Where it has quota and no machines, and takes the place of others."""
    now: Instant


class AdmissionDecision(Value):
    """What to do with one pending job, and why."""

    job_id: str
    action: Action
    reason: Sentence
    """One sentence an operator could read aloud."""
    alternatives: tuple[Alternative, ...] = ()
    facts: AdmissionFacts
    pool: str = ""
    instance_type: str = ""
    nodes: tuple[NodeLife, ...] = ()
    node_names: tuple[str, ...] = ()
    use: dict[str, dict[str, int]] = {}
    """The quota that it takes: flavor → resource → amount."""
    victims: tuple[VictimOf, ...] = ()
    """Who has to stop for it, those included who were asked before."""

    @property
    def holds_up(self) -> bool:
        """Whether it blocks jobs behind it: it waits for machines that exist and that other jobs could take, too."""
        return self.action is Action.WAIT and bool(_kinds(self.facts.offers))

    def to_charge(self) -> Charge:
        """Return what an admitted job holds from now on."""
        asked = self.facts.request
        return Charge(
            job_id=self.job_id,
            attempt=asked.attempts + 1,
            team=asked.team,
            cluster=asked.cluster,
            node_names=self.node_names,
            accelerators=asked.nodes * asked.accelerators_per_node,
            instance_type=self.instance_type,
            pool=self.pool,
            admitted_at=self.facts.now,
            owner=asked.owner,
            queue=asked.team if self.use else "",
            priority=asked.priority,
            queued_at=asked.queued_at or asked.submitted_at,
            use=self.use,
        )


def rooms_of(
    nodes: Iterable[Node],
    in_use: Mapping[tuple[str, str], int],
    charges: Iterable[Charge],
    workloads: Iterable[tuple[str, WorkloadSeen]],
    unhealthy: Collection[tuple[str, str]] = (),
) -> tuple[Room, ...]:
    """Reduce the fleet to rooms, by life.

    free = allocatable - used by live pods - charged to attempts whose pod is not there yet
         <= allocatable - charged to all attempts, since a pod may end between two of these reads.

    Args:
        nodes: The joined fleet.
        in_use: Accelerators that live pods request, by (cluster, node name), foreign pods included.
        charges: What unsettled attempts hold.
        workloads: Attempts' pods, with the name of their cluster.
        unhealthy: Nodes that need a repair and get none, by (cluster, node name).
    """
    seated = {
        (cluster, pod.node_name, seen.job_id, seen.attempt)
        for cluster, seen in workloads
        for pod in seen.pods
        if pod.node_name and not pod.has_ended
    }
    charged: dict[tuple[str, str], int] = defaultdict(int)
    reserved: dict[tuple[str, str], int] = defaultdict(int)
    for charge in charges:
        for name in charge.node_names:
            each = charge.accelerators // max(len(charge.node_names), 1)
            charged[charge.cluster, name] += each
            if (charge.cluster, name, charge.job_id, charge.attempt) not in seated:
                reserved[charge.cluster, name] += each
    taken = {
        place: max(in_use.get(place, 0) + reserved[place], charged[place]) for place in {*in_use, *charged, *reserved}
    }
    return tuple(_room(node, taken, unhealthy) for node in sorted(nodes, key=lambda node: node.life.key))


def _room(node: Node, taken: Mapping[tuple[str, str], int], unhealthy: Collection[tuple[str, str]]) -> Room:
    seen = node.kubernetes
    name = seen.name if seen else ""
    place = (node.life.cluster, name)
    accelerators = seen.accelerators if seen else 0
    return Room(
        life=node.life,
        node_name=name,
        cluster=node.life.cluster,
        pool=node.pool,
        instance_type=node.provider.instance_type if node.provider else (seen.instance_type if seen else ""),
        accelerators=accelerators,
        free=max(0, accelerators - taken.get(place, 0)),
        efa=seen.efa if seen else None,
        closed_because=_closed_because(node, is_unhealthy=place in unhealthy),
        labels=seen.labels if seen else {},
        taints=seen.blocking_taints if seen else (),
    )


def _closed_because(node: Node, *, is_unhealthy: bool) -> str:
    seen = node.kubernetes
    if seen is None:
        return "not joined yet"
    if not seen.is_ready:
        return "not ready"
    if seen.is_cordoned:
        return "cordoned"
    if seen.is_awaiting_validation:
        return "awaiting validation"
    if is_unhealthy:
        return UNHEALTHY
    return "" if seen.is_schedulable else TAINTED


def admit(snapshot: Snapshot, policy: SchedulingPolicy, now: datetime) -> tuple[AdmissionDecision, ...]:
    """Decide about every pending job, in queue order. Never puts more on a node than is free there."""
    rooms = snapshot.rooms
    decisions: list[AdmissionDecision] = []
    line = Line()
    for request in sorted(snapshot.pending, key=lambda request: request.place_in_queue):
        offers = offers_for(request, rooms, policy)
        facts = AdmissionFacts(request=request, offers=offers, behind=line.before(offers), now=now)
        decision = decide(facts)
        if decision.action is Action.WAIT:
            line.waits(request.job_id, offers)
        if decision.action is Action.ADMIT:
            rooms = without_seats(rooms, request, decision.nodes)
        decisions.append(decision)
    return tuple(decisions)


class Line:
    """Who waits for machines, and thereby holds up those who could take them. Other machines are nobody's to hold."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, frozenset[tuple[str, str]]]] = []

    def waits(self, job_id: str, offers: Iterable[Offer]) -> None:
        """Let a job hold up those behind it."""
        self._waiting.append((job_id, _kinds(offers)))

    def before(self, offers: Iterable[Offer]) -> str:
        """Return the first that waits for machines that are offered to another one, too; empty where nobody does."""
        kinds = _kinds(offers)
        return next((job_id for job_id, wanted in self._waiting if wanted & kinds), "")


def _kinds(offers: Iterable[Offer]) -> frozenset[tuple[str, str]]:
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


def decide(facts: AdmissionFacts) -> AdmissionDecision:
    """Decide about one pending job. A record replays through this function alone."""
    request, offers = facts.request, facts.offers
    if request.not_before and facts.now < request.not_before:
        reason = f"Pauses until {request.not_before:%H:%M:%S} UTC after a failure."
        return _decided(facts, Action.BACK_OFF, reason)
    if facts.local_queue:
        return _decided(facts, Action.ADMIT, f"Kueue admits here: it goes to LocalQueue {facts.local_queue}.")
    if facts.barred:
        return _decided(facts, Action.HELD, facts.barred)
    for limit in facts.limits:
        if limit.holds_back:
            return _decided(facts, Action.HELD, f"Waits, whatever is free: {limit.said}.")
    if facts.alike:
        # Whoever speaks for them in a pass is among the facts: to name it here would be news for all with each pass.
        return _decided(facts, Action.ALIKE, f"As others of its queue that ask for the same: {facts.alike}")
    if facts.claim is not None:
        found = by_quota(facts, weigh(facts.claim, facts.now.timestamp(), lambda *_: why_no_seats(request, offers)))
        return made_way(found)
    if all(offer.in_fleet < request.nodes for offer in offers) and request.attempts == 0:
        largest = max((offer.in_fleet for offer in offers), default=0)
        reason = f"Can never start here: it asks for {_asked(request)}, and the largest fitting pool has {largest}."
        return _decided(facts, Action.NEVER_FITS, reason)
    if facts.behind:
        return _decided(facts, Action.BEHIND, f"Behind {facts.behind}, which waits for {facts.behind_for}.")
    said = why_no_seats(request, offers)
    if said:
        return _decided(facts, Action.WAIT, said)
    return _admitted(facts, "", {})


def hand_over(request: Request, local_queue: str, now: datetime) -> AdmissionDecision:
    """Let Kueue decide about a job: nothing of ours is weighed but the pause after a failure."""
    return decide(AdmissionFacts(request=request, offers=(), local_queue=local_queue, now=now))


def with_spares(facts: AdmissionFacts, policy: SchedulingPolicy) -> AdmissionFacts:
    """Return facts as they would be if pools kept back what this policy says: machines and quotas stay as they were."""
    if facts.request.is_recovery:
        return facts
    offers = tuple(
        offer.model_copy(update={"kept_back": policy.spare_nodes.get(offer.pool, 0)}) for offer in facts.offers
    )
    return facts.model_copy(update={"offers": offers})


def beside_kueue(request: Request, namespace: str, shown_by: str, now: datetime) -> AdmissionDecision:
    """Hold a job back whose namespace is Kueue's: of two who admit on the same machines neither keeps its limits."""
    barred = f"Kueue admits jobs in namespace {namespace} ({shown_by}): Evenkeel starts none beside it."
    return decide(AdmissionFacts(request=request, offers=(), barred=barred, now=now))


def on_unreadable_cluster(request: Request, now: datetime) -> AdmissionDecision:
    """Hold a job back whose cluster cannot be read: nobody knows which of its nodes are free."""
    barred = f"Cluster {request.cluster} cannot be read, so its free nodes are unknown. The job waits until it answers."
    return decide(AdmissionFacts(request=request, offers=(), barred=barred, now=now))


def in_anothers_namespace(request: Request, namespace: str, owner: str, now: datetime) -> AdmissionDecision:
    """Hold a job back whose namespace has become another team's: it would run beside that team's secrets."""
    barred = f"Namespace {namespace} is team {owner}'s by now: cancel the job, and submit it again."
    return decide(AdmissionFacts(request=request, offers=(), barred=barred, now=now))


def why_no_seats(request: Request, offers: Iterable[Offer]) -> str:
    """Say why no pool has room for a gang now; empty where one has."""
    weighed = tuple(offers)
    if any(offer.can_take for offer in weighed):
        return ""
    seen = "; ".join(offer.why_not(request) for offer in weighed)
    return f"Waits for {_asked(request)}: {seen or 'no node of the fleet fits'}."


def best_of(offers: Iterable[Offer]) -> Offer:
    """Return the offer that a gang takes: of the pool that it means first, of the tightest where it means several.

    The tightest, so that large free pools stay large.
    """
    fitting = (offer for offer in offers if offer.can_take)
    return min(fitting, key=lambda offer: (offer.choice, offer.fitting, offer.pool, offer.instance_type))


def _admitted(facts: AdmissionFacts, why: str, use: dict[str, dict[str, int]]) -> AdmissionDecision:
    request, chosen = facts.request, best_of(facts.offers)
    if request.wanted > request.nodes:
        why = f"Starts with {request.nodes} of {_count(request.wanted, 'node')}. {why}"
    return AdmissionDecision(
        job_id=request.job_id,
        action=Action.ADMIT,
        reason=f"{why}{chosen.pool} has {_asked(request)}.",
        alternatives=_passed_over(facts, chosen),
        facts=facts,
        pool=chosen.pool,
        instance_type=chosen.instance_type,
        nodes=chosen.best,
        node_names=chosen.names,
        use=use,
    )


def by_quota(facts: AdmissionFacts, weighed: Decision) -> AdmissionDecision:
    """Say what a turn in a cycle means for a job."""
    considered = tuple(_flavors_passed_over(weighed))
    match weighed.result:
        case Result.ADMITTED:
            use: dict[str, dict[str, int]] = {}
            for (flavor, resource), amount in weighed.assignment.use.items():
                use.setdefault(flavor, {})[resource] = amount
            admitted = _admitted(facts, f"{weighed.reason} ", use)
            return admitted.model_copy(update={"alternatives": (*admitted.alternatives, *considered)})
        case Result.PREEMPTING:
            victims = tuple(VictimOf(job_id=each.workload_id, reason=each.reason) for each in weighed.victims)
            return _decided(facts, Action.PREEMPT, weighed.reason, considered).model_copy(update={"victims": victims})
        case Result.NO_SEATS:
            reason = f"Its quota is there. {weighed.reason}"
            return _decided(facts, Action.WAIT, reason, (*_passed_over(facts, None), *considered))
        case _:
            return _decided(facts, Action.NO_QUOTA, f"{weighed.reason}{_short_of(weighed)}", considered)


def made_way(decided: AdmissionDecision) -> AdmissionDecision:
    """Return an answer with others stopped for it, where its quota is there and they make the machines free."""
    way = decided.facts.way
    if decided.action is not Action.WAIT or way is None or why_no_seats(decided.facts.request, way.offers):
        return decided
    names = ", ".join(victim.job_id for victim in way.victims)
    reason = f"Its quota is there, and its recovery takes the place of others. Waits until {names} has stopped."
    return decided.model_copy(update={"action": Action.PREEMPT, "reason": reason, "victims": way.victims})


def _short_of(weighed: Decision) -> str:
    """Say what the last flavor that was looked at was short of."""
    for attempts in weighed.assignment.attempts:
        for attempt in reversed(attempts):
            for each in attempt.compared:
                if each.mode is not FlavorMode.FIT:
                    wanted, free, most = (
                        quantities.text(each.resource, max(0, amount))
                        for amount in (each.wanted, each.available, each.potential)
                    )
                    return f" It asks for {wanted} {each.resource} of {attempt.flavor}: {free} free, {most} at most."
            if attempt.why:
                whole = f"{attempt.why[:1].upper()}{attempt.why[1:]}."
                return f" {attempt.flavor}: {attempt.why}" if attempt.flavor else f" {whole}"
    return ""


def _flavors_passed_over(weighed: Decision) -> Iterator[Alternative]:
    given = {flavor for flavors in weighed.assignment.flavors for flavor in flavors.values()}
    for attempts in weighed.assignment.attempts:
        for attempt in attempts:
            if attempt.flavor in given:
                continue
            compared = "; ".join(
                f"{quantities.text(each.resource, each.wanted)} {each.resource} asked, "
                f"{quantities.text(each.resource, max(0, each.available))} free"
                for each in attempt.compared
            )
            why = attempt.why or compared or attempt.mode.name
            yield Alternative(option=f"flavor {attempt.flavor}", why_not=f"{why.rstrip('.')}.")


def said_of(decided: AdmissionDecision, mode: Mode) -> str:
    """Return the reason as it is recorded: in any mode but `act` nothing is done, and that is said."""
    if mode is Mode.ACT:
        return decided.reason
    if decided.action is Action.ADMIT:
        return f"Mode is {mode}: it would start, but nothing is done. {decided.reason}"
    if decided.action is Action.PREEMPT:
        return f"Mode is {mode}: others would be asked to stop, but nothing is done. {decided.reason}"
    return decided.reason


def _decided(
    facts: AdmissionFacts, action: Action, reason: str, alternatives: tuple[Alternative, ...] | None = None
) -> AdmissionDecision:
    weighed = alternatives
    if weighed is None:
        weighed = _passed_over(facts, None) if action in (Action.WAIT, Action.NEVER_FITS) else ()
    return AdmissionDecision(
        job_id=facts.request.job_id, action=action, reason=reason, alternatives=weighed, facts=facts
    )


_MORE_FREE = "It has more free nodes, which a larger job may need."


def _passed_over(facts: AdmissionFacts, chosen: Offer | None) -> tuple[Alternative, ...]:
    return tuple(
        Alternative(
            option=f"{offer.pool} ({offer.instance_type})",
            why_not=("It is meant after." if chosen and offer.choice > chosen.choice else _MORE_FREE)
            if offer.can_take
            else f"{offer.why_not(facts.request)}.",
        )
        for offer in facts.offers
        if offer is not chosen
    )


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
    return not differences(Needs(**dict(requires)), flavor_matching.place_on(instance_type, instance_types.shipped()))


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


def _asked(request: Request) -> str:
    nodes = _count(request.nodes, "node")
    if not request.accelerators_per_node:
        return nodes
    return f"{nodes} with {_count(request.accelerators_per_node, 'free accelerator')} each"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
