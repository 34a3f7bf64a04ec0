"""Pod affinity, anti-affinity and topology spread constraints.

Source: the plugins `interpodaffinity` and `podtopologyspread` of kube-scheduler 1.33. Preferred terms and
`whenUnsatisfiable: ScheduleAnyway` have no effect. Only an empty `namespaceSelector` (all namespaces) is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.objects import is_deleting, labels_of
from evenkeel_local.gpu_cluster.quantities import parse_quantity
from evenkeel_local.gpu_cluster.selectors import matches_selector
from evenkeel_local.gpu_cluster.store import name_of, namespace_of

Amounts = dict[str, Decimal]
Domain = tuple[str, str]
"""A topology key and its value on a node."""


def amounts_of(resources: Mapping[str, Any] | None) -> Amounts:
    """Return the amounts of a resource list."""
    return {name: parse_quantity(amount) for name, amount in (resources or {}).items()}


@dataclass
class NodeCapacityView:
    """A node, its pods, and the resources that they leave free."""

    node: Obj
    free: Amounts
    pods: list[Obj] = field(default_factory=list)
    guards: list[Obj] = field(default_factory=list)
    """Its pods that have anti-affinity terms."""

    def add(self, pod: Obj) -> None:
        """Add a pod."""
        self.pods.append(pod)
        if required_terms(pod, "podAntiAffinity"):
            self.guards.append(pod)

    def remove(self, pod: Obj) -> None:
        """Remove a pod."""
        self.pods.remove(pod)
        if pod in self.guards:
            self.guards.remove(pod)

    def subtract(self, amounts: Amounts, times: int = 1) -> None:
        """Subtract amounts, a number of times, from the free amounts; -1 times adds them."""
        for name, amount in amounts.items():
            self.free[name] = self.free.get(name, Decimal(0)) - amount * times

    def domain(self, key: str) -> Domain | None:
        """Return the node's domain of a topology key; None if the node lacks the key."""
        value = labels_of(self.node).get(key) or (name_of(self.node) if key == "kubernetes.io/hostname" else None)
        return None if value is None else (key, value)


def required_terms(pod: Obj, kind: str) -> list[Obj]:
    """Return a pod's required terms of `podAffinity` or `podAntiAffinity`."""
    rules = (pod["spec"].get("affinity") or {}).get(kind) or {}
    return list(rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ())


def hard_spread_constraints(pod: Obj) -> list[Obj]:
    """Return the hard topology spread constraints of a pod."""
    stated_constraints = pod["spec"].get("topologySpreadConstraints") or ()
    return [
        constraint
        for constraint in stated_constraints
        if constraint.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
    ]


def has_topology_rules(pod: Obj) -> bool:
    """Whether the nodes of other pods decide where this pod fits."""
    return bool(
        required_terms(pod, "podAffinity") or required_terms(pod, "podAntiAffinity") or hard_spread_constraints(pod)
    )


def _term_matches(term: Obj, owner: Obj, other: Obj) -> bool:
    namespaces = term.get("namespaces") or [namespace_of(owner)]
    if term.get("namespaceSelector") != {} and namespace_of(other) not in namespaces:
        return False
    return _same_domain(term, owner, other) and matches_selector(term.get("labelSelector"), labels_of(other))


def _same_domain(term: Obj, owner: Obj, other: Obj) -> bool:
    keys = term.get("matchLabelKeys") or ()
    return all(labels_of(owner).get(key) == labels_of(other).get(key) for key in keys)


class PodAffinityRules:
    """The affinity rules between a pending pod and the placed pods, computed once for all nodes."""

    def __init__(self, pod: Obj, capacities: Iterable[NodeCapacityView], is_candidate: Callable[[Obj], bool]) -> None:
        capacities = list(capacities)
        self._kept_from = {
            domain
            for capacity in capacities
            for guard in capacity.guards
            for term in required_terms(guard, "podAntiAffinity")
            if (domain := capacity.domain(term["topologyKey"])) is not None and _term_matches(term, guard, pod)
        }
        self._avoided = [
            (term["topologyKey"], _domains_with_match(term, pod, capacities))
            for term in required_terms(pod, "podAntiAffinity")
        ]
        term_domains = [
            (term, _domains_with_match(term, pod, capacities)) for term in required_terms(pod, "podAffinity")
        ]
        # The first pod of a group with affinity to itself may start anywhere.
        begins = not any(matched_domains for _, matched_domains in term_domains) and all(
            _term_matches(term, pod, pod) for term, _ in term_domains
        )
        self._wanted = [(term["topologyKey"], None if begins else domains) for term, domains in term_domains]
        self._spread = [
            _Spread(constraint, pod, capacities, is_candidate) for constraint in hard_spread_constraints(pod)
        ]

    def refusal(self, capacity: NodeCapacityView) -> str | None:
        """Return why a node cannot take the pod; None if it can."""
        for key, domains in self._wanted:
            domain = capacity.domain(key)
            if domain is None or (domains is not None and domain not in domains):
                return "node(s) didn't match pod affinity rules"
        if any(capacity.domain(key) in domains for key, domains in self._avoided):
            return "node(s) didn't match pod anti-affinity rules"
        if any(capacity.domain(key) == (key, value) for key, value in self._kept_from):
            return "node(s) didn't satisfy existing pods anti-affinity rules"
        return next((why for spread in self._spread if (why := spread.refusal(capacity)) is not None), None)


def _domains_with_match(term: Obj, pod: Obj, capacities: list[NodeCapacityView]) -> set[Domain]:
    """Return the domains with a pod that matches a term of `pod`."""
    return {
        domain
        for capacity in capacities
        if (domain := capacity.domain(term["topologyKey"])) is not None
        and any(_term_matches(term, pod, other) for other in capacity.pods)
    }


class _Spread:
    """A topology spread constraint, with the number of matching pods in each domain."""

    def __init__(
        self, constraint: Obj, pod: Obj, capacities: list[NodeCapacityView], is_candidate: Callable[[Obj], bool]
    ) -> None:
        self._key = str(constraint["topologyKey"])
        self._most = int(constraint.get("maxSkew") or 1)
        selector = constraint.get("labelSelector")
        self._itself = int(matches_selector(selector, labels_of(pod)))
        self._counts: Counter[Domain] = Counter()
        for capacity in capacities:
            domain = capacity.domain(self._key)
            if domain is None or not is_candidate(capacity.node):
                continue
            self._counts[domain] += sum(
                1
                for other in capacity.pods
                if namespace_of(other) == namespace_of(pod)
                and not is_deleting(other)
                and _same_domain(constraint, pod, other)
                and matches_selector(selector, labels_of(other))
            )
        enough = len(self._counts) >= int(constraint.get("minDomains") or 1)
        self._fewest = min(self._counts.values(), default=0) if enough else 0

    def refusal(self, capacity: NodeCapacityView) -> str | None:
        domain = capacity.domain(self._key)
        if domain is None:
            return "node(s) didn't match pod topology spread constraints (missing required label)"
        if self._counts[domain] + self._itself - self._fewest > self._most:
            return "node(s) didn't match pod topology spread constraints"
        return None
