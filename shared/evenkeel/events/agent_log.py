"""Lines of the log that HyperPod's health agent keeps: group `/aws/sagemaker/Clusters/<name>/<id>`.

Source: the SageMaker guide, "Health Monitoring Agent". A key may be written `details` or `details: `, with colon and
space inside. If text and code contradict each other, the code counts.
"""

import json
import re
from typing import Annotated, Any

from pydantic import AliasChoices, AliasGenerator, ConfigDict, Field, ValidationError

from evenkeel.domain.health.faults import default_catalogue
from evenkeel.events import driver_lines
from evenkeel.events.driver_lines import NamedFault
from evenkeel.events.fields import NONE_IF_UNREADABLE, EventModel
from evenkeel.events.hyperpod_node_health import fault_key

_NAME = re.compile(r"[A-Za-z0-9]{1,64}", re.ASCII)
_LINE_LIMIT = 8192


def _either_spelling(name: str) -> AliasChoices:
    return AliasChoices(name, f"{name}: ")


class _Details(EventModel):
    """`details` of a HealthMonitoringAgentDetectionEvent."""

    model_config = ConfigDict(alias_generator=AliasGenerator(validation_alias=_either_spelling))

    message: Annotated[str | None, NONE_IF_UNREADABLE] = None
    reason: Annotated[str | None, NONE_IF_UNREADABLE] = None
    condition: Annotated[str | None, NONE_IF_UNREADABLE] = None
    err_num: Annotated[int | None, Field(gt=0, lt=10_000), NONE_IF_UNREADABLE] = Field(
        None, validation_alias=_either_spelling("ErrNum")
    )


class _AgentLogLine(EventModel):
    """A line of the agent's log."""

    detection: Any = Field(validation_alias="HealthMonitoringAgentDetectionEvent")
    details: _Details = Field(validation_alias=_either_spelling("details"))


def named_faults(line: str) -> tuple[NamedFault, ...]:
    """Return the faults that a line names; none if it names none. The line is the agent's JSON or the driver's own."""
    if len(line) > _LINE_LIMIT:
        return ()
    document = _document(line)
    if document is None:
        return driver_lines.named_faults(line)
    try:
        details = _AgentLogLine.model_validate(document).details
    except ValidationError:
        return ()
    faults = driver_lines.named_faults(details.message or "")
    if not faults and details.condition == "XID Error" and details.err_num:
        number = str(details.err_num)
        faults = () if driver_lines.is_cleanup(number) else (NamedFault(driver_lines.xid_key(number), number),)
    # The agent's own verdict is kept beside the code: it attributes some Xids to the application.
    reason = details.reason or ""
    if _NAME.fullmatch(reason) and f"hp:{reason}" in default_catalogue():
        return (*faults, NamedFault(fault_key(reason), reason))
    return faults


def _document(line: str) -> dict[str, Any] | None:
    start = line.find("{")
    if start < 0:
        return None
    try:
        document = json.loads(line[start:])
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
