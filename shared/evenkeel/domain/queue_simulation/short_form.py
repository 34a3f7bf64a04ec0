"""Evenkeel's short form for quotas and jobs: one object for all queues, one line for a simple job."""

from typing import Literal

from pydantic import Field

from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.objects import (
    Admitted,
    BorrowWithin,
    Cohort,
    Flavor,
    FlavorQuotas,
    Fungibility,
    Fungible,
    PodSet,
    PreemptionPolicy,
    PreemptionRules,
    Preference,
    Queue,
    QueueingStrategy,
    Quota,
    ResourceGroup,
    StopPolicy,
    Taint,
    Workload,
)
from evenkeel.domain.queue_simulation.documents import Document, Instant, Number, Quantity, WholeNumber, seconds
from evenkeel.domain.queue_simulation.node_terms import Expression, NodeTaint, PodToleration


class QuotaLimits(Document):
    """The quota of a resource, with its limits."""

    nominal: Quantity = 0
    borrow: Quantity | None = None
    """Maximum use beyond nominal; no limit if omitted."""
    lend: Quantity | None = None
    """Maximum that other queues may use of it; all if omitted."""


Group = dict[str, dict[str, Quantity | QuotaLimits]]
"""flavor → resource → quota. The flavors are tried in this order."""


def _to_group(group: Group) -> ResourceGroup:
    def quota(resource: str, written: Quantity | QuotaLimits) -> Quota:
        amounts = written if isinstance(written, QuotaLimits) else QuotaLimits(nominal=written)
        limits = [
            None if limit is None else quantities.amount(resource, limit) for limit in (amounts.borrow, amounts.lend)
        ]
        return Quota(quantities.amount(resource, amounts.nominal), *limits)

    resources = dict.fromkeys(resource for quotas in group.values() for resource in quotas)
    flavors = (
        FlavorQuotas(flavor, {resource: quota(resource, limits) for resource, limits in quotas.items()})
        for flavor, quotas in group.items()
    )
    return ResourceGroup(tuple(resources), tuple(flavors))


def _groups_in_short_form(groups: tuple[ResourceGroup, ...]) -> tuple[Group, ...]:
    def limits_of(resource: str, quota: Quota) -> Quantity | QuotaLimits:
        nominal, borrow, lend = (
            None if limit is None else to_quantity(resource, limit)
            for limit in (quota.nominal, quota.borrow, quota.lend)
        )
        return QuotaLimits(nominal=nominal or 0, borrow=borrow, lend=lend)

    return tuple(
        {
            flavor.flavor: {resource: limits_of(resource, quota) for resource, quota in flavor.quotas.items()}
            for flavor in group.flavors
        }
        for group in groups
    )


def to_quantity(resource: str, amount: int) -> str:
    """Return an amount as a quantity. An unlimited amount becomes the largest quantity that Kubernetes has."""
    text = quantities.text(resource, amount)
    return "100E" if text == "unlimited" else text


class ShortPreemption(Document):
    """The preemption policies of a queue in the short form."""

    within: PreemptionPolicy = PreemptionPolicy.NEVER
    reclaim: PreemptionPolicy = PreemptionPolicy.NEVER
    borrow_within: bool = False
    max_priority_threshold: WholeNumber | None = None


class ShortFungibility(Document):
    """When a queue tries its next flavor instead of borrowing or preempting (Kueue's `flavorFungibility`)."""

    when_can_borrow: Fungible = Fungible.STOP
    when_can_preempt: Fungible = Fungible.TRY_NEXT
    preference: Preference = Preference.BORROWING_OVER_PREEMPTION


class ShortQueue(Document):
    """A team's queue."""

    name: str
    cohort: str = ""
    groups: tuple[Group, ...] = ()
    weight: Number = Field(1.0, ge=0)
    preemption: ShortPreemption = Field(default_factory=ShortPreemption)
    fungibility: ShortFungibility = Field(default_factory=ShortFungibility)
    strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT
    stop: StopPolicy = StopPolicy.NONE
    by_use: bool = False
    """Whether the sub-queue with the least recent use goes first, before priority."""

    def to_queue(self) -> Queue:
        preemption, fungibility = self.preemption, self.fungibility
        return Queue(
            self.name,
            self.cohort,
            tuple(_to_group(group) for group in self.groups),
            self.weight,
            PreemptionRules(
                preemption.within,
                preemption.reclaim,
                BorrowWithin(preemption.max_priority_threshold) if preemption.borrow_within else None,
            ),
            Fungibility(fungibility.when_can_borrow, fungibility.when_can_preempt, fungibility.preference),
            self.strategy,
            self.stop,
            self.by_use,
        )

    @classmethod
    def of(cls, queue: Queue) -> "ShortQueue":
        borrow = queue.preemption.borrow_within
        return cls(
            name=queue.name,
            cohort=queue.cohort,
            groups=_groups_in_short_form(queue.groups),
            weight=queue.fair_weight,
            preemption=ShortPreemption(
                within=queue.preemption.within,
                reclaim=queue.preemption.reclaim,
                borrow_within=borrow is not None,
                max_priority_threshold=borrow.max_priority_threshold if borrow else None,
            ),
            fungibility=ShortFungibility(
                when_can_borrow=queue.fungibility.when_can_borrow,
                when_can_preempt=queue.fungibility.when_can_preempt,
                preference=queue.fungibility.preference,
            ),
            strategy=queue.strategy,
            stop=queue.stop,
            by_use=queue.by_use,
        )


