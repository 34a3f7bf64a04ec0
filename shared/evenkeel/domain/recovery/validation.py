"""Whether a machine may take work: after a repair, and on its first boot. One rule for both."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.recovery.node_slot import ObservedNode
from evenkeel.domain.recovery.policy import RepairPolicy
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
"""Devices by instance type. Source: the EC2 instance type pages. Used where no peer shows how many there should be."""


class CheckKind(StrEnum):
    """What a machine has to pass before it takes work again."""

    BASIC = "BASIC"
    """What both control planes show of it."""
    TEST_JOB = "TEST_JOB"
    """Besides, a small job on the machine ends well."""
    DEEP = "DEEP"
    """Besides, HyperPod's deep health check passes."""


class CheckFacts(Value):
    """All that the choice of a check rests on."""

    fault_class: str
    asks_for: str
    """What the fault's row asks for: none, basic or deep."""
    is_hyperpod: bool


class CheckDecision(Value):
    """How a machine is to be validated, and why."""

    kind: CheckKind
    reason: str
    alternatives: tuple[Alternative, ...] = ()


def choose_check(facts: CheckFacts, policy: RepairPolicy) -> CheckDecision:
    """Choose the strongest check that the fault asks for and the site allows."""
    passed_over: list[Alternative] = []
    if facts.asks_for == "deep":
        why_not = "" if facts.is_hyperpod else "HyperPod does not manage the node"
        if not why_not and facts.fault_class not in policy.deep_checks_after:
            why_not = f"the policy runs none after a fault of class {facts.fault_class}"
        if not why_not:
            return CheckDecision(kind=CheckKind.DEEP, reason="HyperPod's deep health check must pass.")
        passed_over.append(Alternative(option=CheckKind.DEEP, why_not=why_not))
    if facts.asks_for != "none":
        why_not = "" if policy.test_job_image else "the policy names no test job image"
        if not why_not and facts.fault_class not in policy.test_jobs_after:
            why_not = f"the policy runs none after a fault of class {facts.fault_class}"
        if not why_not:
            return CheckDecision(
                kind=CheckKind.TEST_JOB, reason="A test job on the node must succeed.", alternatives=tuple(passed_over)
            )
        passed_over.append(Alternative(option=CheckKind.TEST_JOB, why_not=why_not))
    reason = "The status in both control planes is enough."
    return CheckDecision(kind=CheckKind.BASIC, reason=reason, alternatives=tuple(passed_over))


class CheckResult(StrEnum):
    """What is known of a check."""

    PENDING = "PENDING"
    PASSED = "PASSED"
    FAILED = "FAILED"


def judge_deep_check(node: KubernetesNode, *, started_at: datetime, least_seconds: int, now: datetime) -> CheckResult:
    """Read what a node says of its deep check. What it says at once may be said of an earlier one."""
    status = node.labels.get(DEEP_CHECK_STATUS, "")
    if now - started_at < timedelta(seconds=least_seconds):
        return CheckResult.PENDING
    return {"Passed": CheckResult.PASSED, "Failed": CheckResult.FAILED}.get(status, CheckResult.PENDING)


class Validity(Value):
    """Whether a machine may take work, and why or why not."""

    is_valid: bool
    reason: str


def expected_accelerators(instance_type: str, peers: Iterable[KubernetesNode]) -> int:
    """Return how many devices a machine of this type should offer: as many as the best of its peers, else by the table.

    The machine itself is no witness: leave it out of `peers`.
    """
    seen = [peer.accelerators for peer in peers if peer.instance_type == instance_type and peer.is_ready]
    return max(seen, default=0) or ACCELERATORS.get(instance_type.removeprefix("ml."), 0)


def fault_marks(node: KubernetesNode) -> tuple[str, ...]:
    """Return the marks that HyperPod's agent has on a node now, as a person would read them."""
    marks = [node.labels[key] for key in FAULT_TYPES if node.labels.get(key)]
    status = node.labels.get(HEALTH_STATUS, "")
    if status.startswith("Unschedulable"):
        marks.append(status)
    if node.labels.get(DEEP_CHECK_STATUS) in ("InProgress", "Failed"):
        marks.append(f"deep health check {node.labels[DEEP_CHECK_STATUS]}")
    return tuple(marks)


def shows_fault(node: KubernetesNode) -> bool:
    """Whether a node shows that it is sick: not Ready, cordoned for an incident, or marked by HyperPod's agent."""
    return not node.is_ready or node.incident_id is not None or bool(fault_marks(node))


def margin_seconds(returns: int, policy: RepairPolicy) -> int:
    """Return how long a machine has to be well before it is valid: longer for one that keeps coming back.

    Args:
        returns: How often it was returned to service lately.
        policy: The margin, and what each return makes of it.
    """
    factor: int = policy.flap_margin_factor ** min(returns, policy.lemon_returns)
    return policy.return_margin_seconds * factor


def judge_node(machine: ObservedNode, *, expected: int) -> Validity:
    """Judge whether a machine may take work: Running, Ready, all its accelerators, no fault mark.

    Args:
        machine: Both control planes' views of it.
        expected: `expected_accelerators` of its type.
    """
    node = machine.node
    if node is None:
        return Validity(is_valid=False, reason="The node has not joined its cluster.")
    if machine.record and not machine.is_running:
        return Validity(is_valid=False, reason=f"HyperPod reports {machine.record.status}.")
    if not node.is_ready:
        return Validity(is_valid=False, reason="The node is not Ready.")
    marks = fault_marks(node)
    if marks:
        return Validity(is_valid=False, reason=f"The node still has fault labels: {', '.join(marks)}.")
    if node.accelerators < expected:
        return Validity(is_valid=False, reason=f"The node offers {node.accelerators} of {expected} accelerators.")
    offers = f" and offers all {expected} accelerators" if expected else ""
    return Validity(is_valid=True, reason=f"The node is Running and Ready, has no fault label{offers}.")
