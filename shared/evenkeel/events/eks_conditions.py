"""Node conditions of the EKS node monitoring agent, and the fault that each reason names.

Source: aws/eks-node-monitoring-agent. A condition is True while the node is healthy. If it is not True, the name of its
reason holds the fault code. Its transition time starts anew with a second reason, so each reason is a separate fact and
the incident counts from the first.
"""

import re

from evenkeel.domain.health.faults import UNKNOWN_FAULT, default_catalogue
from evenkeel.events import driver_lines
from evenkeel.events.driver_lines import NamedFault

TYPES = ("AcceleratedHardwareReady", "ContainerRuntimeReady", "KernelReady", "NetworkingReady", "StorageReady")

_XID = re.compile(r"NvidiaXID(?P<number>[0-9]{1,4})(?:Error|Warning)", re.ASCII)
_NUMBERED = re.compile(r"(?P<name>DCGMHealthCode|DCGMFieldError)(?P<number>[0-9]{1,4})", re.ASCII)
_REASON = re.compile(r"[A-Za-z0-9]{1,64}", re.ASCII)
_IMEX_UNHEALTHY = "122"


def named_fault(reason: str, message: str = "") -> NamedFault | None:
    """Return the fault that a reason names, or None if the reason is not evidence."""
    xid = _XID.fullmatch(reason)
    if xid:
        number = xid["number"].lstrip("0") or "0"
        if driver_lines.is_cleanup(number):
            return None
        exact = (
            candidate for candidate in driver_lines.named_faults(message) if candidate.code.partition("/")[0] == number
        )
        return next(exact, NamedFault(driver_lines.xid_key(number, message), number))
    code = reason if _REASON.fullmatch(reason) else "unreadable"
    xid_match = _NUMBERED.fullmatch(reason)
    if xid_match:
        return NamedFault(_numbered_key(xid_match["name"], xid_match["number"]), code)
    name = "RepeatedRestart" if reason.endswith("RepeatedRestart") else code
    return NamedFault(f"eks:{name}" if f"eks:{name}" in default_catalogue() else UNKNOWN_FAULT, code)


def _numbered_key(name: str, number: str) -> str:
    if name == "DCGMFieldError":
        return "eks:DCGMFieldError"
    # The agent sets a condition for fatal codes only; other codes are Kubernetes events.
    return "gpu:dcgm_imex_unhealthy" if number == _IMEX_UNHEALTHY else "eks:DCGMHealthCodeFatal"
