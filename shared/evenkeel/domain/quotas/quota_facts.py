"""The facts of a decision about quota, reduced to what the decision depends on.

    quotas   the queues and cohorts of the job's tree
    jobs     the holders of quota in that tree, one by one if they could be preempted; else one sum for each queue
    job      the job itself

They are documents that `evenkeel plan` reads. The same cycle, run on them for this head alone, gives the same decision.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PlainSerializer, TypeAdapter

from evenkeel.domain.decisions import packed_size
from evenkeel.domain.kueue import short_form
from evenkeel.domain.kueue.assignment import FlavorCursor
from evenkeel.domain.kueue.decisions import CycleDecision, EarlierHeads, NodeFit
from evenkeel.domain.kueue.objects import (
    PODS,
    Admitted,
    Amounts,
    Cohort,
    Flavor,
    PreemptionPolicy,
    Queue,
    Workload,
)
from evenkeel.domain.kueue.pending import PendingWorkload
from evenkeel.domain.kueue.preemption import outranks
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.setup import Profile, QuotaDocuments
from evenkeel.domain.kueue.snapshot import Rules
from evenkeel.domain.kueue.why import AdmittingChange, why
from evenkeel.domain.quotas.quota_holders import admitted_document, flat, is_sum, nested, sum_documents
from evenkeel.domain.values import Value

Json = dict[str, Any]


_WRITER: TypeAdapter[Any] = TypeAdapter(Any)


def _serialized(document: Any) -> str:
    return _WRITER.dump_json(document).decode()


def _parsed(part: Any) -> Any:
    return json.loads(part) if isinstance(part, str) else part


_AS_TEXT = (PlainSerializer(_serialized, return_type=str, when_used="json"), BeforeValidator(_parsed))
StoredDocument = Annotated[Json, *_AS_TEXT]
"""A document stored as text. The order of a queue's flavors matters, and a stored map has no order."""
StoredDocuments = Annotated[tuple[Json, ...], *_AS_TEXT]

MAX_BYTES = 180_000
"""Of one stored record; an item may have 400 kB. Beyond it, holders that could be preempted are added up too."""
_MAX_PLAIN_BYTES = 3_000_000
"""Of one unpacked record; an answer of the API may have 6 MB."""


class ReservedQuota(Value):
    """Quota that an earlier head took, or that is reserved for a job."""

    queue: str
    amounts: dict[str, dict[str, int]]
    fits: bool
    """Whether the head fits at once. If not, the amounts are only reserved for it."""


class QuotaFacts(Value):
    """The facts of a decision about quota."""

    quotas: StoredDocument
    """The queues, cohorts and flavors of the job's tree, in the short form."""
    jobs: StoredDocuments
    """The holders of quota there. `others-of-<queue>` is the sum of all holders that could not be preempted."""
    job: StoredDocument
    rules: dict[str, Any]
    reserved: tuple[ReservedQuota, ...] = ()
    """Quota that was reserved before the cycle for jobs that wait only for nodes."""
    earlier_use: tuple[ReservedQuota, ...] = ()
    """Quota that earlier heads of the cycle took."""
    earlier_victims: tuple[str, ...] = ()
    """Victims of earlier heads of the cycle."""
    evicted_at: dict[str, float] = {}
    """By other job: when one of the two last preempted the other. It matters with a flap guard."""
    scan_start: tuple[dict[str, int], ...] = ()
    """Where the scan of the flavors started, by pod set: resource → index of the last flavor examined before."""
    summed_holders: int = 0
    """Number of holders that are in a sum."""
    is_cut: bool = False
    """Whether a sum contains holders that could be preempted, because there were too many. Such facts do not replay."""


class CycleState(NamedTuple):
    """The state right before a cycle."""

    queues: Mapping[str, Queue]
    cohorts: tuple[Cohort, ...]
    flavors: Mapping[str, Flavor]
    rules: Rules
    holders: tuple[tuple[Admitted, bool], ...]
    """(workload, whether it had been asked to stop)."""
    evicted_at: Mapping[frozenset[str], float]
    reserved: tuple[tuple[str, Amounts], ...] = ()
    """(queue, amounts) reserved for jobs that wait only for nodes."""

    @classmethod
    def of(cls, scheduler: Scheduler, reserved: Iterable[tuple[str, Amounts]] = ()) -> "CycleState":
        """Return the present state of a scheduler."""
        snapshot = scheduler.snapshot
        return cls(
            {name: queue.spec for name, queue in snapshot.queues.items()},
            scheduler.cohorts,
            snapshot.flavors,
            scheduler.rules,
            tuple(
                (workload, workload.is_evicted)
                for queue in snapshot.queues.values()
                for workload in queue.admitted.values()
            ),
            dict(snapshot.evicted_at),
            tuple(reserved),
        )


