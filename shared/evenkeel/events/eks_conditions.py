"""Node conditions of the EKS node monitoring agent: which fault a reason names.

Source: aws/eks-node-monitoring-agent. A condition is True while all is well; its reason carries the code inside its
name, and its timer starts anew when a second reason arrives, so each reason is a fact of its own and the incident
counts from the first.
"""

import re

from evenkeel.domain.health.faults import UNKNOWN_FAULT, default_catalogue
from evenkeel.events import driver_lines
from evenkeel.events.driver_lines import Reading

TYPES = ("AcceleratedHardwareReady", "ContainerRuntimeReady", "KernelReady", "NetworkingReady", "StorageReady")

_XID = re.compile(r"NvidiaXID(?P<number>[0-9]{1,4})(?:Error|Warning)", re.ASCII)
_NUMBERED = re.compile(r"(?P<name>DCGMHealthCode|DCGMFieldError)(?P<number>[0-9]{1,4})", re.ASCII)
_REASON = re.compile(r"[A-Za-z0-9]{1,64}", re.ASCII)
_IMEX_UNHEALTHY = "122"


def reading(reason: str, message: str = "") -> Reading | None:
    """Return the fault that a reason names; None for one that is no evidence."""
    xid = _XID.fullmatch(reason)
    if xid:
        number = xid["number"].lstrip("0") or "0"
        if driver_lines.is_cleanup(number):
            return None
        exact = (each for each in driver_lines.readings(message) if each.code.partition("/")[0] == number)
        return next(exact, Reading(driver_lines.xid_key(number, message), number))
    code = reason if _REASON.fullmatch(reason) else "unreadable"
    numbered = _NUMBERED.fullmatch(reason)
    if numbered:
        return Reading(_numbered_key(numbered["name"], numbered["number"]), code)
    name = "RepeatedRestart" if reason.endswith("RepeatedRestart") else code
    return Reading(f"eks:{name}" if f"eks:{name}" in default_catalogue() else UNKNOWN_FAULT, code)


def _numbered_key(name: str, number: str) -> str:
    if name == "DCGMFieldError":
        return "eks:DCGMFieldError"
    # As a condition the agent shows only what it takes for fatal; the others are events.
    return "gpu:dcgm_imex_unhealthy" if number == _IMEX_UNHEALTHY else "eks:DCGMHealthCodeFatal"
