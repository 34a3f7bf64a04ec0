"""Documents about queues, read together: what is declared, what jobs there are, and what is said to the reader of it.

Three kinds of quota documents are told apart by what stands in them: Kueue's manifests (`kind`), HyperPod's JSON
(`ComputeQuotaTarget`, `SchedulerConfig`, `InstanceGroups`) and the short form (`queues`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from evenkeel.domain.capacity import instance_types
from evenkeel.domain.kueue import feature_gates, hyperpod, kueue, own
from evenkeel.domain.kueue.cycle import Scheduler
from evenkeel.domain.kueue.decayed import Decay
from evenkeel.domain.kueue.documents import DocumentError, Kind, read, seconds, unknown_fields
from evenkeel.domain.kueue.objects import (
    Admitted,
    Cohort,
    Flavor,
    Fungible,
    PreemptionPolicy,
    Preference,
    Queue,
    Quota,
    StopPolicy,
    Workload,
)
from evenkeel.domain.kueue.snapshot import Rules

_FAIR_CONFIGURATIONS = (
    ("LessThanOrEqualToFinalShare",),
    ("LessThanInitialShare",),
    ("LessThanOrEqualToFinalShare", "LessThanInitialShare"),
)
_OF_HYPERPOD = frozenset({"ComputeQuotaTarget", "ComputeQuotas", "SchedulerConfig", "InstanceGroups"})


class Profile(StrEnum):
    """Whose rules and defaults."""

    KUEUE = "kueue"
    HYPERPOD = "hyperpod"
    EVENKEEL = "evenkeel"


RULES = {
    Profile.KUEUE: Rules(),
    Profile.HYPERPOD: Rules(fair_sharing=True),
    Profile.EVENKEEL: Rules(
        fair_sharing=True, flap_guard_seconds=3600.0, never_overcommits=True, spares_work=True, decay=Decay()
    ),
}
"""Each profile's rules where no configuration says otherwise."""


@dataclass(slots=True)
class ReadWarnings:
    """What the reader of the files should know: nothing that is written is dropped in silence."""

    warnings: list[str] = field(default_factory=list)

    def warn(self, where: str, message: str) -> None:
        """Say something once."""
        text = f"{where}: {message}"
        if text not in self.warnings:
            self.warnings.append(text)

    def read(self, kind: type[Kind], found: Any, where: str) -> Kind:
        """Read a document and tell its unknown fields.

        Raises:
            DocumentError: it cannot be read.
        """
        document = read(kind, found, where)
        for path in unknown_fields(document):
            self.warn(where, f"{path} is not known and decides nothing")
        return document


