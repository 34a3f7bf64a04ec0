"""The smallest set of facts from which a decision about quota replays.

    quotas   the queues and cohorts of the job's tree
    jobs     the holders of quota in that tree, one by one if they could be preempted; else one sum for each queue
    job      the job itself

They are documents that `evenkeel plan` reads. The same cycle, run on them for this head alone, gives the same decision.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PlainSerializer

from evenkeel.domain.decisions import packed_size
from evenkeel.domain.kueue.cycle_decisions import CycleDecision
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
from evenkeel.domain.kueue.preemption import outranks
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.snapshot import SchedulerRules
from evenkeel.domain.queue_simulation import short_form
from evenkeel.domain.quotas.quota_documents import (
    DocumentCache,
    DocumentPart,
    HolderRun,
    SerializedDocument,
    SerializedDocuments,
    serialize,
)
from evenkeel.domain.quotas.quota_holders import by_flavor_and_resource, sum_by_queue
from evenkeel.domain.values import Value

Json = dict[str, Any]


def _parsed(document: Any) -> Any:
    return json.loads(document) if isinstance(document, str) else document


_AS_TEXT = (PlainSerializer(serialize, return_type=str, when_used="json"), BeforeValidator(_parsed))
StoredDocument = Annotated[Json, *_AS_TEXT]
"""A document stored as text. The order of a queue's flavors matters, and a stored map has no order."""
StoredDocuments = Annotated[tuple[Json, ...], *_AS_TEXT]

MAX_BYTES = 180_000
"""Maximum size of one stored record; DynamoDB limits an item to 400 kB. A larger record also sums preemptable
holders."""
_MAX_PLAIN_BYTES = 3_000_000
"""Maximum size of one unpacked record; Lambda limits an API response to 6 MB."""


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
    """Quota that was reserved before the Kueue cycle for jobs that wait only for nodes."""
    earlier_use: tuple[ReservedQuota, ...] = ()
    """Quota that earlier heads took in the same Kueue cycle."""
    earlier_victims: tuple[str, ...] = ()
    """Victims of earlier heads in the same Kueue cycle."""
    evicted_at: dict[str, float] = {}
    """Other job → when one of the two last preempted the other. The flap guard reads it."""
    scan_start: tuple[dict[str, int], ...] = ()
    """Where the scan of the flavors started, by pod set: resource → index of the last flavor examined before."""
    summed_holders: int = 0
    """Number of jobs that hold quota and appear in `jobs` only as part of a sum."""
    is_cut: bool = False
    """Whether a sum contains holders that could be preempted, because there were too many. Such facts do not replay."""


class KueueCycleState(NamedTuple):
    """The scheduler's state right before a Kueue cycle."""

    queues: Mapping[str, Queue]
    cohorts: tuple[Cohort, ...]
    flavors: Mapping[str, Flavor]
    rules: SchedulerRules
    holders: tuple[tuple[Admitted, bool], ...]
    """(workload, whether it had been asked to stop)."""
    evicted_at: Mapping[frozenset[str], float]
    reserved: tuple[tuple[str, Amounts], ...] = ()
    """(queue, amounts) reserved for jobs that wait only for nodes."""

    @property
    def stopping_ids(self) -> frozenset[str]:
        """Ids of the workloads that had been asked to stop."""
        return frozenset(admitted.workload.workload_id for admitted, was_evicted in self.holders if was_evicted)

    @classmethod
    def of(
        cls,
        scheduler: Scheduler,
        reserved_amounts: Iterable[tuple[str, Amounts]] = (),
        last_state: "KueueCycleState | None" = None,
    ) -> "KueueCycleState":
        """Return the present state of a scheduler. Both states share the holders if no holder changed."""
        snapshot = scheduler.snapshot
        holders = tuple(itertools.chain.from_iterable(queue.holders for queue in snapshot.queues.values()))
        return cls(
            {name: queue.spec for name, queue in snapshot.queues.items()},
            scheduler.cohorts,
            snapshot.flavors,
            scheduler.rules,
            last_state.holders if last_state is not None and last_state.holders == holders else holders,
            dict(snapshot.evicted_at),
            tuple(reserved_amounts),
        )


