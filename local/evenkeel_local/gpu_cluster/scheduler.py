"""The scheduler: binds each pod to a node that fits, or records why no node does."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from decimal import Decimal
from typing import Any

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.objects import condition_of, has_ended, is_deleting, labels_of
from evenkeel_local.gpu_cluster.pod_topology import (
    Amounts,
    NodeCapacityView,
    PodAffinityRules,
    amounts_of,
    has_topology_rules,
)
from evenkeel_local.gpu_cluster.quantities import parse_quantity
from evenkeel_local.gpu_cluster.registry import Registry, mark_disrupted, set_condition
from evenkeel_local.gpu_cluster.selectors import matches_expression
from evenkeel_local.gpu_cluster.store import Store, StoreChange, name_of, namespace_of
from evenkeel_local.gpu_cluster.volumes import missing_claim

NAME = "default-scheduler"
DEBOUNCE_SECONDS = 0.01
RESYNC_SECONDS = 0.1
"""Longest time that one cycle may block the event loop."""


def requests_of(spec: Obj) -> Amounts:
    """Return the requests of a pod: the sum of its containers, at least the largest init container, and one pod."""
    total: Amounts = {"pods": Decimal(1)}
    for container in spec.get("containers") or ():
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, Decimal(0)) + parse_quantity(amount)
    for container in spec.get("initContainers") or ():
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = max(total.get(name, Decimal(0)), parse_quantity(amount))
    return total


def tolerates(tolerations: list[Obj], taint: Obj) -> bool:
    """Whether any toleration covers a taint."""
    return any(_matches_taint(toleration, taint) for toleration in tolerations)


def _matches_taint(toleration: Obj, taint: Obj) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")


def matches_node(spec: Obj, node: Obj) -> bool:
    """Whether a node meets a pod's node selector and required node affinity."""
    labels = labels_of(node)
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required_affinity = _node_affinity(spec).get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required_affinity:
        return True
    return any(_meets_term(term, node) for term in required_affinity.get("nodeSelectorTerms") or ())


def _node_affinity(spec: Obj) -> Obj:
    return (spec.get("affinity") or {}).get("nodeAffinity") or {}


def _meets_term(term: Obj, node: Obj) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    labels = labels_of(node)
    node_fields = {"metadata.name": name_of(node)}
    return all(matches_expression(expression, labels) for expression in expressions) and all(
        matches_expression(expression, node_fields) for expression in fields
    )


def refusal_reason(pod: Obj, requests: Amounts, capacity: NodeCapacityView) -> str | None:
    """Return why a pod does not fit a node, with kube-scheduler's wording; None if it fits."""
    spec, node = pod["spec"], capacity.node
    tolerations = spec.get("tolerations") or []
    if (node.get("spec") or {}).get("unschedulable") and not tolerates(
        tolerations, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    ):
        return "node(s) were unschedulable"
    if not matches_node(spec, node):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint["effect"] in ("NoSchedule", "NoExecute") and not tolerates(tolerations, taint):
            shown = f"{taint['key']}: {taint.get('value') or ''}"
            return f"node(s) had untolerated taint {{{shown}}}"
    for name, amount in requests.items():
        if amount > capacity.free.get(name, Decimal(0)):
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return None


