"""Karpenter: it launches NodeClaims for pending pods from NodePools, and removes nodes.

Modelled: requirements, weights and limits of pools. The cheapest fitting offering. Launch and registration delays.
Offerings without capacity, which are not retried for a while. Start-up taints and initialization. Termination with
draining. Consolidation of empty and underused nodes within disruption budgets. Spot interruptions. Node repair, if it
is enabled. Not modelled: drift, expiry, replacement by a cheaper node.

Source: the concepts pages of karpenter.sh, version 1.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.admission import random_suffix
from evenkeel_local.gpu_cluster.cluster_events import EventPublisher
from evenkeel_local.gpu_cluster.config import ClusterConfig, KarpenterSettings
from evenkeel_local.gpu_cluster.custom_kinds import resource_definition
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.kubelet import Kubelet, KubeletDirectory
from evenkeel_local.gpu_cluster.machines import EFA, PODS_PER_NODE, node_status, resources_of_type
from evenkeel_local.gpu_cluster.objects import (
    annotations_of,
    condition_of,
    has_ended,
    is_deleting,
    is_true,
    labels_of,
    owner_reference,
    remove_finalizer,
)
from evenkeel_local.gpu_cluster.pod_topology import Amounts, NodeCapacityView, amounts_of
from evenkeel_local.gpu_cluster.quantities import parse_quantity
from evenkeel_local.gpu_cluster.registry import Registry, set_condition
from evenkeel_local.gpu_cluster.scheduler import refusal_reason, requests_of
from evenkeel_local.gpu_cluster.selectors import matches_expression
from evenkeel_local.gpu_cluster.store import ResourceType, Store, name_of, namespace_of

GROUP = "karpenter.sh"
TERMINATION = f"{GROUP}/termination"
POOL_LABEL, CAPACITY_LABEL = f"{GROUP}/nodepool", f"{GROUP}/capacity-type"
DO_NOT_DISRUPT = f"{GROUP}/do-not-disrupt"
REPAIR_SHARE = 0.2
DISRUPTED = {"key": f"{GROUP}/disrupted", "effect": "NoSchedule"}
PERIOD_SECONDS = 0.1
SPOT_WARNING = "EC2 Spot Instance Interruption Warning"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


@dataclass(frozen=True)
class Offering:
    """An instance type in a zone and capacity type, with its price."""

    instance_type: str
    zone: str
    capacity_type: str
    usd_per_hour: float
    machines: int | None

    @property
    def labels(self) -> dict[str, str]:
        """The well-known labels of a node of this offering."""
        gpus = resources_of_type(self.instance_type).get("nvidia.com/gpu", "0")
        return {
            "node.kubernetes.io/instance-type": self.instance_type,
            "topology.kubernetes.io/zone": self.zone,
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            CAPACITY_LABEL: self.capacity_type,
            "karpenter.k8s.aws/instance-family": self.instance_type.split(".")[0],
            "karpenter.k8s.aws/instance-gpu-count": gpus,
        }

    @property
    def resources(self) -> dict[str, str]:
        """The resources of such a node."""
        return {"pods": PODS_PER_NODE, **resources_of_type(self.instance_type)}


@dataclass
class Instance:
    """The machine of one NodeClaim."""

    claim: str
    offering: Offering
    instance_id: str = field(default_factory=lambda: f"i-{secrets.token_hex(9)[:17]}")
    node_name: str = ""
    kubelet: Kubelet | None = None
    empty_since: float | None = None
    ended: bool = False


def parse_duration(text: str | None) -> float | None:
    """Read a duration such as `1m30s`; None for `Never`."""
    if not text or text == "Never":
        return None
    scale = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    return sum(float(number) * scale[unit] for number, unit in _DURATION.findall(text))


def definitions() -> list[Obj]:
    """Return the custom resource definitions of Karpenter, with open schemas."""
    ready = ("Ready", '.status.conditions[?(@.type=="Ready")].status')
    return [
        resource_definition(
            GROUP, "nodepools", "NodePool", columns=[("NodeClass", ".spec.template.spec.nodeClassRef.name"), ready]
        ),
        resource_definition(
            GROUP,
            "nodeclaims",
            "NodeClaim",
            columns=[
                ("Type", ".metadata.labels.node\\.kubernetes\\.io/instance-type"),
                ("Capacity", ".metadata.labels.karpenter\\.sh/capacity-type"),
                ("Zone", ".metadata.labels.topology\\.kubernetes\\.io/zone"),
                ("Node", ".status.nodeName"),
                ready,
            ],
        ),
        resource_definition(
            "karpenter.k8s.aws", "ec2nodeclasses", "EC2NodeClass", short=["ec2nc", "ec2ncs"], columns=[ready]
        ),
    ]


class Karpenter:
    """The controllers of Karpenter, in one loop."""

    def __init__(
        self,
        config: ClusterConfig,
        settings: KarpenterSettings,
        registry: Registry,
        directory: KubeletDirectory,
        bus: EventPublisher,
    ) -> None:
        self._config = config
        self.settings = settings
        self._registry = registry
        self._store: Store = registry.store
        self._directory = directory
        self._bus = bus
        self._instances: dict[str, Instance] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._out_of_capacity: dict[tuple[str, str, str], float] = {}
        self._count = 0
        self._paused: set[str] = set()
        """Pools with paused repair: too many of their nodes are unhealthy."""
        self._offerings = [
            Offering(item.instance_type, zone, capacity_type, price, item.machines)
            for item in settings.offerings
            for zone in item.zones
            for capacity_type, price in (("on-demand", item.usd_per_hour), ("spot", item.spot_usd_per_hour))
            if price is not None
        ]
        self.zones_out: list[str] = []
        """Zones without capacity; a zone occurs once for each outage."""
        self.machines_left: dict[tuple[str, str, str], int] = {}
        """Capacity of offerings that the control address changed."""

    def install(self) -> None:
        """Create the custom resource definitions."""
        for document in definitions():
            self._registry.create(catalogue.DEFINITIONS, "", document)

    def _type(self, kind: str) -> ResourceType:
        resource_type = self._registry.types.by_kind(f"{GROUP}/v1", kind)
        assert resource_type is not None, "the definitions are installed"
        return resource_type

    @property
    def _pools(self) -> list[Obj]:
        pools = [pool for pool in self._store.all((GROUP, "nodepools")) if not is_deleting(pool)]
        return sorted(pools, key=lambda pool: (-int(pool["spec"].get("weight") or 0), name_of(pool)))

    @property
    def _claims(self) -> list[Obj]:
        return self._store.all((GROUP, "nodeclaims"))

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            self._check_pools()
            self._provision()
            for claim in self._claims:
                self._advance(claim)
            self._repair()
            self._consolidate()

    def stop(self) -> None:
        """Cancel everything, and switch every machine off."""
        for task in list(self._tasks):
            task.cancel()
        for instance in self._instances.values():
            if instance.kubelet is not None:
                instance.kubelet.power_off()

    # Pools

    def _check_pools(self) -> None:
        for pool in self._pools:
            used_amounts = self._used_resources(name_of(pool))
            shown = {name: _format_amount(amount) for name, amount in used_amounts.items()}

            def write(obj: Obj, shown: dict[str, str] = shown) -> None:
                status = obj.setdefault("status", {})
                status["resources"] = shown
                for kind in ("ValidationSucceeded", "NodeClassReady", "Ready"):
                    set_condition(status, kind, "True", kind)

            self._registry.change(pool, write)

    def _used_resources(self, pool: str) -> Amounts:
        used_amounts: Amounts = {"nodes": Decimal(0)}
        for claim in self._claims:
            if labels_of(claim).get(POOL_LABEL) == pool:
                used_amounts["nodes"] += 1
                for name, amount in ((claim.get("status") or {}).get("capacity") or {}).items():
                    used_amounts[name] = used_amounts.get(name, Decimal(0)) + parse_quantity(amount)
        return used_amounts

    # Provisioning

    def _pending_pods(self) -> list[Obj]:
        documents = [
            pod
            for pod in self._store.each(catalogue.PODS.key)
            if (condition_of(pod, "PodScheduled") or {}).get("reason") == "Unschedulable"
            and not (pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName") or is_deleting(pod))
        ]
        return sorted(
            documents, key=lambda pod: (-int(pod["spec"].get("priority") or 0), pod["metadata"]["creationTimestamp"])
        )

    def _provision(self) -> None:
        pending_pods = self._pending_pods()
        if not pending_pods or not self._pools:
            return
        capacities = [self._capacity_of(claim) for claim in self._claims if self._is_launching(claim)]
        for pod in pending_pods:
            requests = requests_of(pod["spec"])
            capacity = next(
                (capacity for capacity in capacities if refusal_reason(pod, requests, capacity) is None), None
            )
            if capacity is None:
                claim = self._new_claim(pod, requests)
                if claim is None:
                    continue
                capacity = self._capacity_of(claim)
                capacities.append(capacity)
            capacity.subtract(requests)

    def _is_launching(self, claim: Obj) -> bool:
        return not is_deleting(claim) and not is_true(claim, "Initialized")

    def _capacity_of(self, claim: Obj) -> NodeCapacityView:
        spec = {"taints": claim["spec"].get("taints") or []}
        node = {"metadata": {"name": name_of(claim), "labels": labels_of(claim)}, "spec": spec}
        status = claim.get("status") or {}
        capacity = NodeCapacityView(node, amounts_of(status.get("capacity")))
        for pod in self._store.pods_on(status.get("nodeName") or ""):
            capacity.subtract(requests_of(pod["spec"]))
        return capacity

    def _new_claim(self, pod: Obj, requests: Amounts) -> Obj | None:
        now = time.monotonic()
        for pool in self._pools:
            template = (pool["spec"].get("template") or {}).get("spec") or {}
            labels = ((pool["spec"].get("template") or {}).get("metadata") or {}).get("labels") or {}
            labels = {**labels, POOL_LABEL: name_of(pool)}
            for offering in sorted(self._offerings, key=lambda item: item.usd_per_hour):
                all_labels = {**labels, **offering.labels}
                if self._out_of_capacity.get(_offering_key(offering), 0) > now:
                    continue
                if not all(matches_expression(term, all_labels) for term in template.get("requirements") or ()):
                    continue
                spec = {"taints": template.get("taints") or []}
                node = {"metadata": {"name": "", "labels": all_labels}, "spec": spec}
                capacity = NodeCapacityView(node, amounts_of(offering.resources))
                if refusal_reason(pod, requests, capacity) is None and self._within_limits(pool, offering):
                    return self._create_claim(pool, template, all_labels, offering, requests)
        return None

    def _within_limits(self, pool: Obj, offering: Offering) -> bool:
        used_amounts = self._used_resources(name_of(pool))
        more = {**offering.resources, "nodes": "1"}
        for name, limit in (pool["spec"].get("limits") or {}).items():
            if used_amounts.get(name, Decimal(0)) + parse_quantity(more.get(name, "0")) > parse_quantity(limit):
                message = f"{name} limit of {limit} would be exceeded"
                self._registry.record(pool, "LimitExceeded", message, "Warning", "karpenter")
                return False
        return True

    def _create_claim(
        self, pool: Obj, template: Obj, labels: dict[str, str], offering: Offering, requests: Amounts
    ) -> Obj:
        resources = offering.resources
        if EFA not in requests:
            # A machine gets EFA interfaces only if one of its first pods requests them, as in the AWS provider.
            resources = {name: amount for name, amount in resources.items() if name != EFA}
        claim: Obj = {
            "metadata": {
                "name": f"{name_of(pool)}-{random_suffix()}",
                "labels": labels,
                "finalizers": [TERMINATION],
                "ownerReferences": [owner_reference(pool, controller=False)],
            },
            "spec": {
                "requirements": template.get("requirements") or [],
                "taints": template.get("taints") or [],
                "startupTaints": template.get("startupTaints") or [],
                "nodeClassRef": template.get("nodeClassRef") or {},
                "resources": {"requests": {name: _format_amount(amount) for name, amount in requests.items()}},
            },
            "status": {"capacity": resources, "allocatable": resources},
        }
        created_claim = self._registry.create(self._type("NodeClaim"), "", claim, trusted=True)
        instance = Instance(name_of(created_claim), offering)
        self._instances[instance.claim] = instance
        task = asyncio.create_task(self._launch(instance))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return created_claim

    # NodeClaims

    def _find_claim(self, claim: str) -> Obj | None:
        return self._store.find((GROUP, "nodeclaims"), "", claim)

    def _change_claim(self, claim: str, change: Callable[[Obj], Any]) -> None:
        if (found_claim := self._find_claim(claim)) is not None:
            self._registry.change(found_claim, change)

    def _delete_claim(self, claim: str) -> None:
        if (found_claim := self._find_claim(claim)) is not None:
            self._registry.remove(found_claim)

    def _set_claim_condition(self, claim: str, kind: str, reason: str = "") -> None:
        self._change_claim(claim, lambda obj: set_condition(obj.setdefault("status", {}), kind, "True", reason or kind))

    async def _launch(self, instance: Instance) -> None:
        await asyncio.sleep(self.settings.launch)
        claim = self._find_claim(instance.claim)
        if claim is None or is_deleting(claim):
            return
        offering, key = instance.offering, _offering_key(instance.offering)
        running_instances = sum(
            1 for other in self._instances.values() if _offering_key(other.offering) == key and other.node_name
        )
        limit = 0 if offering.zone in self.zones_out else self.machines_left.get(key, offering.machines)
        if limit is not None and running_instances >= limit:
            self._out_of_capacity[key] = time.monotonic() + self.settings.capacity_memory
            text = f"creating instance, insufficient capacity, with fleet error(s), InsufficientInstanceCapacity: {key}"
            self._registry.record(claim, "InsufficientCapacityError", text, "Warning", "karpenter")
            self._abandon_claim(instance)
            return
        self._count += 1
        address = f"10.2.{self._count // 250}.{self._count % 250 + 1}"
        instance.node_name = f"ip-{address.replace('.', '-')}.{self._config.region}.compute.internal"
        provider = f"aws:///{offering.zone}/{instance.instance_id}"
        self._change_claim(instance.claim, lambda obj: obj["status"].update(providerID=provider))
        self._set_claim_condition(instance.claim, "Launched")
        await asyncio.sleep(self.settings.register_)
        claim = self._find_claim(instance.claim)
        if claim is not None and not instance.ended:
            self._join(instance, claim, provider, address)

    def _join(self, instance: Instance, claim: Obj, provider: str, address: str) -> None:
        instance.kubelet = self._directory.create(instance.node_name)
        taints = [*(claim["spec"].get("taints") or ()), *(claim["spec"].get("startupTaints") or ())]
        instance.kubelet.boot(
            {
                "metadata": {
                    "name": instance.node_name,
                    "labels": {
                        **claim["metadata"]["labels"],
                        "kubernetes.io/hostname": instance.node_name,
                        f"{GROUP}/registered": "true",
                    },
                    "finalizers": [TERMINATION],
                    "ownerReferences": [owner_reference(claim, controller=False)],
                },
                "spec": {"providerID": provider, **({"taints": taints} if taints else {})},
                "status": node_status(
                    claim["status"]["capacity"],
                    address,
                    instance.node_name,
                    boot_id=str(uuid.uuid4()),
                    instance_id=instance.instance_id,
                    uuid=instance.instance_id,
                    system="Amazon Linux 2023/6.1.0",
                ),
            }
        )
        self._change_claim(instance.claim, lambda obj: obj["status"].update(nodeName=instance.node_name))
        self._set_claim_condition(instance.claim, "Registered")

    def _advance(self, claim: Obj) -> None:
        instance = self._instances.get(name_of(claim))
        node_name = (claim.get("status") or {}).get("nodeName")
        node = self._store.find(catalogue.NODES.key, "", node_name) if node_name else None
        if node is not None and is_deleting(node) and not is_deleting(claim):
            self._registry.remove(claim)
            return
        if is_deleting(claim):
            self._terminate(claim, instance, node)
        elif node is not None and not is_true(claim, "Initialized"):
            self._initialize(claim, node)

    def _initialize(self, claim: Obj, node: Obj) -> None:
        keys = {taint["key"] for taint in node["spec"].get("taints") or ()}
        startup_taints = {taint["key"] for taint in claim["spec"].get("startupTaints") or ()}
        if not is_true(node, "Ready") or keys & startup_taints:
            return
        ready = {f"{GROUP}/initialized": "true"}
        self._registry.change(node, lambda obj: obj["metadata"]["labels"].update(ready))
        self._set_claim_condition(name_of(claim), "Initialized")
        self._set_claim_condition(name_of(claim), "Ready")

    # Ending

    def _terminate(self, claim: Obj, instance: Instance | None, node: Obj | None) -> None:
        """Taint the node, evict its pods within their budgets, and then end the machine."""
        if node is not None and instance is not None and not instance.ended:
            self._mark_disrupted(node)
            running_pods = self._running_on(name_of(node))
            for pod in running_pods:
                if not is_deleting(pod):
                    self._evict(pod)
            if running_pods:
                return
        if instance is not None:
            self._end_machine(instance)
        if node is None or self._store.find(catalogue.NODES.key, "", name_of(node)) is None:
            self._drop_claim(name_of(claim))

    def _mark_disrupted(self, node: Obj) -> None:
        if any(taint["key"] == DISRUPTED["key"] for taint in node["spec"].get("taints") or ()):
            return
        self._registry.change(node, lambda obj: obj["spec"].setdefault("taints", []).append(dict(DISRUPTED)))

    def _evict(self, pod: Obj) -> None:
        try:
            self._registry.evict(namespace_of(pod), name_of(pod), {})
        except ApiError as refusal:
            if refusal.code not in (404, 429, 500):
                raise

    def _end_machine(self, instance: Instance) -> None:
        instance.ended = True
        if instance.kubelet is not None:
            instance.kubelet.power_off()
            self._directory.remove(instance.node_name)
        node = self._store.find(catalogue.NODES.key, "", instance.node_name)
        if node is not None:
            self._registry.change(node, _remove_finalizer)
            if self._store.find(catalogue.NODES.key, "", instance.node_name) is not None:
                self._registry.remove(node, {"propagationPolicy": "Background"})

    def _abandon_claim(self, instance: Instance) -> None:
        """Delete a claim that has no machine."""
        self._delete_claim(instance.claim)
        self._drop_claim(instance.claim)

    def _drop_claim(self, name: str) -> None:
        self._instances.pop(name, None)
        self._change_claim(name, _remove_finalizer)

    # Node repair

    def _repair(self) -> None:
        """End nodes that were unhealthy for too long, regardless of budgets; pause if too many nodes are unhealthy.

        Source: the node repair pages of karpenter.sh and of EKS: a fifth of a pool, rounded up, may be unhealthy.
        """
        if not self.settings.node_repair:
            return
        now = datetime.now(UTC)
        for pool in self._pools:
            nodes = self._nodes_of(name_of(pool))
            faulty = [(claim, since) for claim, node in nodes if (since := self._unhealthy_since(node)) is not None]
            if len(faulty) > math.ceil(len(nodes) * REPAIR_SHARE):
                if name_of(pool) not in self._paused:
                    self._paused.add(name_of(pool))
                    message = f"more than {REPAIR_SHARE:.0%} nodes are unhealthy in the nodepool"
                    self._registry.record(pool, "NodeRepairBlocked", message, "Warning", "karpenter")
                continue
            self._paused.discard(name_of(pool))
            for claim, (began, wait) in faulty:
                if now - began >= timedelta(seconds=wait):
                    instance = self._instances.get(name_of(claim))
                    self._registry.record(claim, "DisruptionTerminating", "Disrupting Node: unhealthy", "Warning")
                    self._registry.remove(claim)
                    if instance is not None:
                        # No grace period: neither a budget nor a pod that does not end can keep the machine.
                        self.end_after(instance, self.settings.repair_drain)

    def _nodes_of(self, pool: str) -> list[tuple[Obj, Obj]]:
        nodes = []
        for claim in self._claims:
            node_name = (claim.get("status") or {}).get("nodeName")
            node = self._store.find(catalogue.NODES.key, "", node_name) if node_name else None
            is_in_pool = labels_of(claim).get(POOL_LABEL) == pool
            if is_in_pool and node is not None and not is_deleting(claim):
                nodes.append((claim, node))
        return nodes

    def _unhealthy_since(self, node: Obj) -> tuple[datetime, float] | None:
        """Return since when a node is unhealthy, and the seconds until its repair, for the condition due first."""
        unhealthy_conditions = []
        for condition_type, wait_seconds in self.settings.node_repair.items():
            condition = condition_of(node, condition_type)
            if condition is not None and condition["status"] in (
                ("False", "Unknown") if condition_type == "Ready" else ("False",)
            ):
                unhealthy_conditions.append((datetime.fromisoformat(condition["lastTransitionTime"]), wait_seconds))
        return min(unhealthy_conditions, key=lambda item: item[0] + timedelta(seconds=item[1]), default=None)

    # Consolidation

    def _consolidate(self) -> None:
        for pool in self._pools:
            disruption = pool["spec"].get("disruption") or {}
            after_seconds = parse_duration(str(disruption.get("consolidateAfter", "0s")))
            if after_seconds is None:
                continue
            takes_underused = (
                disruption.get("consolidationPolicy", "WhenEmptyOrUnderutilized") == "WhenEmptyOrUnderutilized"
            )
            claims = [c for c in self._claims if labels_of(c).get(POOL_LABEL) == name_of(pool)]
            allowed_disruptions = self._budget(disruption, len(claims))
            allowed_disruptions -= sum(1 for claim in claims if is_deleting(claim))
            for claim in claims:
                if allowed_disruptions > 0 and self._is_consolidatable(claim, after_seconds, takes_underused):
                    allowed_disruptions -= 1
                    self._set_claim_condition(
                        name_of(claim), "DisruptionReason", "Underutilized" if takes_underused else "Empty"
                    )
                    self._registry.record(
                        claim, "DisruptionTerminating", "Disrupting Node: consolidation", source="karpenter"
                    )
                    self._registry.remove(claim)

    def _budget(self, disruption: Obj, total: int) -> int:
        """Return how many nodes may be disrupted at once: the smallest budget, or 10 % without budgets."""
        budgets = disruption.get("budgets") or [{"nodes": "10%"}]
        limits = []
        for budget in budgets:
            text = str(budget.get("nodes", "10%"))
            limits.append(math.ceil(int(text[:-1]) * total / 100) if text.endswith("%") else int(text))
        return min(limits)

    def _is_consolidatable(self, claim: Obj, after_seconds: float, takes_underused: bool) -> bool:
        instance = self._instances.get(name_of(claim))
        is_initialized = is_true(claim, "Initialized")
        if instance is None or is_deleting(claim) or not is_initialized:
            return False
        pods = self._running_on(instance.node_name)
        is_pinned = any(annotations_of(pod).get(DO_NOT_DISRUPT) == "true" for pod in pods)
        movable = not pods or (takes_underused and not is_pinned and self._fit_elsewhere(pods, instance.node_name))
        if not movable or self._pending_pods():
            instance.empty_since = None
            return False
        now = time.monotonic()
        instance.empty_since = instance.empty_since or now
        return now - instance.empty_since >= after_seconds

    def _running_on(self, node: str) -> list[Obj]:
        return [pod for pod in self._store.pods_on(node) if not has_ended(pod)]

    def _fit_elsewhere(self, pods: Iterable[Obj], without: str) -> bool:
        capacities = []
        for node in self._store.each(catalogue.NODES.key):
            if name_of(node) == without or not is_true(node, "Ready"):
                continue
            capacity = NodeCapacityView(node, amounts_of(node["status"]["allocatable"]))
            for pod in self._running_on(name_of(node)):
                capacity.subtract(requests_of(pod["spec"]))
            capacities.append(capacity)
        for pod in pods:
            requests = requests_of(pod["spec"])
            fitting_node = next(
                (capacity for capacity in capacities if refusal_reason(pod, requests, capacity) is None), None
            )
            if fitting_node is None:
                return False
            fitting_node.subtract(requests)
        return True

    # EC2

    @property
    def instances(self) -> list[Instance]:
        """The machines that are nodes now."""
        return [item for item in self._instances.values() if item.kubelet is not None and not item.ended]

    def reclaim(self, instance: Instance) -> None:
        """Interrupt a spot node: send the event, drain the node, and end the machine when the notice ends."""
        detail = {"instance-id": instance.instance_id, "instance-action": "terminate"}
        arn = f"arn:aws:ec2:{instance.offering.zone}:instance/{instance.instance_id}"
        self._bus.send(SPOT_WARNING, detail, [arn])
        self._out_of_capacity[_offering_key(instance.offering)] = time.monotonic() + self.settings.capacity_memory
        self._delete_claim(instance.claim)
        self.end_after(instance, self.settings.spot_notice)

    def end_after(self, instance: Instance, seconds: float) -> None:
        """End a machine after a delay, even with running pods, and delete its claim."""

        async def end() -> None:
            await asyncio.sleep(seconds)
            if not instance.ended:
                self._end_machine(instance)
                self._delete_claim(instance.claim)

        task = asyncio.create_task(end())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _offering_key(offering: Offering) -> tuple[str, str, str]:
    return offering.instance_type, offering.zone, offering.capacity_type


def _remove_finalizer(obj: Obj) -> None:
    remove_finalizer(obj, TERMINATION)


def _format_amount(amount: Decimal) -> str:
    return str(int(amount)) if amount == int(amount) else str(amount)