def quota_facts_of(
    document: Json, decision: CycleDecision, state: KueueCycleState, scheduler: Scheduler, cache: DocumentCache
) -> QuotaFacts:
    """Return the facts that a decision depends on.

    Args:
        document: The job, in the short form.
        decision: The decision about the job.
        state: The state when the Kueue cycle began.
        scheduler: The scheduler. Only its trees are read: they do not change.
        cache: Documents of the same scheduler.
    """
    workload = decision.workload
    root = scheduler.snapshot.queues[workload.queue].quota_node.root
    # Stopped queues too: they admit no workload, but their quota and use count.
    tree = tuple(name for name in state.queues if scheduler.snapshot.queues[name].quota_node.root is root)
    queues = {name: state.queues[name] for name in tree}
    quota_document = cache.quotas(tree, lambda: _quota_document(queues, state))
    runs = cache.runs(tree, state.holders)
    earlier = decision.earlier
    queue = queues[workload.queue]

    def list_holders() -> _ListedHolders:
        single_runs, summed_runs = _split_holders(workload, runs, queue, frozenset(earlier.victims))
        documents, single_count = _within_max_bytes(
            quota_document,
            single_runs,
            summed_runs,
            lambda parts: cache.fits_packed(tree, parts, runs, MAX_BYTES),
            cache,
        )
        holder_count = sum(len(holder_run.holders) for holder_run in single_runs)
        summed_count = sum(len(holder_run.holders) for holder_run in summed_runs)
        return _ListedHolders(documents, summed_count + holder_count - single_count, single_count < holder_count)

    # Jobs of one queue with one priority that request the same resources see the same holders.
    alike = (id(runs), workload.queue, workload.priority, _requested_resources(workload), earlier.victims)
    policies = (queue.preemption.within, queue.preemption.reclaim)
    is_by_time = PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY in policies
    listed_holders = list_holders() if is_by_time else cache.remembered(alike, list_holders)
    facts = QuotaFacts(
        quotas={},
        jobs=(),
        job=document,
        # The decay of use only decides which job is the head. It does not change what the head may use.
        rules={
            name: list(value) if isinstance(value, tuple) else value
            for name, value in state.rules._asdict().items()
            if name != "decay"
        },
        reserved=tuple(
            ReservedQuota(queue=name, amounts=by_flavor_and_resource(amounts), fits=True)
            for name, amounts in state.reserved
            if name in queues
        ),
        earlier_use=tuple(
            ReservedQuota(queue=name, amounts=by_flavor_and_resource(amounts), fits=fits)
            for name, amounts, fits in earlier.usage
            if name in queues
        ),
        earlier_victims=earlier.victims,
        evicted_at={
            other_id: at
            for pair, at in state.evicted_at.items()
            if workload.workload_id in pair
            for other_id in pair - {workload.workload_id}
        },
        scan_start=tuple(dict(indexes) for indexes in decision.scan_start.tried) if decision.scan_start else (),
        summed_holders=listed_holders.summed_count,
        is_cut=listed_holders.is_cut,
    )
    # Validation would copy each of these documents.
    return facts.replace_unchecked(quotas=quota_document, jobs=listed_holders.documents)


class _ListedHolders(NamedTuple):
    """The holders of quota, as a record lists them."""

    documents: SerializedDocuments
    summed_count: int
    """Holders that are only in a sum."""
    is_cut: bool
    """Whether a sum contains holders that could be preempted."""


def _requested_resources(workload: Workload) -> frozenset[str]:
    return frozenset(resource for pods in workload.pod_sets for resource in pods.requests)


def _within_max_bytes(
    quota_document: SerializedDocument,
    single_runs: Sequence[HolderRun],
    summed_runs: Sequence[HolderRun],
    fits_packed: Callable[[Sequence[DocumentPart]], bool],
    cache: DocumentCache,
) -> tuple[SerializedDocuments, int]:
    """Return the documents of the holders, and how many holders have a document of their own.

    If the documents exceed `MAX_BYTES`, the last single holders are summed as well.
    """
    document_parts = [cache.documents(holder_run) for holder_run in single_runs]
    use_by_queue = [(holder_run.queue, holder_run.use) for holder_run in summed_runs]
    size = len(quota_document.text) + sum(document_part.size for document_part in document_parts)
    single_count = sum(len(document_part.documents) for document_part in document_parts)
    if size > MAX_BYTES and (size > _MAX_PLAIN_BYTES or not fits_packed(document_parts)):
        documents = [document for document_part in document_parts for document in document_part.documents]
        single_count = _max_single_holders(quota_document, documents)
        holders = [admitted for holder_run in single_runs for admitted, _ in holder_run.holders]
        use_by_queue += [(admitted.workload.queue, admitted.use) for admitted in holders[single_count:]]
        document_parts = [DocumentPart((document,), len(serialize(document))) for document in documents[:single_count]]
    sums = (cache.sum_part(queue, amounts) for queue, amounts in sum_by_queue(use_by_queue))
    return SerializedDocuments.of((*document_parts, *sums)), single_count