@dataclass(slots=True)
class Declared:
    """All that quota documents declare."""

    profile: Profile = Profile.KUEUE
    rules: Rules = RULES[Profile.KUEUE]
    configuration: kueue.Configuration = field(default_factory=kueue.Configuration)
    types: instance_types.InstanceTypes = field(default_factory=instance_types.shipped)
    queues: dict[str, Queue] = field(default_factory=dict)
    cohorts: dict[str, Cohort] = field(default_factory=dict)
    flavors: dict[str, Flavor] = field(default_factory=dict)
    priorities: dict[str, int] = field(default_factory=dict)
    local_queues: dict[tuple[str, str], kueue.LocalQueue] = field(default_factory=dict)
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    takes: dict[str, kueue.ClusterQueue] = field(default_factory=dict)
    """The manifests whose namespace selectors say whom a queue takes."""
    instance_groups: list[hyperpod.InstanceGroup] = field(default_factory=list)
    shares_idle: bool = False
    read_warnings: ReadWarnings = field(default_factory=ReadWarnings)

    # ------------------------------------------------------------ reading

    def configure(self, found: Any, where: str) -> None:
        """Read Kueue's configuration.

        Raises:
            DocumentError: it cannot be read.
        """
        self.configuration = self.read_warnings.read(kueue.Configuration, found, where)
        sharing = self.configuration.fair_sharing
        self.rules = self.rules._replace(fair_sharing=bool(sharing and sharing.enable))
        if sharing is not None and sharing.preemption_strategies:  # none said are the default ones
            strategies: tuple[str, ...] = sharing.preemption_strategies
            if strategies not in _FAIR_CONFIGURATIONS:
                raise DocumentError(where, "fairSharing.preemptionStrategies", f"{list(strategies)} is not allowed")
            self.rules = self.rules._replace(fair_strategies=strategies)
        by_use = self.configuration.admission_fair_sharing
        if by_use is not None:
            self.rules = self.rules._replace(decay=by_use.to_decay(), evicts_by_use=True)
        undeclared = self.configuration.resources.quota_check_strategy == "IgnoreUndeclared"
        self.rules = self.rules._replace(
            ignores_undeclared=undeclared, blocks_until_ready=self.configuration.blocks_until_ready
        )
        for gate, is_on in self.configuration.feature_gates.items():
            if gate == "PartialAdmission":
                self.rules = self.rules._replace(partial_admission=is_on)
            elif gate not in feature_gates.DEFAULT_ON | feature_gates.DEFAULT_OFF:
                self.read_warnings.warn(where, f"featureGates.{gate}: Kueue has no such gate up to version 0.20")
            elif is_on != (gate in feature_gates.DEFAULT_ON):
                self.read_warnings.warn(
                    where, f"featureGates.{gate}: {str(is_on).lower()} is not supported, the rules stay"
                )

    def add(self, found: Any, where: str) -> None:
        """Read one quota document; one of a name that is known takes its place.

        Raises:
            DocumentError: it cannot be read.
        """
        for each in kueue.expanded(found):
            if isinstance(each, dict) and _OF_HYPERPOD & each.keys():
                self._add_hyperpod(each, where)
            elif isinstance(each, dict) and "kind" in each:
                self._add_manifest(each, where)
            elif isinstance(each, dict) and {"queues", "cohorts", "flavors", "priorityClasses"} & each.keys():
                self._add_own(each, where)
            else:
                raise DocumentError(where, "", "is neither a Kueue manifest, nor HyperPod's JSON, nor has it `queues`")

    def _add_manifest(self, found: Mapping[str, Any], where: str) -> None:
        kind = kueue.KINDS.get(str(found["kind"]))
        name = found["metadata"].get("name", "") if isinstance(found.get("metadata"), dict) else ""
        if kind is kueue.WorkloadManifest or str(found["kind"]) in kueue.OTHER_KINDS or kueue.is_other_kind(found):
            self.read_warnings.warn(f"{where}: {found['kind']}/{name}", "declares no quota: it is passed over here")
            return
        if kind is None:
            raise DocumentError(where, "kind", f"{found['kind']} declares no quota")
        where = f"{where}: {found['kind']}/{name}"
        document = self.read_warnings.read(kind, found, where)
        match document:
            case kueue.ClusterQueue():
                queue = document.to_queue()
                self._check(queue, where)
                if "namespace_selector" not in document.spec.model_fields_set:
                    self.read_warnings.warn(
                        where, "spec.namespaceSelector is missing: taken as {}; Kueue would admit nobody"
                    )
                self.queues[name], self.takes[name] = queue, document
            case kueue.CohortManifest():
                self.cohorts[name] = document.to_cohort()
                self._check(self.cohorts[name], where)
            case kueue.ResourceFlavor():
                self.flavors[name] = document.to_flavor()
            case kueue.LocalQueue():
                self.local_queues[(document.metadata.namespace, name)] = document
            case kueue.WorkloadPriorityClass():
                self.priorities[name] = document.value
            case kueue.Namespace():
                self.namespaces[name] = document.labels

    def _add_hyperpod(self, found: Mapping[str, Any], where: str) -> None:
        file, name = where, found.get("Name", "")
        if "ComputeQuotaTarget" in found:
            where = f"{file}: ComputeQuota/{name}"
            quota = self.read_warnings.read(hyperpod.ComputeQuota, found, where)
            queue = quota.to_queue(self.types, where)
            self.queues[queue.name] = queue
            namespace = f"hyperpod-ns-{quota.team}"
            local = {
                "metadata": {"name": f"{namespace}-localqueue", "namespace": namespace},
                "spec": {"clusterQueue": queue.name},
            }
            self.local_queues[(namespace, f"{namespace}-localqueue")] = kueue.LocalQueue.model_validate(local)
            for group in queue.groups:
                for each in group.flavors:
                    self.flavors.setdefault(each.flavor, hyperpod.flavor_of(each.flavor))
        for each in found.get("ComputeQuotas", ()):
            self._add_hyperpod(each, file)
        if "SchedulerConfig" in found:
            config = self.read_warnings.read(hyperpod.SchedulerConfig, found, f"{file}: ClusterSchedulerConfig/{name}")
            self.priorities |= config.priorities
            self.rules = self.rules._replace(fair_sharing=config.scheduler_config.fair_share == "Enabled")
            self.shares_idle = config.scheduler_config.idle_resource_sharing == "Enabled"
        if "InstanceGroups" in found:
            name = found.get("ClusterName", "")
            cluster = self.read_warnings.read(hyperpod.ClusterCapacity, found, f"{file}: Cluster/{name}")
            self.instance_groups += cluster.instance_groups

    def _add_own(self, found: Mapping[str, Any], where: str) -> None:
        document = self.read_warnings.read(own.OwnQuotas, found, where)
        for queue in document.queues:
            self.queues[queue.name] = queue.to_queue()
            self.takes.pop(queue.name, None)
            self._check(self.queues[queue.name], f"{where}: queue {queue.name}")
        for each in document.cohorts:
            self.cohorts[each.name] = each.to_cohort()
            self._check(self.cohorts[each.name], f"{where}: cohort {each.name}")
        self.flavors |= {each.name: each.to_flavor() for each in document.flavors}
        self.priorities |= document.priority_classes
        if document.fair_sharing is not None:
            self.rules = self.rules._replace(fair_sharing=document.fair_sharing)

    def _check(self, declared: Queue | Cohort, where: str) -> None:
        for message in refusals(declared):
            self.read_warnings.warn(where, f"{message}; Kueue would refuse it")

    # ------------------------------------------------------------ what follows

    def everything(self) -> tuple[list[Queue], list[Cohort], list[Flavor]]:
        """Return queues, cohorts and flavors as they are scheduled."""
        queues = list(self.queues.values())
        if self.shares_idle and self.instance_groups:
            queues.append(hyperpod.idle_queue(self.instance_groups, queues, self.types))
        flavors = dict(self.flavors)
        used = {each.flavor for queue in queues for group in queue.groups for each in group.flavors}
        if not flavors:
            # Nobody wrote any down: they are plain.
            flavors = {name: Flavor(name) for name in sorted(used)}
        elif self.takes:
            queues = [self._with_flavors(queue, flavors) for queue in queues]
        else:
            flavors = {name: Flavor(name) for name in sorted(used)} | flavors
        return queues, list(self.cohorts.values()), list(flavors.values())

    def _with_flavors(self, queue: Queue, flavors: Mapping[str, Flavor]) -> Queue:
        missing = [each.flavor for group in queue.groups for each in group.flavors if each.flavor not in flavors]
        if not missing or queue.name not in self.takes:
            return queue
        return replace(queue, inactive=f"its flavors {', '.join(missing)} do not exist")

    def scheduler(self) -> Scheduler:
        """Return a scheduler of all that is declared, with nobody in it."""
        queues, cohorts, flavors = self.everything()
        return Scheduler(queues, cohorts, flavors, self.rules)

    def asks(self) -> kueue.Asks:
        """Return what resources stand for."""
        resources = self.configuration.resources
        return kueue.Asks(resources.exclude_resource_prefixes, resources.transformations)

    # ------------------------------------------------------------ jobs

    def job(self, found: Any, where: str) -> "Job":
        """Read one job, Kueue's Workload or the short form, and find its queue.

        Raises:
            DocumentError: it cannot be read.
        """
        if isinstance(found, dict) and found.get("kind") == "Workload":
            return self._kueue_job(found, where)
        if isinstance(found, dict) and "kind" in found:
            raise DocumentError(where, "kind", f"{found['kind']} is no job: Workloads are, and the short form")
        name = found.get("name", "") if isinstance(found, dict) else ""
        document = self.read_warnings.read(own.Job, found, f"{where}: Job/{name}")
        priority = document.priority
        if priority is None:
            priority = self._priority(document.priority_class, document.name)
        workload = document.to_workload(priority)
        unqueued = "" if document.queue in self.queues else f"there is no queue {document.queue}"
        if document.admitted is None or unqueued:
            return Job(workload, None, None, unqueued)
        for field_name in ("flavors", "counts"):
            value = getattr(document.admitted, field_name)
            if isinstance(value, tuple) and len(value) != len(workload.pod_sets):
                raise DocumentError(f"{where}: Job/{name}", f"admitted.{field_name}", "one for each pod set is needed")
        admitted = document.to_admitted(workload)
        self._check_flavors(admitted, f"{where}: Job/{name}", "admitted.flavors")
        return Job(workload, admitted, None, "")

    def _check_flavors(self, admitted: Admitted, where: str, field_name: str) -> None:
        """Refuse an admission that cannot be counted: its use would be wrong by what has no flavor, or a wrong one.

        Raises:
            DocumentError: a flavor is declared nowhere, or a requested resource has none.
        """
        nodes: tuple[Queue | Cohort, ...] = (*self.queues.values(), *self.cohorts.values())
        quotas = {each.flavor for node in nodes for group in node.groups for each in group.flavors}
        known = quotas | self.flavors.keys()
        queue = self.queues[admitted.workload.queue]
        covered = {resource for group in queue.groups for resource in group.resources}
        for pod_set, flavors, count in zip(admitted.workload.pod_sets, admitted.flavors, admitted.counts, strict=True):
            for resource, flavor in flavors.items():
                if flavor not in known:
                    declared = ", ".join(sorted(known)) or "none"
                    raise DocumentError(
                        where,
                        field_name,
                        f"{resource} of pod set {pod_set.name} has flavor {flavor}, "
                        f"which nothing declares; declared flavors: {declared}",
                    )
            for resource, amount in pod_set.requests.items():
                is_counted = resource in covered or not self.rules.ignores_undeclared
                if amount and count and is_counted and resource not in flavors:
                    raise DocumentError(
                        where,
                        field_name,
                        f"pod set {pod_set.name} requests {resource}, and its admission names no flavor for it",
                    )

    def _priority(self, name: str, job: str) -> int:
        if name in self.priorities:
            return self.priorities[name]
        if self.profile is Profile.HYPERPOD:
            return min(self.priorities.values(), default=0)
        if name:
            self.read_warnings.warn(job, f"there is no priority class {name}: priority 0")
        return 0

    def _kueue_job(self, found: Mapping[str, Any], where: str) -> "Job":
        meta = found.get("metadata")
        where = f"{where}: Workload/{meta.get('name', '') if isinstance(meta, dict) else ''}"
        document = self.read_warnings.read(kueue.WorkloadManifest, found, where)
        spec, namespace = document.spec, document.metadata.namespace
        priority = self._priority(document.class_name, where) if spec.priority is None else spec.priority
        local = self._local_queue(namespace, spec.queue_name)
        sub_weight = kueue.weight_of(local.spec.fair_sharing) if local else 1.0
        from_eviction = self.configuration.wait_for_pods_ready.requeuing_strategy.timestamp == "Eviction"
        if document.holds_quota:
            assert document.status.admission is not None
            queue = document.status.admission.cluster_queue
            workload = document.to_workload(
                queue, priority, self.asks(), from_eviction=from_eviction, sub_weight=sub_weight
            )
            missing = "" if queue in self.queues else f"there is no ClusterQueue {queue}"
            admitted = None if missing else document.to_admitted(workload)
            if admitted is not None:
                self._check_flavors(admitted, where, "status.admission.podSetAssignments")
            if admitted is not None and self.stop_of(workload).ends(admitted):
                admitted.is_evicted = True
            return Job(workload, admitted, None, missing, document.missed)
        queue, unqueued = self._queue_of(namespace, spec.queue_name)
        if document.condition("Finished"):
            unqueued = "it is finished"
        elif not spec.active:
            unqueued = "it is not active"
        beyond = sorted({name for pods in spec.pod_sets for name in pods.template.spec.beyond_limits})
        is_other_kind = queue in self.takes and not self.takes[queue].takes(self._labels(namespace))
        barred = ""
        if document.failed_checks:
            barred = f"It failed its admission checks: {', '.join(document.failed_checks)}."
        elif is_other_kind:
            barred = f"Its namespace {namespace or '(none)'} does not match the queue's selector."
        elif beyond:
            barred = f"Its pods ask for more than their own limits: {', '.join(beyond)}."
        workload = document.to_workload(
            queue,
            priority,
            self.asks(),
            barred=barred,
            barred_holds_up=bool(barred) and (bool(document.failed_checks) or not is_other_kind),
            from_eviction=from_eviction,
            sub_weight=sub_weight,
        )
        state = document.status.requeue_state
        not_before = None if state is None or state.requeue_at is None else seconds(state.requeue_at)
        if not_before is None and any(
            each.type == "Requeued" and each.status == "False" for each in document.status.conditions
        ):
            not_before = float("inf")  # until when, nobody said
        return Job(workload, None, not_before, unqueued, document.missed)

    def stop_of(self, workload: Workload) -> StopPolicy:
        """Return whether the LocalQueue that a workload came by is stopped."""
        namespace, _, name = workload.sub_queue.partition("/")
        local = self._local_queue(namespace, name)
        return StopPolicy((local.spec.stop_policy if local else None) or "None")

    def _local_queue(self, namespace: str, name: str) -> kueue.LocalQueue | None:
        """Return a LocalQueue; where no namespace is written, `default` is meant, on both sides."""
        found = self.local_queues.get((namespace, name))
        if found is None and namespace in ("", kueue.DEFAULT_NAMESPACE):
            found = self.local_queues.get(("" if namespace else kueue.DEFAULT_NAMESPACE, name))
        return found

    def _labels(self, namespace: str) -> Mapping[str, str]:
        name = namespace or kueue.DEFAULT_NAMESPACE
        return self.namespaces.get(name, {"kubernetes.io/metadata.name": name})

    def _queue_of(self, namespace: str, name: str) -> tuple[str, str]:
        """Return the queue that a job's queue name leads to, and why it leads nowhere."""
        local = self._local_queue(namespace, name)
        if local is None:
            if not self.local_queues and name in self.queues:
                return name, ""  # nobody wrote LocalQueues down: the name is the queue's
            return (
                "",
                f"there is no LocalQueue {namespace}/{name}" if self.local_queues else f"there is no queue {name}",
            )
        queue = local.spec.cluster_queue
        if queue not in self.queues:
            return queue, f"there is no ClusterQueue {queue}"
        stopped = local.spec.stop_policy not in (None, "", "None")
        return queue, f"LocalQueue {namespace}/{name} is stopped" if stopped else ""


