"""What one decision about quota rests on: documents that `evenkeel plan` reads, and no more of them than matter.

    quotas   the job's own tree of queues and cohorts
    jobs     who holds quota there: singly whoever could have to go for it, everybody else of a queue as one job
    job      the job itself

The same cycle runs on these as ran in the pass, for this one head, and gives the same answer.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PlainSerializer, TypeAdapter

from evenkeel.domain.decisions import packed_size
from evenkeel.domain.kueue import own
from evenkeel.domain.kueue.assignment import Progress
from evenkeel.domain.kueue.decisions import Decision, EarlierHeads, NodeFit
from evenkeel.domain.kueue.objects import (
    PODS,
    Admitted,
    Amounts,
    Cohort,
    Flavor,
    Key,
    PreemptionPolicy,
    Queue,
    Workload,
)
from evenkeel.domain.kueue.pending import PendingWorkload
from evenkeel.domain.kueue.preemption import outranks
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.setup import Declared, Profile
from evenkeel.domain.kueue.snapshot import Rules
from evenkeel.domain.kueue.why import Change, why
from evenkeel.domain.values import Value

Json = dict[str, Any]


_WRITER: TypeAdapter[Any] = TypeAdapter(Any)


def _serialized(document: Any) -> str:
    return _WRITER.dump_json(document).decode()


def _parsed(found: Any) -> Any:
    return json.loads(found) if isinstance(found, str) else found


_AS_TEXT = (PlainSerializer(_serialized, return_type=str, when_used="json"), BeforeValidator(_parsed))
StoredDocument = Annotated[Json, *_AS_TEXT]
"""A document, kept as text: a queue tries its flavors in the order in which they are written, and maps have none."""
StoredDocuments = Annotated[tuple[Json, ...], *_AS_TEXT]

MOST_BYTES = 180_000
"""Of one record as it is kept, of the 400 kB that an item may have. Beyond it, who could have to go is summed up."""
_MOST_PLAIN = 3_000_000
"""Of one record as it is read: an answer of the API holds 6 MB."""
_NEVER_PREEMPTED = 2**31 - 1
_OTHERS = "others-of-"


class ReservedQuota(Value):
    """What others were given before the job's turn in its cycle, or was kept free for them."""

    queue: str
    amounts: dict[str, dict[str, int]]
    is_in: bool


class QuotaFacts(Value):
    """The facts of one decision about quota."""

    quotas: StoredDocument
    """Queues, cohorts and flavors of the job's tree, in the short form."""
    jobs: StoredDocuments
    """Who holds quota there. `others-of-<queue>` is the sum of all that could not have to go."""
    job: StoredDocument
    rules: dict[str, Any]
    kept: tuple[ReservedQuota, ...] = ()
    """What was kept before the cycle for those who wait for machines only."""
    blocked: tuple[ReservedQuota, ...] = ()
    taken: tuple[str, ...] = ()
    """Victims of the cycle before the job's turn."""
    evicted_at: dict[str, float] = {}
    """Who stands in for whom no more than once in a while: when this job and that one last did."""
    began: tuple[dict[str, int], ...] = ()
    """Where the scan of the flavors began, by pod set: resource → index of the last that was tried before."""
    summed_holders: int = 0
    """How many holders of quota are in a sum."""
    is_cut: bool = False
    """Whether some that could have to go are in a sum all the same: too many to be kept. Then it does not replay."""


class CycleState(NamedTuple):
    """The world right before a cycle."""

    queues: Mapping[str, Queue]
    cohorts: tuple[Cohort, ...]
    flavors: Mapping[str, Flavor]
    rules: Rules
    holders: tuple[tuple[Admitted, bool], ...]
    """With whether each was asked to stop by then."""
    evicted_at: Mapping[frozenset[str], float]
    kept: tuple[tuple[str, Amounts], ...] = ()
    """(queue, amounts) that are kept for those who wait for machines only."""

    @classmethod
    def of(cls, scheduler: Scheduler, kept: Iterable[tuple[str, Amounts]] = ()) -> "CycleState":
        """Return the world as it is."""
        snapshot = scheduler.snapshot
        return cls(
            {name: queue.spec for name, queue in snapshot.queues.items()},
            scheduler.cohorts,
            snapshot.flavors,
            scheduler.rules,
            tuple((each, each.is_evicted) for queue in snapshot.queues.values() for each in queue.admitted.values()),
            dict(snapshot.evicted_at),
            tuple(kept),
        )