class PodScheduler:
    """Tries the pending pods again after each change that could make a pod fit."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store: Store = registry.store
        self._waiting: dict[tuple[str, str], None] = {}
        self._capacities: dict[str, NodeCapacityView] = {}
        """Free capacity of each node; dropped when the node or one of its pods changes."""
        self._next_node = 0
        self._dirty = asyncio.Event()
        self._store.listen(self._on_change)

    def _on_change(self, change: StoreChange) -> None:
        if change.key == catalogue.PODS.key:
            for pod in (change.new, change.old):
                if pod is not None and (node := pod["spec"].get("nodeName")):
                    self._capacities.pop(node, None)
            at = (namespace_of(change.new), name_of(change.new))
            if change.kind == "DELETED" or not self._needs_node(change.new):
                self._waiting.pop(at, None)
                if change.kind == "DELETED" or has_ended(change.new):
                    self._dirty.set()
            elif at not in self._waiting:
                self._waiting[at] = None
                self._dirty.set()
        elif change.key == catalogue.VOLUME_CLAIMS.key:
            self._dirty.set()
        elif change.key == catalogue.NODES.key:
            self._capacities.pop(name_of(change.new), None)
            if self._is_relevant(change):
                self._dirty.set()

    def _needs_node(self, pod: Obj) -> bool:
        spec = pod["spec"]
        return (
            not spec.get("nodeName")
            and not is_deleting(pod)
            and spec.get("schedulerName") == NAME
            and not spec.get("schedulingGates")
            and pod["status"].get("phase") == "Pending"
        )

    def _is_relevant(self, change: StoreChange) -> bool:
        if change.old is None or change.kind == "DELETED":
            return True
        old, new = change.old, change.new
        return bool(
            old.get("spec") != new.get("spec")
            or old["metadata"].get("labels") != new["metadata"].get("labels")
            or (old.get("status") or {}).get("allocatable") != (new.get("status") or {}).get("allocatable")
        )

    def notice_all(self) -> None:
        """Queue every pending pod."""
        for pod in self._store.each(catalogue.PODS.key):
            if self._needs_node(pod):
                self._waiting[(namespace_of(pod), name_of(pod))] = None
        self._dirty.set()

    async def run(self) -> None:
        """Schedule until cancelled."""
        while True:
            await self._dirty.wait()
            await asyncio.sleep(DEBOUNCE_SECONDS)
            self._dirty.clear()
            self.schedule_all()

    def schedule_all(self) -> None:
        """Try to place every pending pod once, by priority and then by age."""
        if not self._waiting:
            return
        pods = [pod for at in self._waiting if (pod := self._store.find(catalogue.PODS.key, *at)) is not None]
        pods.sort(
            key=lambda pod: (
                -int(pod["spec"].get("priority") or 0),
                pod["metadata"]["creationTimestamp"],
                int(pod["metadata"]["resourceVersion"]),
            )
        )
        capacities = self._node_capacities()
        hopeless: set[str] = set()
        until = time.monotonic() + RESYNC_SECONDS
        for pod in pods:
            if time.monotonic() > until:
                # Let the event loop run. The next cycle continues with the other pods.
                self._dirty.set()
                return
            shape = _scheduling_key(pod)
            if shape in hopeless and self._has_condition(pod):
                continue
            if not self._place(pod, capacities):
                hopeless.add(shape)

    def _has_condition(self, pod: Obj) -> bool:
        return condition_of(pod, "PodScheduled") is not None

    def _node_capacities(self) -> dict[str, NodeCapacityView]:
        nodes = {name_of(node): node for node in self._store.each(catalogue.NODES.key)}
        for name in [name for name in self._capacities if name not in nodes]:
            del self._capacities[name]
        for name, node in nodes.items():
            if name not in self._capacities:
                self._capacities[name] = self._node_capacity(node)
        return {name: self._capacities[name] for name in nodes}

    def _feasible_nodes_to_find(self, nodes: int) -> int:
        """Return after how many feasible nodes the search ends. Source: `numFeasibleNodesToFind` of kube-scheduler."""
        return nodes if nodes <= 100 else max(100, nodes * max(50 - nodes // 125, 5) // 100)

    def _node_capacity(self, node: Obj) -> NodeCapacityView:
        capacity = NodeCapacityView(node, amounts_of((node.get("status") or {}).get("allocatable")))
        for pod in self._store.pods_on(name_of(node)):
            if has_ended(pod):
                continue
            capacity.add(pod)
            capacity.subtract(requests_of(pod["spec"]))
        return capacity

    def _place(self, pod: Obj, capacities: dict[str, NodeCapacityView]) -> bool:
        requests = requests_of(pod["spec"])
        reasons: Counter[str] = Counter()
        fitting_nodes: list[NodeCapacityView] = []
        if (claim := missing_claim(pod, self._store)) is not None:
            text = f'0/{len(capacities)} nodes are available: persistentvolumeclaim "{claim}" not found.'
            self._set_condition(pod, text, None)
            return False
        neighbours = PodAffinityRules(pod, capacities.values(), lambda node: matches_node(pod["spec"], node))
        names = list(capacities)
        enough, first_index = self._feasible_nodes_to_find(len(names)), self._next_node % len(names) if names else 0
        for number in range(len(names)):
            capacity = capacities[names[(first_index + number) % len(names)]]
            why = refusal_reason(pod, requests, capacity) or neighbours.refusal(capacity)
            if why is None:
                fitting_nodes.append(capacity)
                if len(fitting_nodes) >= enough:
                    self._next_node = first_index + number + 1
                    break
            else:
                reasons[why] += 1
        if fitting_nodes:
            best_node = max(fitting_nodes, key=lambda capacity: self._score(pod, capacity))
            self._bind(pod, best_node, requests)
            return True
        text = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
        message = (
            f"0/{len(capacities)} nodes are available: {text}." if capacities else "no nodes available to schedule pods"
        )
        nominated_node = self._preempt(pod, requests, capacities)
        suffix = "" if nominated_node else f" preemption: 0/{len(capacities)} nodes are available: no victims found."
        self._set_condition(pod, message + suffix, nominated_node)
        return False

    def _score(self, pod: Obj, capacity: NodeCapacityView) -> tuple[Any, ...]:
        """Prefer the nominated node, then preferred affinity, then few soft taints, then many free GPUs."""
        spec = pod["spec"]
        preference_weight = 0
        for term in _node_affinity(spec).get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            if _meets_term(term["preference"], capacity.node):
                preference_weight += int(term.get("weight") or 0)
        soft = sum(
            1
            for taint in (capacity.node.get("spec") or {}).get("taints") or ()
            if taint["effect"] == "PreferNoSchedule" and not tolerates(spec.get("tolerations") or [], taint)
        )
        is_nominated = pod["status"].get("nominatedNodeName") == name_of(capacity.node)
        free_amounts = tuple(capacity.free.get(name, Decimal(0)) for name in ("nvidia.com/gpu", "pods"))
        return (is_nominated, preference_weight, -soft, *free_amounts)

    def _bind(self, pod: Obj, capacity: NodeCapacityView, requests: Amounts) -> None:
        node = name_of(capacity.node)

        def bind(obj: Obj) -> None:
            obj["spec"]["nodeName"] = node
            obj["status"].pop("nominatedNodeName", None)
            set_condition(obj["status"], "PodScheduled", "True", "", extra={"lastProbeTime": None})
            for condition in obj["status"]["conditions"]:
                if condition["type"] == "PodScheduled":
                    condition.pop("reason", None)
                    condition.pop("message", None)

        bound = self._registry.change(pod, bind)
        capacity.subtract(requests)
        # The write above dropped the node's cached capacity. This copy counts the pod, for the rest of the cycle.
        if bound is not None:
            capacity.add(bound)
            message = f"Successfully assigned {namespace_of(pod)}/{name_of(pod)} to {node}"
            self._registry.record(bound, "Scheduled", message, source=NAME)

    def _set_condition(self, pod: Obj, message: str, nominated_node: str | None) -> None:
        changes: list[bool] = []

        def mark(obj: Obj) -> None:
            changes.append(
                set_condition(obj["status"], "PodScheduled", "False", "Unschedulable", message, {"lastProbeTime": None})
            )
            if nominated_node:
                obj["status"]["nominatedNodeName"] = nominated_node

        stored_pod = self._registry.change(pod, mark)
        if stored_pod is not None and any(changes):
            self._registry.record(stored_pod, "FailedScheduling", message, "Warning", NAME)

    # Preemption

    def _preempt(self, pod: Obj, requests: Amounts, capacities: dict[str, NodeCapacityView]) -> str | None:
        """Delete the fewest pods of lower priority that make the pod fit; return the nominated node."""
        priority = int(pod["spec"].get("priority") or 0)
        if priority <= 0 or pod["spec"].get("preemptionPolicy") == "Never":
            return None
        nominated_node = pod["status"].get("nominatedNodeName")
        if nominated_node in capacities and any(is_deleting(victim) for victim in capacities[nominated_node].pods):
            return str(nominated_node)
        best_choice: tuple[tuple[int, int, str], NodeCapacityView, list[Obj]] | None = None
        for capacity in capacities.values():
            victims = self._victims(pod, requests, capacity, priority)
            if victims is None:
                continue
            highest_priority = max(int(victim["spec"].get("priority") or 0) for victim in victims)
            rank = (highest_priority, len(victims), name_of(capacity.node))
            if best_choice is None or rank < best_choice[0]:
                best_choice = (rank, capacity, victims)
        if best_choice is None:
            return None
        _, capacity, victims = best_choice
        why = f"{NAME}: preempting to accommodate a higher priority pod"
        for victim in victims:
            message = f"Preempted by pod {pod['metadata']['uid']} on node {name_of(capacity.node)}"
            self._registry.change(victim, lambda obj: mark_disrupted(obj, "PreemptionByScheduler", why))
            self._registry.record(victim, "Preempted", message, source=NAME)
            self._registry.remove(victim)
            capacity.remove(victim)
        return name_of(capacity.node)

    def _victims(self, pod: Obj, requests: Amounts, capacity: NodeCapacityView, priority: int) -> list[Obj] | None:
        lower = [
            other_pod
            for other_pod in capacity.pods
            if int(other_pod["spec"].get("priority") or 0) < priority and not is_deleting(other_pod)
        ]
        lower.sort(key=lambda other_pod: int(other_pod["spec"].get("priority") or 0))
        node_capacity_view = NodeCapacityView(capacity.node, dict(capacity.free))
        chosen_victims: list[Obj] = []
        for victim in lower:
            if refusal_reason(pod, requests, node_capacity_view) is None:
                break
            node_capacity_view.subtract(requests_of(victim["spec"]), -1)
            chosen_victims.append(victim)
        return chosen_victims if chosen_victims and refusal_reason(pod, requests, node_capacity_view) is None else None


def _scheduling_key(pod: Obj) -> str:
    """Return a key of everything that decides where a pod fits. Pods with equal keys share one search in a cycle."""
    spec = pod["spec"]
    resources = [container.get("resources") for container in spec["containers"]]
    key_fields = (
        resources,
        spec.get("nodeSelector"),
        spec.get("affinity"),
        (labels_of(pod), spec.get("topologySpreadConstraints")) if has_topology_rules(pod) else None,
        spec.get("volumes"),
        spec.get("tolerations"),
        spec.get("priority"),
        pod["status"].get("nominatedNodeName"),
    )
    return repr(key_fields)
