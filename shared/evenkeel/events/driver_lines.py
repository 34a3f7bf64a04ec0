"""Kernel log lines of the NVIDIA driver: Xid of a GPU, SXid of an NVSwitch.

    NVRM: Xid (PCI:0000:b9:00): 79, pid=1234, GPU has fallen off the bus.
    Xid (PCI:0000:b9:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 04 (…)
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 …

Source: NVIDIA's Xid catalog and Fabric Manager guide.
"""

import re
from typing import NamedTuple

from evenkeel.domain.health.faults import default_catalogue

UNPARSED = "xid_unparsed"
"""Code of a line that names an Xid and cannot be read. Counted, so that operators see a change of the format."""

_CODE = re.compile(
    r"\b(?P<kind>S?Xid) \(PCI:(?P<pci>[0-9A-Fa-f]{1,8}(?::[0-9A-Fa-f]{1,4}){1,2}(?:\.[0-9A-Fa-f])?)\): "
    r"(?P<number>[0-9]{1,6})(?![0-9])",
    re.ASCII,
)
_NAMES_DEVICE = re.compile(r"\bS?Xid\b", re.ASCII | re.IGNORECASE)
_LINK = re.compile(r"\bLink (?P<number>[0-9]{1,3})\b", re.ASCII)
_NOT_FATAL = re.compile(r"\bnon-?fatal\b", re.ASCII | re.IGNORECASE)
_FATAL = re.compile(r"\bfatal\b", re.ASCII | re.IGNORECASE)
_MAX_READINGS = 8
"""Maximum number of codes that one text gives."""

_CLEANUP = "45"
"""Channel cleanup after another fault; never evidence, thousands are normal (NVIDIA/NVSentinel#1748)."""
_RECOVERY_ACTION_XID = "154"
_KEY_BY_RECOVERY_ACTION = {
    "Drain and Reset": "drain_and_reset",
    "Drain P2P": "drain_p2p",
    "GPU Reset Required": "gpu_reset_required",
    "Node Reboot Required": "node_reboot_required",
}
"""The driver's phrases in Xid 154, which sums up the repair that a series of Xids needs."""
_WITHDRAWN = re.compile(r"\bNone\b", re.ASCII)


class NamedFault(NamedTuple):
    """A fault that a text names."""

    fault_key: str
    code: str
    """`79`, `149/fatal`, or the source's own name of the fault."""
    gpu: str = ""
    """PCI address of the device."""
    link: str = ""


def named_faults(text: str) -> tuple[NamedFault, ...]:
    """Return the faults that a text names, in its order, each once. Cleanup codes are not evidence.

    A text that names an Xid in an unknown form gives `UNPARSED`.
    """
    matches = [*_CODE.finditer(text)][:_MAX_READINGS]
    if not matches:
        return (NamedFault("xid:*", UNPARSED),) if _NAMES_DEVICE.search(text) else ()
    ends = [*(match.start() for match in matches[1:]), len(text)]
    faults = [_named_fault(match, text[match.end() : end]) for match, end in zip(matches, ends, strict=True)]
    return tuple(dict.fromkeys(fault for fault in faults if fault))


def is_cleanup(code: str) -> bool:
    """Whether an Xid only marks the cleanup after another fault."""
    return code == _CLEANUP


def xid_key(number: str, line_rest: str = "") -> str:
    """Return the catalogue key of an Xid, by its number and the rest of its line."""
    key_of_number = f"xid:{int(number)}"
    if number == _RECOVERY_ACTION_XID:
        verdict = next((key for phrase, key in _KEY_BY_RECOVERY_ACTION.items() if phrase in line_rest), "")
        verdict = verdict or ("none" if _WITHDRAWN.search(line_rest) else "")
        # A verdict in an unknown phrase is never guessed.
        return f"{key_of_number}/{verdict}" if verdict else "xid:*"
    variant = f"{key_of_number}/{_severity_code(line_rest)}"
    return next((key for key in (variant, key_of_number) if key in default_catalogue()), "xid:*")


def _named_fault(match: re.Match[str], line_rest: str) -> NamedFault | None:
    number, link = match["number"].lstrip("0") or "0", _LINK.search(line_rest)
    location = {"gpu": match["pci"].lower(), "link": str(int(link["number"])) if link else ""}
    if match["kind"] == "SXid":
        keys = (f"sxid:{number}", f"sxid:*/{_severity_code(line_rest)}")
        return NamedFault(next((key for key in keys if key in default_catalogue()), "sxid:*"), number, **location)
    if is_cleanup(number):
        return None
    key = xid_key(number, line_rest)
    return NamedFault(key, number if key == "xid:*" else key.removeprefix("xid:"), **location)


def _severity_code(line_rest: str) -> str:
    if _NOT_FATAL.search(line_rest):
        return "nonfatal"
    return "fatal" if _FATAL.search(line_rest) else ""