@dataclass(frozen=True, slots=True)
class Job:
    """A job that was read: it waits, or it holds quota, or no queue takes it."""

    workload: Workload
    admitted: Admitted | None
    not_before: float | None
    unqueued: str
    """Why it is in no queue."""
    missed: int = 0
    """How often it missed its ready timeout before."""


def refusals(declared: Queue | Cohort) -> Iterator[str]:
    """Yield what is not allowed about a declaration. Source: Kueue's webhooks of ClusterQueue and Cohort."""
    for group in declared.groups:
        for each in group.flavors:
            for resource, quota in each.quotas.items():
                for refusal in _odd_amounts(quota, declared):
                    yield f"{each.flavor}/{resource}: {refusal}"
            if {*each.quotas} != {*group.resources}:
                yield f"{each.flavor}: its resources are not those that its group covers"
        if len(group.flavors) > 64 or len(group.resources) > 64:
            yield "a group has more than 64 flavors or resources"
        if sum(len(each.quotas) for each in group.flavors) > 512:
            yield "a group has more than 512 pairs of a flavor and a resource"
    if len(declared.groups) > 16:
        yield "there are more than 16 resource groups"
    resources = [resource for group in declared.groups for resource in group.resources]
    flavors = [each.flavor for group in declared.groups for each in group.flavors]
    for what, names in (("resource", resources), ("flavor", flavors)):
        if len(names) > 256:
            yield f"there are more than 256 {what}s"
        for twice, times in sorted(Counter(names).items()):
            if times > 1:
                yield f"{what} {twice} is in two places"
    if declared.fair_weight < 0:
        yield "the weight is negative"
    if isinstance(declared, Queue):
        yield from _odd_policies(declared)


