"""Other controllers that repair nodes, recognised by their marks on the node.

Only a user who may change nodes can set these marks. A mark never makes Evenkeel act on a node: it makes Evenkeel
wait, and then page a person.

Sources: the state labels in NVIDIA/NVSentinel, `docs/runbooks/node-drainer.md`; `pkg/node/node.go` of
aws/aws-node-termination-handler; `internal/controller/selfnoderemediation_controller.go` of
medik8s/self-node-remediation, and `pkg/utils/constants.go` of medik8s/fence-agents-remediation.
"""

from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.values import Value

NVSENTINEL_LABEL = "dgxc.nvidia.com/nvsentinel-state"
_NVSENTINEL_WORKS = ("quarantined", "draining", "drain-succeeded", "remediating", "remediation-succeeded")
_NVSENTINEL_FAILED = ("drain-failed", "remediation-failed")

_TERMINATION_HANDLER = "aws-node-termination-handler"
_TERMINATION_TAINTS = tuple(
    f"{_TERMINATION_HANDLER}/{event}"
    for event in ("spot-itn", "scheduled-maintenance", "asg-lifecycle-termination", "rebalance-recommendation")
)
_TERMINATION_LABEL = f"{_TERMINATION_HANDLER}/action"

_MEDIK8S_TAINTS = {
    "remediation.medik8s.io/self-node-remediation": "self-node-remediation",
    "remediation.medik8s.io/fence-agents-remediation": "fence-agents-remediation",
    "medik8s.io/fence-agents-remediation": "fence-agents-remediation",
}
"""The last one is of older releases. The taint `medik8s.io/drain` is a person's maintenance, so it is not here."""


class ControllerMark(Value):
    """The mark of another controller that repairs a node, or that has given up its repair."""

    controller: str
    mark: str
    """The label as `key=value`, or the taint's key."""
    has_given_up: bool = False
    """The controller says that its repair failed, and does nothing more."""


def controller_mark(node: KubernetesNode | None) -> ControllerMark | None:
    """Return the mark of another controller on a node; None without one, or without a node."""
    if node is None:
        return None
    state = node.labels.get(NVSENTINEL_LABEL, "")
    if state in (*_NVSENTINEL_WORKS, *_NVSENTINEL_FAILED):
        mark = f"{NVSENTINEL_LABEL}={state}"
        return ControllerMark(controller="NVSentinel", mark=mark, has_given_up=state in _NVSENTINEL_FAILED)
    taints = [taint.partition("=")[0] for taint in node.taints]
    for taint in taints:
        if taint in _TERMINATION_TAINTS:
            return ControllerMark(controller=_TERMINATION_HANDLER, mark=taint)
        if taint in _MEDIK8S_TAINTS:
            return ControllerMark(controller=_MEDIK8S_TAINTS[taint], mark=taint)
    action = node.labels.get(_TERMINATION_LABEL, "")
    if action:
        return ControllerMark(controller=_TERMINATION_HANDLER, mark=f"{_TERMINATION_LABEL}={action}")
    return None


def describe_controller(node: KubernetesNode | None) -> str:
    """Return the controller that has marked a node, with its mark, for people; empty without one."""
    mark = controller_mark(node)
    if mark is None:
        return ""
    return f"{mark.controller}{', which gave up' if mark.has_given_up else ''} ({mark.mark})"


def is_manual_cordon(node: KubernetesNode | None) -> bool:
    """Whether a person cordoned a node: the cordon has no mark of Evenkeel or another controller."""
    return node is not None and node.is_cordoned and node.incident_id is None and controller_mark(node) is None