class DocumentCache:
    """Documents that the quota facts of one scheduling cycle share. Each is quota_document once."""

    def __init__(self) -> None:
        self._quotas: dict[tuple[str, ...], Json] = {}
        self._holders: dict[tuple[str, float | None, bool], tuple[Json, int]] = {}

    def quotas(self, queues: Mapping[str, Queue], state: CycleState) -> Json:
        """Return the queues, cohorts and flavors of a tree, in the short form."""
        names = tuple(queues)
        if names not in self._quotas:
            self._quotas[names] = _quotas(queues, state)
        return self._quotas[names]

    def holder(self, admitted: Admitted, was_evicted: bool) -> tuple[Json, int]:
        """Return a holder of quota in the short form, and its size in characters."""
        name = (admitted.workload.workload_id, admitted.reserved_at, was_evicted)
        if name not in self._holders:
            document = admitted_document(admitted, was_evicted=was_evicted)
            self._holders[name] = (document, _size(document))
        return self._holders[name]


def quota_facts_of(
    document: Json, decision: CycleDecision, state: CycleState, scheduler: Scheduler, cache: DocumentCache
) -> QuotaFacts:
    """Return the facts that a decision depends on.

    Args:
        document: The job, in the short form.
        decision: The decision about the job.
        state: The state when the cycle began.
        scheduler: The scheduler. Only its trees are read: they do not change.
        cache: Documents of the same scheduler.
    """
    workload = decision.workload
    root = scheduler.snapshot.queues[workload.queue].node.root
    # Stopped queues too: they admit no workload, but their quota and use count.
    names = {name for name, queue in scheduler.snapshot.queues.items() if queue.node.root is root}
    queues = {name: queue for name, queue in state.queues.items() if name in names}
    holders = [
        (admitted_workload, was_evicted)
        for admitted_workload, was_evicted in state.holders
        if admitted_workload.workload.queue in names
    ]
    single, summed = _split_holders(workload, holders, queues, frozenset(decision.earlier.victims))
    quota_document = cache.quotas(queues, state)
    single_documents = [cache.holder(admitted_workload, was_evicted) for admitted_workload, was_evicted in single]
    keep = _max_single_holders(quota_document, single_documents)
    is_cut = keep < len(single_documents)
    if is_cut:
        summed += [admitted_workload for admitted_workload, _ in single[keep:]]
        single_documents = single_documents[:keep]
    earlier = decision.earlier
    return QuotaFacts(
        quotas=quota_document,
        jobs=(*(document for document, _ in single_documents), *sum_documents(summed)),
        job=document,
        # How use decays decides only which job is the head, not what the head may use.
        rules={
            name: list(value) if isinstance(value, tuple) else value
            for name, value in state.rules._asdict().items()
            if name != "decay"
        },
        reserved=tuple(
            ReservedQuota(queue=queue, amounts=nested(amounts), fits=True)
            for queue, amounts in state.reserved
            if queue in names
        ),
        earlier_use=tuple(
            ReservedQuota(queue=queue, amounts=nested(amounts), fits=fits)
            for queue, amounts, fits in earlier.usage
            if queue in names
        ),
        earlier_victims=earlier.victims,
        evicted_at={
            other: at
            for pair, at in state.evicted_at.items()
            if workload.workload_id in pair
            for other in pair - {workload.workload_id}
        },
        scan_start=tuple(dict(indexes) for indexes in decision.scan_start.tried) if decision.scan_start else (),
        summed_holders=len(summed),
        is_cut=is_cut,
    )


def _size(document: Any) -> int:
    return len(_serialized(document))