class ShortCohort(Document):
    """A cohort: a node of the quota tree above queues and other cohorts."""

    name: str
    parent: str = ""
    groups: tuple[Group, ...] = ()
    weight: Number = Field(1.0, ge=0)

    def to_cohort(self) -> Cohort:
        return Cohort(self.name, self.parent, tuple(_to_group(group) for group in self.groups), self.weight)

    @classmethod
    def of(cls, cohort: Cohort) -> "ShortCohort":
        return cls(
            name=cohort.name,
            parent=cohort.parent,
            groups=_groups_in_short_form(cohort.groups),
            weight=cohort.fair_weight,
        )


class ShortFlavor(Document):
    """A flavor: a kind of capacity. An undescribed flavor has neither labels nor taints."""

    name: str
    labels: dict[str, str] = {}
    taints: tuple[NodeTaint, ...] = ()
    tolerations: tuple[PodToleration, ...] = ()

    def to_flavor(self) -> Flavor:
        return Flavor(
            self.name,
            self.labels,
            tuple(Taint(taint.key, taint.value, taint.effect) for taint in self.taints),
            tuple(toleration.to_toleration() for toleration in self.tolerations),
        )

    @classmethod
    def of(cls, flavor: Flavor) -> "ShortFlavor":
        return cls(
            name=flavor.name,
            labels=dict(flavor.labels),
            taints=tuple(
                NodeTaint.model_validate({"key": taint.key, "value": taint.value, "effect": taint.effect})
                for taint in flavor.taints
            ),
            tolerations=tuple(
                PodToleration(
                    key=toleration.key, operator=toleration.operator, value=toleration.value, effect=toleration.effect
                )
                for toleration in flavor.tolerations
            ),
        )


class ShortQuotas(Document):
    """All queues, cohorts, flavors and priority classes in the short form of a `--quota` file."""

    queues: tuple[ShortQueue, ...] = ()
    cohorts: tuple[ShortCohort, ...] = ()
    flavors: tuple[ShortFlavor, ...] = ()
    priority_classes: dict[str, WholeNumber] = {}
    fair_sharing: bool | None = None
    """Whether fair sharing is on. Default: as in the profile."""


class ShortPodSet(Document):
    """A pod set of a job in the short form."""

    name: str = "main"
    count: WholeNumber = Field(1, ge=0)
    min_count: WholeNumber | None = Field(None, ge=0)
    """Smallest count for partial admission."""
    requests: dict[str, Quantity] = {}
    """Per pod."""
    selector: dict[str, str] = {}
    affinity: tuple[tuple[Expression, ...], ...] = ()
    """Terms, of which one must match."""
    tolerations: tuple[PodToleration, ...] = ()
    group: str = ""
    """Pod sets of the same group get the same flavors."""


class ShortAdmission(Document):
    """The admission of a job that holds quota."""

    at: Instant | None = None
    flavors: tuple[dict[str, str], ...] | dict[str, str]
    """resource → flavor: one object for all pod sets, or one for each."""
    counts: tuple[WholeNumber, ...] | None = None
    evicted: bool = False
    ready: bool = True
    """Whether all its pods are ready. Matters only with `blockAdmission`."""
    work_at_risk: Number | None = None
    """Device-seconds since its last checkpoint, restart included."""
    pinned: bool = False
    """Whether it can never be preempted."""


class ShortJob(Document):
    """A job. `requests` and `count` describe its only pod set; a job with several has `podSets`."""

    kind: Literal["Job"] = "Job"
    name: str
    queue: str
    priority: WholeNumber | None = None
    priority_class: str = ""
    created_at: Instant = 0
    sub_queue: str = ""
    """Its submitter. Queues with `byUse` measure the use of each sub-queue."""
    requeued_at: Instant | None = None
    """When it lost its position in the queue, if it did."""
    uid: str = ""
    count: WholeNumber = Field(1, ge=0)
    min_count: WholeNumber | None = Field(None, ge=0)
    requests: dict[str, Quantity] = {}
    pod_sets: tuple[ShortPodSet, ...] = ()
    replaces: str = ""
    """The admitted job that this larger slice replaces."""
    admitted: ShortAdmission | None = None

    def to_workload(self, priority: int) -> Workload:
        """Return the job for the scheduler."""
        pod_sets = self.pod_sets or (ShortPodSet(count=self.count, min_count=self.min_count, requests=self.requests),)
        return Workload(
            self.name,
            self.queue,
            tuple(
                PodSet(
                    pod_set.name,
                    pod_set.count,
                    {name: quantities.amount(name, amount) for name, amount in pod_set.requests.items()},
                    pod_set.min_count,
                    pod_set.selector,
                    tuple(tuple(need.to_requirement() for need in term) for term in pod_set.affinity),
                    tuple(toleration.to_toleration() for toleration in pod_set.tolerations),
                    pod_set.group,
                )
                for pod_set in pod_sets
            ),
            priority=priority,
            created_at=seconds(self.created_at),
            requeued_at=None if self.requeued_at is None else seconds(self.requeued_at),
            replaces=self.replaces,
            uid=self.uid,
            sub_queue=self.sub_queue,
        )

    def to_admitted(self, workload: Workload) -> Admitted:
        """Return the job with its quota, for the scheduler."""
        admission = self.admitted
        assert admission is not None
        assigned = admission.flavors
        flavors = tuple(assigned for _ in workload.pod_sets) if isinstance(assigned, dict) else assigned
        counts = admission.counts or workload.counts
        at = None if admission.at is None else seconds(admission.at)
        admitted = Admitted(workload, flavors, counts, at, admission.evicted)
        admitted.work_at_risk, admitted.is_ready = admission.work_at_risk, admission.ready
        admitted.is_pinned = admission.pinned
        return admitted
