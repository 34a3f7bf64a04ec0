"""Node conditions of NVSentinel, and the faults that each names.

A condition is True while a fatal fault lasts. Its message begins each fault with `ErrorCode:`, followed by the Xid or
by DCGM's name of the failure. A condition from the kernel's log quotes the driver's line.

Source: NVIDIA/NVSentinel, `docs/INTEGRATIONS.md`. `CSPMaintenance` is left out, because Evenkeel reads the events of
AWS itself.
"""

import re

from evenkeel.domain.health.faults import UNKNOWN_FAULT
from evenkeel.events import driver_lines
from evenkeel.events.driver_lines import NamedFault

_DCGM = tuple(
    f"Gpu{part}Watch" for part in ("Mem", "Thermal", "Pcie", "Power", "Inforom", "Sm", "Mcu", "Pmu", "Driver", "Cpuset")
)
_FAULTS = {
    **dict.fromkeys(_DCGM, "gpu:dcgm_health_fatal"),
    "GpuNvlinkWatch": "fabric:nvlink_error",
    "DCGMError": "gpu:dcgm_host_engine_lost",
    "SysLogsXIDError": "xid:*",
    "SysLogsSXIDError": "sxid:*",
    "SysLogsGPUFallenOff": "xid:79",
    "NVSwitchFatalError": "sxid:*/fatal",
    "NVSwitchDown": UNKNOWN_FAULT,
}
"""The fault of each condition whose message names no Xid."""
TYPES = tuple(_FAULTS)

_FROM_KERNEL_LOG = "SysLogs"
_XID = re.compile(r"\bErrorCode:(?P<number>[0-9]{1,4})\b", re.ASCII)


def named_faults(condition: str, message: str) -> tuple[NamedFault, ...]:
    """Return the faults of a condition that is True. Xid 45 is not evidence, so there may be none."""
    default = (NamedFault(_FAULTS[condition], condition),)
    if not condition.startswith(_FROM_KERNEL_LOG):
        return default
    lines = tuple(fault for fault in driver_lines.named_faults(message) if fault.code != driver_lines.UNPARSED)
    numbers = [match["number"].lstrip("0") or "0" for match in _XID.finditer(message)]
    if lines or not numbers or condition != "SysLogsXIDError":
        return lines or default
    faults = (
        NamedFault(driver_lines.xid_key(number), number) for number in numbers if not driver_lines.is_cleanup(number)
    )
    return tuple(dict.fromkeys(faults))