def _odd_amounts(quota: Quota, declared: Queue | Cohort) -> Iterator[str]:
    is_queue = isinstance(declared, Queue)
    parent = declared.cohort if isinstance(declared, Queue) else declared.parent
    if quota.nominal < 0:
        yield "the nominal quota is negative"
    if min(quota.borrow or 0, quota.lend or 0) < 0:
        yield "a limit is negative"
    if is_queue and quota.lend is not None and quota.lend > quota.nominal:
        yield "the lending limit is above the nominal quota"
    if not parent and not (quota.borrow is None and quota.lend is None):
        yield f"limits need a {'cohort' if is_queue else 'parent'}"


def _odd_policies(queue: Queue) -> Iterator[str]:
    if queue.preemption.borrow_within is not None and queue.preemption.reclaim is PreemptionPolicy.NEVER:
        yield "preemption while borrowing needs reclaim"
    both = (queue.fungibility.when_can_borrow, queue.fungibility.when_can_preempt)
    is_odd = queue.fungibility.preference is not Preference.BORROWING_OVER_PREEMPTION
    if is_odd and both != (Fungible.TRY_NEXT, Fungible.TRY_NEXT):
        yield "a preference needs both policies to be TryNextFlavor"


def documents(found: Iterable[Any]) -> list[Any]:
    """Return the documents of a file: `---` separates them, a list holds several."""
    return [inner for each in found for inner in (each if isinstance(each, list) else [each]) if inner is not None]