class DocumentCache:
    """What the claims of one pass share, written down once: its queues stay as they are, and so does who holds what."""

    def __init__(self) -> None:
        self._quotas: dict[str, Json] = {}
        self._holders: dict[tuple[str, float | None, bool], tuple[Json, int]] = {}

    def quotas(self, job: Workload, queues: Mapping[str, Queue], moment: CycleState) -> Json:
        """Return the queues of a job's tree and what belongs to them, in the short form."""
        if job.queue not in self._quotas:
            self._quotas[job.queue] = _quotas(queues, moment)
        return self._quotas[job.queue]

    def holder(self, admitted: Admitted, was_evicted: bool) -> tuple[Json, int]:
        """Return one that holds quota, in the short form, and its size."""
        name = (admitted.workload.workload_id, admitted.reserved_at, was_evicted)
        if name not in self._holders:
            document = _holder(admitted, was_evicted)
            self._holders[name] = (document, _size(document))
        return self._holders[name]


def quota_facts_of(
    document: Json, decision: Decision, moment: CycleState, scheduler: Scheduler, notes: DocumentCache
) -> QuotaFacts:
    """Reduce the world to what one decision rests on.

    Args:
        document: The job, in the short form.
        decision: What was decided.
        moment: The world when its cycle began.
        scheduler: For the shape of its trees, which stays.
        notes: Of the same scheduler's claims before.
    """
    workload = decision.workload
    root = scheduler.snapshot.queues[workload.queue].node.root
    # Stopped queues, too: nobody of theirs is admitted, and what they hold and use counts.
    names = {name for name, queue in scheduler.snapshot.queues.items() if queue.node.root is root}
    queues = {name: queue for name, queue in moment.queues.items() if name in names}
    holders = [(each, was) for each, was in moment.holders if each.workload.queue in names]
    single, summed = _split_holders(workload, holders, queues, frozenset(decision.earlier.victims))
    written = notes.quotas(workload, queues, moment)
    singly = [notes.holder(each, was) for each, was in single]
    keep = _max_single_holders(written, singly)
    is_cut = keep < len(singly)
    if is_cut:
        summed += [each for each, _ in single[keep:]]
        singly = singly[:keep]
    before = decision.earlier
    return QuotaFacts(
        quotas=written,
        jobs=(*(each for each, _ in singly), *_sum_by_queue(summed)),
        job=document,
        # How use fades says who is next, and nothing of what one who is next may have.
        rules={
            name: list(value) if isinstance(value, tuple) else value
            for name, value in moment.rules._asdict().items()
            if name != "decay"
        },
        kept=tuple(
            ReservedQuota(queue=queue, amounts=_nested(amounts), is_in=True)
            for queue, amounts in moment.kept
            if queue in names
        ),
        blocked=tuple(
            ReservedQuota(queue=queue, amounts=_nested(amounts), is_in=is_in)
            for queue, amounts, is_in in before.usage
            if queue in names
        ),
        taken=before.victims,
        evicted_at={
            other: at
            for pair, at in moment.evicted_at.items()
            if workload.workload_id in pair
            for other in pair - {workload.workload_id}
        },
        began=tuple(dict(each) for each in decision.scan_start.tried) if decision.scan_start else (),
        summed_holders=len(summed),
        is_cut=is_cut,
    )


