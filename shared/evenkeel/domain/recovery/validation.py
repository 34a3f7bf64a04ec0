"""Decide whether a node may take work. The same rule applies after a repair and after the first boot."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.plurals import count_of
from evenkeel.domain.recovery.node_slot import ObservedNode
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.values import Value

_PREFIX = "sagemaker.amazonaws.com/"
HEALTH_STATUS = f"{_PREFIX}node-health-status"
DEEP_CHECK_STATUS = f"{_PREFIX}deep-health-check-status"
FAULT_TYPES = (f"{_PREFIX}fault-types", f"{_PREFIX}fault-type")

ACCELERATORS = {
    "g5.xlarge": 1,
    "g5.12xlarge": 4,
    "g5.48xlarge": 8,
    "g6.12xlarge": 4,
    "g6.48xlarge": 8,
    "g6e.12xlarge": 4,
    "g6e.48xlarge": 8,
    "p4d.24xlarge": 8,
    "p4de.24xlarge": 8,
    "p5.4xlarge": 1,
    "p5.48xlarge": 8,
    "p5e.48xlarge": 8,
    "p5en.48xlarge": 8,
    "p6-b200.48xlarge": 8,
    "p6e-gb200.36xlarge": 4,
    "trn1.32xlarge": 16,
    "trn1n.32xlarge": 16,
    "trn2.48xlarge": 16,
}
"""Accelerators by instance type. Source: the EC2 instance type pages. Used if no other node shows the number."""


class CheckKind(StrEnum):
    """Check that a node must pass before it takes work again."""

    BASIC = "BASIC"
    """The status in both control planes is good."""
    TEST_JOB = "TEST_JOB"
    """The status is good, and a small job on the node succeeds."""
    DEEP = "DEEP"
    """The status is good, and HyperPod's deep health check passes."""


class CheckFacts(Value):
    """Facts for the choice of a check."""

    fault_class: str
    asks_for: str
    """Check that the fault requires: none, basic or deep."""
    is_hyperpod: bool


class CheckDecision(Value):
    """The check that validates a node, with the reason."""

    kind: CheckKind
    reason: str
    alternatives: tuple[Alternative, ...] = ()


def choose_check(facts: CheckFacts, policy: RepairPolicy) -> CheckDecision:
    """Choose the strongest check that the fault requires and the site allows."""
    rejections: list[Alternative] = []
    if facts.asks_for == "deep":
        why_not = "" if facts.is_hyperpod else "HyperPod does not manage the node"
        if not why_not and facts.fault_class not in policy.deep_checks_after:
            why_not = f"the policy excludes it after a fault of class {facts.fault_class}"
        if not why_not:
            return CheckDecision(kind=CheckKind.DEEP, reason="HyperPod's deep health check must pass.")
        rejections.append(Alternative(option=CheckKind.DEEP, why_not=why_not))
    if facts.asks_for != "none":
        why_not = "" if policy.test_job_image else "the policy names no test job image"
        if not why_not and facts.fault_class not in policy.test_jobs_after:
            why_not = f"the policy excludes it after a fault of class {facts.fault_class}"
        if not why_not:
            return CheckDecision(
                kind=CheckKind.TEST_JOB, reason="A test job on the node must succeed.", alternatives=tuple(rejections)
            )
        rejections.append(Alternative(option=CheckKind.TEST_JOB, why_not=why_not))
    reason = "The status in both control planes is enough."
    return CheckDecision(kind=CheckKind.BASIC, reason=reason, alternatives=tuple(rejections))


class CheckResult(StrEnum):
    """Result of a check so far."""

    PENDING = "PENDING"
    PASSED = "PASSED"
    FAILED = "FAILED"


def judge_deep_check(node: KubernetesNode, *, started_at: datetime, min_seconds: int, now: datetime) -> CheckResult:
    """Return the result of a node's deep health check. A label shortly after the start may be from an earlier check."""
    status = node.labels.get(DEEP_CHECK_STATUS, "")
    if now - started_at < timedelta(seconds=min_seconds):
        return CheckResult.PENDING
    return {"Passed": CheckResult.PASSED, "Failed": CheckResult.FAILED}.get(status, CheckResult.PENDING)


