"""The declarations of all quota documents together, and the jobs that are read against them.

A quota document has one of three formats, recognised by its fields: Kueue's manifests (`kind`), HyperPod's JSON
(`ComputeQuotaTarget`, `SchedulerConfig`, `InstanceGroups`), and the short form (`queues`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evenkeel.domain.capacity import instance_types
from evenkeel.domain.kueue.objects import (
    Admitted,
    Cohort,
    Flavor,
    NodeTopology,
    Queue,
    StopPolicy,
    Workload,
    with_used_flavors,
)
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.snapshot import SchedulerRules
from evenkeel.domain.queue_simulation import (
    feature_gates,
    hyperpod_cluster_policy,
    manifest_kinds,
    node_manifests,
    pod_limits,
    queue_manifests,
    short_form,
    workload_manifests,
)
from evenkeel.domain.queue_simulation.configuration import Configuration, ResourceRules
from evenkeel.domain.queue_simulation.documents import Document, DocumentError, ReadWarnings, seconds
from evenkeel.domain.queue_simulation.profiles import RULES, Profile
from evenkeel.domain.queue_simulation.webhook_rules import refusals

_FAIR_CONFIGURATIONS = (
    ("LessThanOrEqualToFinalShare",),
    ("LessThanInitialShare",),
    ("LessThanOrEqualToFinalShare", "LessThanInitialShare"),
)
_RULE_BY_GATE = {
    "PartialAdmission": "partial_admission",
    "TASProfileMixed": "least_free_capacity",
    "TASRecomputeAssignmentWithinSchedulingCycle": "recomputes_domains",
    "TopologyAwareScheduling": "follows_topology",
}
"""The rule that a feature gate of Kueue switches."""
_HYPERPOD_FIELDS = frozenset({"ComputeQuotaTarget", "ComputeQuotas", "SchedulerConfig", "InstanceGroups"})


@dataclass(slots=True)
class QuotaDocuments:
    """Everything that quota documents declare."""

    profile: Profile = Profile.KUEUE
    rules: SchedulerRules = RULES[Profile.KUEUE]
    configuration: Configuration = field(default_factory=Configuration)
    types: instance_types.InstanceTypes = field(default_factory=instance_types.shipped_instance_types)
    queues: dict[str, Queue] = field(default_factory=dict)
    cohorts: dict[str, Cohort] = field(default_factory=dict)
    flavors: dict[str, Flavor] = field(default_factory=dict)
    priorities: dict[str, int] = field(default_factory=dict)
    local_queues: dict[tuple[str, str], queue_manifests.LocalQueue] = field(default_factory=dict)
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    cluster_queues: dict[str, queue_manifests.ClusterQueue] = field(default_factory=dict)
    """ClusterQueue manifests by name, for their namespace selectors."""
    topologies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of a Topology → the node labels of its levels."""
    topology_by_flavor: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, node_manifests.NodeManifest] = field(default_factory=dict)
    pods: dict[tuple[str, str], node_manifests.PodManifest] = field(default_factory=dict)
    limit_ranges: dict[tuple[str, str], pod_limits.LimitRange] = field(default_factory=dict)
    """(namespace, name) → the LimitRange."""
    runtime_classes: dict[str, pod_limits.RuntimeClass] = field(default_factory=dict)
    admission_checks: dict[str, queue_manifests.AdmissionCheckManifest] = field(default_factory=dict)
    instance_groups: list[hyperpod_cluster_policy.InstanceGroup] = field(default_factory=list)
    shares_idle: bool = False
    read_warnings: ReadWarnings = field(default_factory=ReadWarnings)

    # ------------------------------------------------------------ reading

    def configure(self, raw: Any, where: str) -> None:
        """Read Kueue's configuration.

        Raises:
            DocumentError: The document cannot be read.
        """
        self.configuration = self.read_warnings.read(Configuration, raw, where)
        sharing = self.configuration.fair_sharing
        self.rules = self.rules._replace(fair_sharing=bool(sharing and sharing.enable))
        if sharing is not None and sharing.preemption_strategies:  # an empty list means the default
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
            if gate in _RULE_BY_GATE:
                self.rules = SchedulerRules(**{**self.rules._asdict(), _RULE_BY_GATE[gate]: is_on})
            elif gate not in feature_gates.DEFAULT_ON | feature_gates.DEFAULT_OFF:
                self.read_warnings.warn(where, f"featureGates.{gate}: Kueue has no such gate up to version 0.20")
            elif is_on != (gate in feature_gates.DEFAULT_ON):
                self.read_warnings.warn(
                    where, f"featureGates.{gate}: {str(is_on).lower()} is not supported and changes no rule"
                )

    def add(self, raw: Any, where: str) -> None:
        """Read one quota document. It replaces a declaration of the same name.

        Raises:
            DocumentError: The document cannot be read.
        """
        for document in manifest_kinds.items_of(raw):
            if isinstance(document, dict) and _HYPERPOD_FIELDS & document.keys():
                self._add_hyperpod_answer(document, where)
            elif isinstance(document, dict) and "kind" in document:
                self._add_manifest(document, where)
            elif isinstance(document, dict) and {"queues", "cohorts", "flavors", "priorityClasses"} & document.keys():
                self._add_short_form(document, where)
            else:
                raise DocumentError(where, "", "is neither a Kueue manifest, nor HyperPod's JSON, nor has it `queues`")

    def _add_manifest(self, raw: Mapping[str, Any], where: str) -> None:
        kind = manifest_kinds.KINDS.get(str(raw["kind"]))
        name = raw["metadata"].get("name", "") if isinstance(raw.get("metadata"), dict) else ""
        if (
            kind is workload_manifests.WorkloadManifest
            or str(raw["kind"]) in manifest_kinds.OTHER_KINDS
            or manifest_kinds.is_other_kind(raw)
        ):
            self.read_warnings.warn(f"{where}: {raw['kind']}/{name}", "declares no quota and is ignored here")
            return
        if kind is None:
            raise DocumentError(where, "kind", f"{raw['kind']} declares no quota")
        where = f"{where}: {raw['kind']}/{name}"
        document = self.read_warnings.read(kind, raw, where)
        match document:
            case queue_manifests.ClusterQueue():
                queue = document.to_queue()
                self._check(queue, where)
                if "namespace_selector" not in document.spec.model_fields_set:
                    self.read_warnings.warn(
                        where, "spec.namespaceSelector is missing: read as {}; Kueue would admit no job"
                    )
                self.queues[name], self.cluster_queues[name] = queue, document
            case queue_manifests.CohortManifest():
                self.cohorts[name] = document.to_cohort()
                self._check(self.cohorts[name], where)
            case queue_manifests.ResourceFlavor():
                self.flavors[name] = document.to_flavor()
                self.topology_by_flavor.pop(name, None)
                if document.spec.topology_name:
                    self.topology_by_flavor[name] = document.spec.topology_name
            case queue_manifests.LocalQueue():
                self.local_queues[(document.metadata.namespace, name)] = document
            case queue_manifests.WorkloadPriorityClass():
                self.priorities[name] = document.value
            case queue_manifests.AdmissionCheckManifest():
                self.admission_checks[name] = document
            case queue_manifests.Namespace():
                self.namespaces[name] = document.labels
            case _:
                self._add_node_manifest(document)

    def _add_node_manifest(self, document: queue_manifests.KubernetesManifest) -> None:
        name = document.metadata.name
        match document:
            case node_manifests.TopologyManifest():
                self.topologies[name] = document.levels
            case node_manifests.NodeManifest():
                self.nodes[name] = document
            case node_manifests.PodManifest():
                self.pods[(document.metadata.namespace, name)] = document
            case pod_limits.LimitRange():
                namespace = document.metadata.namespace or queue_manifests.DEFAULT_NAMESPACE
                self.limit_ranges[(namespace, name)] = document
            case pod_limits.RuntimeClass():
                self.runtime_classes[name] = document

    def _add_hyperpod_answer(self, raw: Mapping[str, Any], where: str) -> None:
        """Add the answer of a HyperPod API call: compute quotas, the scheduler's configuration, or instance groups."""
        file, name = where, raw.get("Name", "")
        if "ComputeQuotaTarget" in raw:
            where = f"{file}: ComputeQuota/{name}"
            quota = self.read_warnings.read(hyperpod_cluster_policy.ComputeQuota, raw, where)
            queue = quota.to_queue(self.types, where)
            self.queues[queue.name] = queue
            namespace = f"hyperpod-ns-{quota.team}"
            local_queue = {
                "metadata": {"name": f"{namespace}-localqueue", "namespace": namespace},
                "spec": {"clusterQueue": queue.name},
            }
            self.local_queues[(namespace, f"{namespace}-localqueue")] = queue_manifests.LocalQueue.model_validate(
                local_queue
            )
            for group in queue.groups:
                for flavor in group.flavors:
                    self.flavors.setdefault(flavor.flavor, hyperpod_cluster_policy.flavor_of(flavor.flavor))
        for compute_quota in raw.get("ComputeQuotas", ()):
            self._add_hyperpod_answer(compute_quota, file)
        if "SchedulerConfig" in raw:
            config = self.read_warnings.read(
                hyperpod_cluster_policy.SchedulerConfig, raw, f"{file}: ClusterSchedulerConfig/{name}"
            )
            self.priorities |= config.priorities
            self.rules = self.rules._replace(fair_sharing=config.scheduler_config.fair_share == "Enabled")
            self.shares_idle = config.scheduler_config.idle_resource_sharing == "Enabled"
        if "InstanceGroups" in raw:
            name = raw.get("ClusterName", "")
            cluster = self.read_warnings.read(hyperpod_cluster_policy.ClusterCapacity, raw, f"{file}: Cluster/{name}")
            self.instance_groups += cluster.instance_groups

    def _add_short_form(self, raw: Mapping[str, Any], where: str) -> None:
        document = self.read_warnings.read(short_form.ShortQuotas, raw, where)
        for queue in document.queues:
            self.queues[queue.name] = queue.to_queue()
            self.cluster_queues.pop(queue.name, None)
            self._check(self.queues[queue.name], f"{where}: queue {queue.name}")
        for cohort in document.cohorts:
            self.cohorts[cohort.name] = cohort.to_cohort()
            self._check(self.cohorts[cohort.name], f"{where}: cohort {cohort.name}")
        self.flavors |= {flavor.name: flavor.to_flavor() for flavor in document.flavors}
        self.priorities |= document.priority_classes
        if document.fair_sharing is not None:
            self.rules = self.rules._replace(fair_sharing=document.fair_sharing)

    def _check(self, declared: Queue | Cohort, where: str) -> None:
        for message in refusals(declared):
            self.read_warnings.warn(where, f"{message}; Kueue would refuse it")

    # ------------------------------------------------------------ for the scheduler

    def everything(self) -> tuple[list[Queue], list[Cohort], list[Flavor]]:
        """Return the queues, cohorts and flavors for the scheduler."""
        queues = list(self.queues.values())
        if self.shares_idle and self.instance_groups:
            queues.append(hyperpod_cluster_policy.idle_queue(self.instance_groups, queues, self.types))
        flavors = dict(self.flavors)
        if flavors and self.cluster_queues:
            queues = [self._with_flavors(queue, flavors) for queue in queues]
        else:
            flavors = with_used_flavors(flavors, queues)
        if self.admission_checks:
            queues = [self._with_checks(queue) for queue in queues]
        if self.follows_topology:
            queues = [self._with_topologies(queue) for queue in queues]
            flavors |= self._flavors_with_topology(flavors)
        elif self.topology_by_flavor and self.rules.follows_topology:
            names = ", ".join(sorted(self.topology_by_flavor))
            self.read_warnings.warn("topology", f"no file has a Node, so the topologies of {names} are ignored")
        return queues, list(self.cohorts.values()), list(flavors.values())

    @property
    def follows_topology(self) -> bool:
        """Whether topologies are part of the plan: a flavor has one, and a Node is declared."""
        return bool(self.topology_by_flavor) and bool(self.nodes) and self.rules.follows_topology

    def _with_topologies(self, queue: Queue) -> Queue:
        missing = [
            f"there is no Topology {topology} for its flavor {flavor.flavor}"
            for group in queue.groups
            for flavor in group.flavors
            if (topology := self.topology_by_flavor.get(flavor.flavor)) and topology not in self.topologies
        ]
        if not missing:
            return queue
        self.read_warnings.warn(f"ClusterQueue/{queue.name}", f"{missing[0]}, so it admits no job")
        return replace(queue, inactive=queue.inactive or missing[0])

    def _flavors_with_topology(self, flavors: Mapping[str, Flavor]) -> dict[str, Flavor]:
        """Return the flavors that have a topology, with the nodes of each."""
        used: dict[str, Counter[str]] = {}
        for pod in self.pods.values():
            used.setdefault(pod.spec.node_name, Counter()).update(pod.takes_of_node)
        nodes = {
            name: (node, node.to_node(used.get(name, {}))) for name, node in self.nodes.items() if node.may_take_pods
        }
        with_topology = {}
        for name, topology in self.topology_by_flavor.items():
            flavor, levels = flavors[name], self.topologies.get(topology, ())
            members = tuple(node for manifest, node in nodes.values() if manifest.matches(flavor.labels, levels))
            if levels:
                with_topology[name] = replace(flavor, topology=NodeTopology(topology, levels, members))
                if not members:
                    self.read_warnings.warn(
                        f"ResourceFlavor/{name}", f"no ready Node has its labels and each level of {topology}"
                    )
        return with_topology

    def _with_checks(self, queue: Queue) -> Queue:
        """Return a queue that admits no job if one of its admission checks is missing or inactive, as in Kueue."""
        missing = [check.name for check in queue.checks if check.name not in self.admission_checks]
        inactive = [check.name for check in queue.checks if check.name not in missing]
        inactive = [name for name in inactive if self.admission_checks[name].is_inactive]
        reason = ""
        if missing:
            reason = f"there is no AdmissionCheck {', '.join(missing)}"
        elif inactive:
            reason = f"its AdmissionCheck {', '.join(inactive)} is not active"
        if not reason:
            return queue
        self.read_warnings.warn(f"ClusterQueue/{queue.name}", f"{reason}, so it admits no job")
        return replace(queue, inactive=queue.inactive or reason)

    def _with_flavors(self, queue: Queue, flavors: Mapping[str, Flavor]) -> Queue:
        missing = [flavor.flavor for group in queue.groups for flavor in group.flavors if flavor.flavor not in flavors]
        if not missing or queue.name not in self.cluster_queues:
            return queue
        return replace(queue, inactive=f"its flavors {', '.join(missing)} do not exist")

    def scheduler(self) -> Scheduler:
        """Return a scheduler of all declarations, without workloads."""
        queues, cohorts, flavors = self.everything()
        return Scheduler(queues, cohorts, flavors, self.rules)

    def resource_rules(self) -> ResourceRules:
        """Return which resources of a request count against quota."""
        resources = self.configuration.resources
        return ResourceRules(resources.exclude_resource_prefixes, resources.transformations)

    # ------------------------------------------------------------ jobs

    def job(self, raw: Any, where: str) -> "DeclaredJob":
        """Read one job, a Kueue Workload or the short form, and find its queue.

        Raises:
            DocumentError: The document cannot be read.
        """
        if isinstance(raw, dict) and raw.get("kind") == "Workload":
            return self._kueue_job(raw, where)
        if isinstance(raw, dict) and "kind" in raw:
            raise DocumentError(where, "kind", f"{raw['kind']} is not a job; a job is a Workload or the short form")
        name = raw.get("name", "") if isinstance(raw, dict) else ""
        document = self.read_warnings.read(short_form.ShortJob, raw, f"{where}: Job/{name}")
        priority = document.priority
        if priority is None:
            priority = self._priority(document.priority_class, document.name)
        workload = document.to_workload(priority)
        unqueued = "" if document.queue in self.queues else f"there is no queue {document.queue}"
        if document.admitted is None or unqueued:
            return DeclaredJob(workload, None, None, unqueued)
        for field_name in ("flavors", "counts"):
            value = getattr(document.admitted, field_name)
            if isinstance(value, tuple) and len(value) != len(workload.pod_sets):
                raise DocumentError(
                    f"{where}: Job/{name}", f"admitted.{field_name}", "must have one entry for each pod set"
                )
        admitted = document.to_admitted(workload)
        self._check_flavors(admitted, f"{where}: Job/{name}", "admitted.flavors")
        return DeclaredJob(workload, admitted, None, "")

    def _check_flavors(self, admitted: Admitted, where: str, field_name: str) -> None:
        """Refuse an admission from which the use cannot be computed.

        Raises:
            DocumentError: A flavor is not declared, or a requested resource has no flavor.
        """
        nodes: tuple[Queue | Cohort, ...] = (*self.queues.values(), *self.cohorts.values())
        quotas = {flavor_quotas.flavor for node in nodes for group in node.groups for flavor_quotas in group.flavors}
        known_flavors = quotas | self.flavors.keys()
        queue = self.queues[admitted.workload.queue]
        covered = {resource for group in queue.groups for resource in group.resources}
        for pod_set, flavors, count in zip(admitted.workload.pod_sets, admitted.flavors, admitted.counts, strict=True):
            for resource, flavor in flavors.items():
                if flavor not in known_flavors:
                    declared = ", ".join(sorted(known_flavors)) or "none"
                    raise DocumentError(
                        where,
                        field_name,
                        f"{resource} of pod set {pod_set.name} has flavor {flavor}, "
                        f"which is not declared; declared flavors: {declared}",
                    )
            for resource, amount in pod_set.requests.items():
                is_counted = resource in covered or not self.rules.ignores_undeclared
                if amount and count and is_counted and resource not in flavors:
                    raise DocumentError(
                        where,
                        field_name,
                        f"pod set {pod_set.name} requests {resource}, but its admission names no flavor for it",
                    )

    def _priority(self, name: str, job: str) -> int:
        if name in self.priorities:
            return self.priorities[name]
        if self.profile is Profile.HYPERPOD:
            return min(self.priorities.values(), default=0)
        if name:
            self.read_warnings.warn(job, f"there is no priority class {name}: the job gets priority 0")
        return 0

    def _kueue_job(self, raw: Mapping[str, Any], where: str) -> "DeclaredJob":
        meta = raw.get("metadata")
        where = f"{where}: Workload/{meta.get('name', '') if isinstance(meta, dict) else ''}"
        document = self.read_warnings.read(workload_manifests.WorkloadManifest, raw, where)
        limits = self._limits_of(document.metadata.namespace)
        document = self._with_pod_defaults(document, limits, where)
        spec, namespace = document.spec, document.metadata.namespace
        self._report_topology(document, where)
        priority = self._priority(document.class_name, where) if spec.priority is None else spec.priority
        local = self._local_queue(namespace, spec.queue_name)
        sub_weight = queue_manifests.weight_of(local.spec.fair_sharing) if local else 1.0
        from_eviction = self.configuration.wait_for_pods_ready.requeuing_strategy.timestamp == "Eviction"
        if document.holds_quota:
            assert document.status.admission is not None
            queue = document.status.admission.cluster_queue
            workload = document.to_workload(
                queue, priority, self.resource_rules(), from_eviction=from_eviction, sub_weight=sub_weight
            )
            missing = "" if queue in self.queues else f"there is no ClusterQueue {queue}"
            admitted = None if missing else document.to_admitted(workload)
            if admitted is not None:
                self._check_flavors(admitted, where, "status.admission.podSetAssignments")
            if admitted is not None and self.stop_of(workload).ends(admitted):
                admitted.is_evicted = True
            return DeclaredJob(workload, admitted, None, missing, document.missed)
        queue, unqueued = self._queue_of(namespace, spec.queue_name)
        if document.condition("Finished"):
            unqueued = "it is finished"
        elif not spec.active:
            unqueued = "it is not active"
        beyond = sorted({name for pods in spec.pod_sets for name in pods.template.spec.beyond_limits})
        pods_of_sets = (pods.template.spec for pods in spec.pod_sets)
        broken = tuple(
            dict.fromkeys(text for pod_spec in pods_of_sets for text in pod_limits.broken_limits(pod_spec, limits))
        )
        matches_namespace = queue not in self.cluster_queues or self.cluster_queues[queue].accepts(
            self._labels(namespace)
        )
        inadmissible_reason = ""
        if document.failed_checks:
            inadmissible_reason = f"The job failed its admission checks: {', '.join(document.failed_checks)}."
        elif not matches_namespace:
            inadmissible_reason = f"The job's namespace {namespace or '(none)'} does not match its queue's selector."
        elif beyond:
            inadmissible_reason = f"The job's pods request more than their own limits: {', '.join(beyond)}."
        elif broken:
            inadmissible_reason = f"The job's pods break a LimitRange of their namespace: {', '.join(broken)}."
        workload = document.to_workload(
            queue,
            priority,
            self.resource_rules(),
            inadmissible_reason=inadmissible_reason,
            blocks_when_inadmissible=bool(inadmissible_reason) and (bool(document.failed_checks) or matches_namespace),
            from_eviction=from_eviction,
            sub_weight=sub_weight,
        )
        state = document.status.requeue_state
        not_before = None if state is None or state.requeue_at is None else seconds(state.requeue_at)
        if not_before is None and any(
            condition.type == "Requeued" and condition.status == "False" for condition in document.status.conditions
        ):
            not_before = float("inf")  # no document says when the backoff ends
        return DeclaredJob(workload, None, not_before, unqueued, document.missed)

    def _limits_of(self, namespace: str) -> dict[str, pod_limits.LimitRangeItem]:
        """Return the limits of the pods of a namespace."""
        name = namespace or queue_manifests.DEFAULT_NAMESPACE
        return pod_limits.summarize(
            limit_range for (inside, _), limit_range in sorted(self.limit_ranges.items()) if inside == name
        )

    def _with_pod_defaults(
        self,
        document: workload_manifests.WorkloadManifest,
        limits: Mapping[str, pod_limits.LimitRangeItem],
        where: str,
    ) -> workload_manifests.WorkloadManifest:
        """Return a Workload whose pods have the defaults of their namespace and the overhead of their runtime class."""
        pod_sets = []
        for pods in document.spec.pod_sets:
            pod_spec = pods.template.spec
            name = pod_spec.runtime_class_name
            if name and not pod_spec.overhead and name not in self.runtime_classes:
                self.read_warnings.warn(where, f"no file has RuntimeClass {name}, so its overhead does not count")
            adjusted = pod_limits.with_defaults(pod_spec, limits, self.runtime_classes)
            template = pods.template.model_copy(update={"spec": adjusted})
            pod_sets.append(pods.model_copy(update={"template": template}))
        spec = document.spec.model_copy(update={"pod_sets": tuple(pod_sets)})
        return document.model_copy(update={"spec": spec})

    def _report_topology(self, document: workload_manifests.WorkloadManifest, where: str) -> None:
        """Warn of a topology request or assignment that the plan cannot follow."""
        if not self.follows_topology:
            if any(pods.requested_topology and pods.requested_topology.to_request() for pods in document.spec.pod_sets):
                self.read_warnings.warn(
                    where, "its topology request is ignored: no flavor has a topology, or no file has a Node"
                )
            return
        admission = document.status.admission
        for assigned in admission.pod_set_assignments if admission and document.holds_quota else ():
            if assigned.topology_assignment is None and self.topology_by_flavor.keys() & set(assigned.flavors.values()):
                self.read_warnings.warn(
                    where, f"pod set {assigned.name} has no topologyAssignment: its pods count on no node"
                )

    def stop_of(self, workload: Workload) -> StopPolicy:
        """Return the stop policy of the LocalQueue of a workload."""
        namespace, _, name = workload.sub_queue.partition("/")
        local = self._local_queue(namespace, name)
        return StopPolicy((local.spec.stop_policy if local else None) or "None")

    def _local_queue(self, namespace: str, name: str) -> queue_manifests.LocalQueue | None:
        """Return a LocalQueue. An omitted namespace means `default`, for the job and for the LocalQueue."""
        local_queue = self.local_queues.get((namespace, name))
        if local_queue is None and namespace in ("", queue_manifests.DEFAULT_NAMESPACE):
            local_queue = self.local_queues.get(("" if namespace else queue_manifests.DEFAULT_NAMESPACE, name))
        return local_queue

    def _labels(self, namespace: str) -> Mapping[str, str]:
        name = namespace or queue_manifests.DEFAULT_NAMESPACE
        return self.namespaces.get(name, {"kubernetes.io/metadata.name": name})

    def _queue_of(self, namespace: str, name: str) -> tuple[str, str]:
        """Return the queue that a job's queue name refers to, and why it refers to none."""
        local = self._local_queue(namespace, name)
        if local is None:
            if not self.local_queues and name in self.queues:
                return name, ""  # no document has a LocalQueue: the name is the queue's
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
class DeclaredJob:
    """A job read from a document: pending, or holding quota, or in no queue."""

    workload: Workload
    admitted: Admitted | None
    not_before: float | None
    unqueued: str
    """Why it is in no queue; empty if it is in one."""
    missed: int = 0
    """How often its pods missed their ready timeout so far."""


class Jobs(Document):
    """Several jobs, in the short form or as Kueue's Workloads."""

    jobs: tuple[short_form.ShortJob | workload_manifests.WorkloadManifest, ...]


def documents(raw: Iterable[Any]) -> list[Any]:
    """Return the documents of a file: separated by `---`, or in a list."""
    return [
        inner
        for document in raw
        for inner in (document if isinstance(document, list) else [document])
        if inner is not None
    ]