def _max_single_holders(written: Json, singly: list[tuple[Json, int]]) -> int:
    """Return how many of those that are told singly a record can hold: as they are, or else packed."""
    size = _size(written)
    keep = 0
    while keep < len(singly) and size + singly[keep][1] <= _MOST_PLAIN:
        size += singly[keep][1]
        keep += 1
    if size <= MOST_BYTES:
        return keep
    while keep:
        size = packed_size([written, *(each for each, _ in singly[:keep])])
        if size <= MOST_BYTES:
            break
        keep = min(keep - 1, keep * MOST_BYTES * 19 // (size * 20))
    return keep


def replay_quota(claim: QuotaFacts, now: float, node_fit: NodeFit) -> Decision:
    """Run the job's turn again, alone."""
    scheduler, _ = _rebuild_scheduler(claim, node_fit)
    before = EarlierHeads(tuple((each.queue, _flat(each.amounts), each.is_in) for each in claim.blocked), claim.taken)
    return scheduler.cycle(now, before)[0]


def smallest_changes(claim: QuotaFacts, now: float) -> tuple[Change, ...]:
    """Return the smallest changes of which each alone would get the job its quota: each was tried on these facts."""
    scheduler, workload = _rebuild_scheduler(claim, None)
    scheduler.snapshot.now = now
    found = why(scheduler, workload).changes
    # Nobody can wait for a sum to end.
    return tuple(each for each in found if not any(name.startswith(_OTHERS) for name in each.jobs))


def _rebuild_scheduler(claim: QuotaFacts, node_fit: NodeFit | None) -> tuple[Scheduler, Workload]:
    declared = Declared(
        Profile.EVENKEEL, Rules(**{**claim.rules, "fair_strategies": tuple(claim.rules["fair_strategies"])})
    )
    declared.add(claim.quotas, "quotas")
    queues, cohorts, flavors = declared.everything()
    scheduler = Scheduler(queues, cohorts, flavors, declared.rules, node_fit)
    for document in claim.jobs:
        holder = declared.job(document, "jobs").admitted
        assert holder is not None
        scheduler.restore(holder)
    for each in claim.kept:
        scheduler.snapshot.queues[each.queue].node.add_all(_flat(each.amounts))
    workload = declared.job(claim.job, "job").workload
    for other, at in claim.evicted_at.items():
        scheduler.snapshot.evicted_at[frozenset((workload.workload_id, other))] = at
    began = Progress(claim.began, 0, 0, workload.shape) if claim.began else None
    scheduler.pending[workload.queue].push(PendingWorkload(workload, began))
    return scheduler, workload


# ---------------------------------------------------------------- what matters


def _ancestors(queues: Iterable[Queue], cohorts: tuple[Cohort, ...]) -> list[Cohort]:
    by_name = {cohort.name: cohort for cohort in cohorts}
    found: dict[str, Cohort] = {}
    for queue in queues:
        name = queue.cohort
        while name in by_name and name not in found:
            found[name] = by_name[name]
            name = by_name[name].parent
    # Cohorts beside the path hold quota of the tree, too.
    grown = True
    while grown:
        roots = {name for each in found.values() for name in (each.name, each.parent) if name}
        beside = [each for each in cohorts if each.name not in found and (each.parent in roots or each.name in roots)]
        found |= {each.name: each for each in beside}
        grown = bool(beside)
    return [cohort for cohort in cohorts if cohort.name in found]


def _quotas(queues: Mapping[str, Queue], moment: CycleState) -> Json:
    above = _ancestors(queues.values(), moment.cohorts)
    groups = [group for queue in queues.values() for group in queue.groups]
    groups += [group for cohort in above for group in cohort.groups]
    used = {each.flavor for group in groups for each in group.flavors}
    found = own.OwnQuotas(
        queues=tuple(own.OwnQueue.of(queue) for queue in queues.values()),
        cohorts=tuple(own.OwnCohort.of(cohort) for cohort in above),
        flavors=tuple(own.OwnFlavor.of(moment.flavors[name]) for name in sorted(used & moment.flavors.keys())),
        fair_sharing=moment.rules.fair_sharing,
    )
    return found.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _split_holders(
    workload: Workload,
    holders: Iterable[tuple[Admitted, bool]],
    queues: Mapping[str, Queue],
    taken: frozenset[str],
) -> tuple[list[tuple[Admitted, bool]], list[Admitted]]:
    """Tell those who could have to go for a job, and those who go for another already, from all others."""
    queue = queues[workload.queue]
    keys = {
        (each.flavor, resource)
        for group in queue.groups
        for each in group.flavors
        for resource in group.resources
        if resource == PODS or any(resource in pods.requests for pods in workload.pod_sets)
    }
    single, summed = [], []
    for each, was_evicted in holders:
        is_own = each.workload.queue == workload.queue
        policy = queue.preemption.within if is_own else queue.preemption.reclaim
        # Somebody in another queue may be asked to go under any policy but Never, whatever its own priority is.
        may = outranks(workload, each.workload, policy) and policy is not PreemptionPolicy.NEVER
        if each.workload.workload_id in taken or (may and not keys.isdisjoint(each.use)):
            single.append((each, was_evicted))
        else:
            summed.append(each)
    return single, summed


# ---------------------------------------------------------------- written down


def _size(document: Json) -> int:
    return len(_serialized(document))


def _holder(admitted: Admitted, was_evicted: bool) -> Json:
    workload = admitted.workload
    pods = [
        own.OwnPodSet(
            name=pod_set.name,
            count=count,
            requests={resource: own.to_quantity(resource, amount) for resource, amount in pod_set.requests.items()},
        )
        for pod_set, count in zip(workload.pod_sets, admitted.counts, strict=True)
    ]
    found = own.Job(
        name=workload.workload_id,
        queue=workload.queue,
        priority=workload.priority,
        created_at=workload.created_at,
        requeued_at=workload.requeued_at,
        pod_sets=tuple(pods),
        admitted=own.OwnAdmission(
            at=admitted.reserved_at,
            flavors=tuple(dict(each) for each in admitted.flavors),
            counts=admitted.counts,
            evicted=was_evicted,
            work_at_risk=admitted.work_at_risk,
            pinned=admitted.is_pinned,
        ),
    )
    return found.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _sum_by_queue(holders: Iterable[Admitted]) -> Iterator[Json]:
    """Write all holders of a queue as one that nobody could make go, since none of them could have been."""
    by_queue: dict[str, Amounts] = {}
    for each in holders:
        total = by_queue.setdefault(each.workload.queue, {})
        for key, amount in each.use.items():
            total[key] = total.get(key, 0) + amount
    for queue, use in sorted(by_queue.items()):
        if any(use.values()):
            yield holder_document(f"{_OTHERS}{queue}", queue, _nested(use), 1, priority=_NEVER_PREEMPTED, at=0.0)


def holder_document(
    name: str,
    queue: str,
    use: Mapping[str, Mapping[str, int]],
    pods: int,
    *,
    priority: int,
    at: float | None,
    queued_at: float = 0.0,
    is_evicted: bool = False,
    sub_queue: str = "",
    work_at_risk: float | None = None,
    is_pinned: bool = False,
) -> Json:
    """Write one that holds so much quota, in the short form: a pod set for each flavor."""
    sets: list[own.OwnPodSet] = []
    flavors: list[dict[str, str]] = []
    for flavor, amounts in use.items():
        for resources, count in (
            (sorted(amounts.keys() - {PODS}), pods),
            ([PODS] if PODS in amounts else [], amounts.get(PODS, 0)),
        ):
            if resources:
                asked = {name: own.to_quantity(name, amounts[name] // count) for name in resources if name != PODS}
                sets.append(own.OwnPodSet(name=f"{flavor}-{len(sets)}", count=count, requests=asked))
                flavors.append(dict.fromkeys(resources, flavor))
    found = own.Job(
        name=name,
        queue=queue,
        priority=priority,
        created_at=queued_at,
        pod_sets=tuple(sets),
        sub_queue=sub_queue,
        admitted=own.OwnAdmission(
            at=at, flavors=tuple(flavors), evicted=is_evicted, work_at_risk=work_at_risk, pinned=is_pinned
        ),
    )
    return found.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _nested(amounts: Mapping[Key, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (flavor, resource), amount in amounts.items():
        nested.setdefault(flavor, {})[resource] = amount
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> Amounts:
    return {(flavor, resource): amount for flavor, amounts in nested.items() for resource, amount in amounts.items()}