class Validity(Value):
    """Whether a node may take work, with the reason."""

    is_valid: bool
    reason: str


def expected_accelerators(instance_type: str, peers: Iterable[KubernetesNode]) -> int:
    """Return how many accelerators a node of this type should offer: the most that any peer offers, else by the table.

    Args:
        instance_type: The instance type.
        peers: Other nodes of the fleet. The node itself must not be among them.
    """
    types_and_accelerators = ((peer.instance_type, peer.accelerators) for peer in peers if peer.is_ready)
    return expected_accelerators_of_type(instance_type, most_accelerators(types_and_accelerators))


def most_accelerators(types_and_accelerators: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return instance type → the most accelerators of all offers of that type."""
    max_by_type: dict[str, int] = {}
    for instance_type, accelerators in types_and_accelerators:
        max_by_type[instance_type] = max(accelerators, max_by_type.get(instance_type, 0))
    return max_by_type


def expected_accelerators_of_type(instance_type: str, accelerators_by_type: Mapping[str, int]) -> int:
    """Return how many accelerators a node of this type should offer: the most that is offered, else by the table."""
    return accelerators_by_type.get(instance_type, 0) or ACCELERATORS.get(instance_type.removeprefix("ml."), 0)


def fault_marks(node: KubernetesNode) -> tuple[str, ...]:
    """Return the fault marks that HyperPod's agent has set on a node, in words for people."""
    marks = [node.labels[key] for key in FAULT_TYPES if node.labels.get(key)]
    status = node.labels.get(HEALTH_STATUS, "")
    if status.startswith("Unschedulable"):
        marks.append(status)
    if node.labels.get(DEEP_CHECK_STATUS) in ("InProgress", "Failed"):
        marks.append(f"deep health check {node.labels[DEEP_CHECK_STATUS]}")
    return tuple(marks)


def shows_fault(node: KubernetesNode) -> bool:
    """Whether a node shows a fault: not Ready, cordoned for an incident, or marked by HyperPod's agent."""
    return not node.is_ready or node.incident_id is not None or bool(fault_marks(node))


def margin_seconds(returns: int, policy: RepairPolicy) -> int:
    """Return how long a node must stay healthy before it is valid. Each recent return to service makes it longer.

    Args:
        returns: Number of recent returns to service.
        policy: The margin, and its factor per return.
    """
    factor: int = policy.flap_margin_factor ** min(returns, policy.lemon_returns)
    return policy.return_margin_seconds * factor


def judge_node(observed_node: ObservedNode, *, expected_count: int) -> Validity:
    """Return whether a node may take work: Running, Ready, with all its accelerators and without a fault mark.

    Args:
        observed_node: The node as both control planes show it.
        expected_count: Number of accelerators that the node should offer (`expected_accelerators`).
    """
    node = observed_node.node
    if node is None:
        return Validity(is_valid=False, reason="The node has not joined its cluster.")
    if observed_node.provider_node and not observed_node.is_running:
        return Validity(is_valid=False, reason=f"HyperPod reports {observed_node.provider_node.status}.")
    if not node.is_ready:
        return Validity(is_valid=False, reason="The node is not Ready.")
    marks = fault_marks(node)
    if marks:
        return Validity(is_valid=False, reason=f"The node still has fault labels: {', '.join(marks)}.")
    if node.accelerators < expected_count:
        return Validity(
            is_valid=False, reason=f"The node offers {node.accelerators} of {count_of(expected_count, 'accelerator')}."
        )
    accelerators_text = f" and offers {count_of(expected_count, 'accelerator')}" if expected_count else ""
    return Validity(is_valid=True, reason=f"The node is Running and Ready, has no fault label{accelerators_text}.")
