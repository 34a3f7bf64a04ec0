"""Lines of the log that HyperPod's health agent keeps: group `/aws/sagemaker/Clusters/<name>/<id>`.

Source: the SageMaker guide, "Health Monitoring Agent". The key of the details is `details` or `details: `, colon and
space inside; of a DCGM violation likewise. Where text and code contradict each other, the code counts.
"""

import json
import re
from typing import Any

from evenkeel.domain.health.faults import default_catalogue
from evenkeel.events import driver_lines
from evenkeel.events.driver_lines import Reading
from evenkeel.events.hyperpod_node_health import fault_key

_NAME = re.compile(r"[A-Za-z0-9]{1,64}", re.ASCII)
_MARK = "HealthMonitoringAgentDetectionEvent"
_LINE_LIMIT = 8192


def readings(line: str) -> tuple[Reading, ...]:
    """Return the faults that a line tells, be it the agent's JSON or the driver's own; none where it tells none."""
    if len(line) > _LINE_LIMIT:
        return ()
    document = _document(line)
    if document is None:
        return driver_lines.readings(line)
    details = _under(document, "details")
    if _MARK not in document or not isinstance(details, dict):
        return ()
    message, reason = _under(details, "message"), _under(details, "reason")
    found = driver_lines.readings(message) if isinstance(message, str) else ()
    number = _under(details, "ErrNum")
    if not found and _under(details, "condition") == "XID Error" and type(number) is int and 0 < number < 10_000:
        key = driver_lines.xid_key(str(number))
        found = () if driver_lines.is_cleanup(str(number)) else (Reading(key, str(number)),)
    # The agent's own verdict stands beside the code: it lays some Xids on the application.
    if isinstance(reason, str) and _NAME.fullmatch(reason) and f"hp:{reason}" in default_catalogue():
        return (*found, Reading(fault_key(reason), reason))
    return found


def _document(line: str) -> dict[str, Any] | None:
    start = line.find("{")
    if start < 0:
        return None
    try:
        document = json.loads(line[start:])
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _under(document: dict[str, Any], key: str) -> Any:
    """Return the value of a key in either spelling."""
    return document.get(key, document.get(f"{key}: "))