def _max_single_holders(quota_document: Json, documents: Sequence[Json]) -> int:
    """Return how many single holders fit into a record: as they are, or else packed."""
    size = len(serialize(quota_document))
    keep = 0
    for document in documents:
        length = len(serialize(document))
        if size + length > _MAX_PLAIN_BYTES:
            break
        size += length
        keep += 1
    if size <= MAX_BYTES:
        return keep
    while keep:
        size = packed_size([quota_document, *documents[:keep]])
        if size <= MAX_BYTES:
            break
        keep = min(keep - 1, keep * MAX_BYTES * 19 // (size * 20))
    return keep


# ---------------------------------------------------------------- selection


def _related_cohorts(queues: Iterable[Queue], cohorts: tuple[Cohort, ...]) -> list[Cohort]:
    """Return all cohorts of the trees that these queues belong to."""
    by_name = {cohort.name: cohort for cohort in cohorts}
    related_cohorts: dict[str, Cohort] = {}
    for queue in queues:
        name = queue.cohort
        while name in by_name and name not in related_cohorts:
            related_cohorts[name] = by_name[name]
            name = by_name[name].parent
    # Add the rest of each tree: cohorts outside the path from queue to root also lend quota.
    has_added = True
    while has_added:
        names = {name for cohort in related_cohorts.values() for name in (cohort.name, cohort.parent) if name}
        relatives = [
            cohort
            for cohort in cohorts
            if cohort.name not in related_cohorts and (cohort.parent in names or cohort.name in names)
        ]
        related_cohorts |= {cohort.name: cohort for cohort in relatives}
        has_added = bool(relatives)
    return [cohort for cohort in cohorts if cohort.name in related_cohorts]


def _quota_document(queues: Mapping[str, Queue], state: KueueCycleState) -> Json:
    cohorts = _related_cohorts(queues.values(), state.cohorts)
    groups = [group for queue in queues.values() for group in queue.groups]
    groups += [group for cohort in cohorts for group in cohort.groups]
    used_flavors = {flavor.flavor for group in groups for flavor in group.flavors}
    quotas = short_form.ShortQuotas(
        queues=tuple(short_form.ShortQueue.of(queue) for queue in queues.values()),
        cohorts=tuple(short_form.ShortCohort.of(cohort) for cohort in cohorts),
        flavors=tuple(
            short_form.ShortFlavor.of(state.flavors[name]) for name in sorted(used_flavors & state.flavors.keys())
        ),
        fair_sharing=state.rules.fair_sharing,
    )
    return quotas.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _split_holders(
    workload: Workload, runs: Iterable[HolderRun], queue: Queue, victims: frozenset[str]
) -> tuple[list[HolderRun], list[HolderRun]]:
    """Separate the holders that could be preempted, or already are for another job, from all other holders."""
    keys = {
        (flavor.flavor, resource)
        for group in queue.groups
        for flavor in group.flavors
        for resource in group.resources
        if resource == PODS or any(resource in pods.requests for pods in workload.pod_sets)
    }
    single_runs: list[HolderRun] = []
    summed_runs: list[HolderRun] = []
    for holder_run in runs:
        # Only the policy of the preemptor's queue counts, not the policy of the victim's queue.
        policy = queue.preemption.within if holder_run.queue == workload.queue else queue.preemption.reclaim
        may_preempt = policy is not PreemptionPolicy.NEVER and not keys.isdisjoint(holder_run.keys)
        # Holders of one priority differ only by the time of their submission.
        depends_on_time = (
            holder_run.priority == workload.priority and policy is PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY
        )
        has_victims = bool(victims) and not holder_run.names.isdisjoint(victims)
        if not (has_victims or (may_preempt and depends_on_time)):
            may_be_victim = may_preempt and outranks(workload, holder_run.holders[0][0].workload, policy)
            (single_runs if may_be_victim else summed_runs).append(holder_run)
            continue

        def is_single(admitted: Admitted, policy: PreemptionPolicy = policy, may_preempt: bool = may_preempt) -> bool:
            is_victim = admitted.workload.workload_id in victims
            return is_victim or (may_preempt and outranks(workload, admitted.workload, policy))

        for may_be_victim, split_run in holder_run.split(is_single):
            (single_runs if may_be_victim else summed_runs).append(split_run)
    return single_runs, summed_runs