def _max_single_holders(quota_document: Json, single_documents: list[tuple[Json, int]]) -> int:
    """Return how many single holders fit into a record: as they are, or else packed."""
    size = _size(quota_document)
    keep = 0
    while keep < len(single_documents) and size + single_documents[keep][1] <= _MAX_PLAIN_BYTES:
        size += single_documents[keep][1]
        keep += 1
    if size <= MAX_BYTES:
        return keep
    while keep:
        size = packed_size([quota_document, *(document for document, _ in single_documents[:keep])])
        if size <= MAX_BYTES:
            break
        keep = min(keep - 1, keep * MAX_BYTES * 19 // (size * 20))
    return keep


def replay_quota(facts: QuotaFacts, now: float, node_fit: NodeFit) -> CycleDecision:
    """Run the cycle again for the job alone, and return its decision."""
    scheduler, _ = _rebuild_scheduler(facts, node_fit)
    usage = tuple((quota.queue, flat(quota.amounts), quota.fits) for quota in facts.earlier_use)
    return scheduler.cycle(now, EarlierHeads(usage, facts.earlier_victims))[0]


def smallest_changes(facts: QuotaFacts, now: float) -> tuple[AdmittingChange, ...]:
    """Return the smallest changes that would each give the job its quota. Each was tried on these facts."""
    scheduler, workload = _rebuild_scheduler(facts, None)
    scheduler.snapshot.now = now
    changes = why(scheduler, workload).changes
    # A person cannot wait for a sum of jobs to end, and a higher priority would preempt jobs that are only in a sum.
    return tuple(
        change for change in changes if change.kind != "priority" and not any(is_sum(name) for name in change.jobs)
    )


def _rebuild_scheduler(facts: QuotaFacts, node_fit: NodeFit | None) -> tuple[Scheduler, Workload]:
    declared = QuotaDocuments(
        Profile.EVENKEEL, Rules(**{**facts.rules, "fair_strategies": tuple(facts.rules["fair_strategies"])})
    )
    declared.add(facts.quotas, "quotas")
    queues, cohorts, flavors = declared.everything()
    scheduler = Scheduler(queues, cohorts, flavors, declared.rules, node_fit)
    for document in facts.jobs:
        holder = declared.job(document, "jobs").admitted
        assert holder is not None
        scheduler.restore(holder)
    for quota in facts.reserved:
        scheduler.snapshot.queues[quota.queue].node.add_all(flat(quota.amounts))
    workload = declared.job(facts.job, "job").workload
    for other, at in facts.evicted_at.items():
        scheduler.snapshot.evicted_at[frozenset((workload.workload_id, other))] = at
    scan_start = FlavorCursor(facts.scan_start, 0, 0, workload.shape) if facts.scan_start else None
    scheduler.pending[workload.queue].push(PendingWorkload(workload, scan_start))
    return scheduler, workload


# ---------------------------------------------------------------- selection


def _ancestors(queues: Iterable[Queue], cohorts: tuple[Cohort, ...]) -> list[Cohort]:
    by_name = {cohort.name: cohort for cohort in cohorts}
    ancestors: dict[str, Cohort] = {}
    for queue in queues:
        name = queue.cohort
        while name in by_name and name not in ancestors:
            ancestors[name] = by_name[name]
            name = by_name[name].parent
    # Cohorts beside the path also hold quota of the tree.
    grown = True
    while grown:
        roots = {name for cohort in ancestors.values() for name in (cohort.name, cohort.parent) if name}
        beside = [
            cohort
            for cohort in cohorts
            if cohort.name not in ancestors and (cohort.parent in roots or cohort.name in roots)
        ]
        ancestors |= {cohort.name: cohort for cohort in beside}
        grown = bool(beside)
    return [cohort for cohort in cohorts if cohort.name in ancestors]


def _quotas(queues: Mapping[str, Queue], state: CycleState) -> Json:
    above = _ancestors(queues.values(), state.cohorts)
    groups = [group for queue in queues.values() for group in queue.groups]
    groups += [group for cohort in above for group in cohort.groups]
    used = {flavor.flavor for group in groups for flavor in group.flavors}
    quotas = short_form.ShortQuotas(
        queues=tuple(short_form.ShortQueue.of(queue) for queue in queues.values()),
        cohorts=tuple(short_form.ShortCohort.of(cohort) for cohort in above),
        flavors=tuple(short_form.ShortFlavor.of(state.flavors[name]) for name in sorted(used & state.flavors.keys())),
        fair_sharing=state.rules.fair_sharing,
    )
    return quotas.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _split_holders(
    workload: Workload,
    holders: Iterable[tuple[Admitted, bool]],
    queues: Mapping[str, Queue],
    victims: frozenset[str],
) -> tuple[list[tuple[Admitted, bool]], list[Admitted]]:
    """Separate the holders that could be preempted, or already are for another job, from all other holders."""
    queue = queues[workload.queue]
    keys = {
        (flavor.flavor, resource)
        for group in queue.groups
        for flavor in group.flavors
        for resource in group.resources
        if resource == PODS or any(resource in pods.requests for pods in workload.pod_sets)
    }
    single, summed = [], []
    for admitted_workload, was_evicted in holders:
        is_own = admitted_workload.workload.queue == workload.queue
        policy = queue.preemption.within if is_own else queue.preemption.reclaim
        # Only the policy of the preemptor's queue counts, not the policy of the victim's queue.
        may_preempt = outranks(workload, admitted_workload.workload, policy) and policy is not PreemptionPolicy.NEVER
        if admitted_workload.workload.workload_id in victims or (
            may_preempt and not keys.isdisjoint(admitted_workload.use)
        ):
            single.append((admitted_workload, was_evicted))
        else:
            summed.append(admitted_workload)
    return single, summed
