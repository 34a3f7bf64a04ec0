"""evenkeel.api / Evenkeel Reported Faults: faults that a site's detectors and operators report through the API.

The API itself puts these events on the queue, and no rule delivers one from the bus. So the reporter is the caller
whose signature the API checked. A detector's event that names a fault of a provider or an operator is refused: the API
creates no such event.
"""

import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.health.incidents import FactDetail, FactKind, FactText, FactWord, JobName, NodeFact
from evenkeel.domain.health.reports import ReporterRole
from evenkeel.domain.values import rfc3339
from evenkeel.events import agent_log, driver_lines, eks_conditions, fields
from evenkeel.events.driver_lines import NamedFault
from evenkeel.events.fields import PRINTABLE, EventEnvelope, EventModel, InstanceId, PlainText, UtcTime
from evenkeel.events.outcomes import Ignored, Malformed, ParsedEvent

SOURCE = "evenkeel.api"
DETAIL_TYPE = "Evenkeel Reported Faults"

_SOURCES = {ReporterRole.DETECTOR: "site", ReporterRole.OPERATOR: "person"}
_DIGITS = re.compile(r"[0-9]{1,4}", re.ASCII)


def named_faults(code: str, line: str) -> tuple[NamedFault, ...]:
    """Return the faults that a report names by its code, else by its line; none if it names no known fault.

    A code is a key of the catalogue (`xid:79`), the number of an Xid, or the name that HyperPod or the EKS agent uses.
    """
    faults = agent_log.named_faults(line) if line else ()
    if not code:
        return faults
    key = fault_key(code)
    if not key:
        return ()
    with_device = next((fault for fault in faults if fault.gpu), NamedFault(key, code))
    return (NamedFault(key, code, with_device.gpu, with_device.link),)


def fault_key(code: str) -> str:
    """Return the catalogue key of a code; empty if it has none. A guess could repair a healthy node."""
    fault = default_catalogue().find(code)
    if fault:
        return fault.key
    if _DIGITS.fullmatch(code):
        return driver_lines.xid_key(code.lstrip("0") or "0")
    named_fault = eks_conditions.named_fault(code)
    return named_fault.fault_key if named_fault and named_fault.fault_key.startswith(("xid:", "eks:", "gpu:")) else ""


def report_detail(caller: str, reporter_role: ReporterRole, facts: list[dict[str, str]]) -> dict[str, object]:
    """Return the `detail` of an envelope that `parse` reads back."""
    return {"caller": caller, "reporterRole": reporter_role, "faults": facts}


def report_entry(
    instance_id: str, named_fault: NamedFault, *, gpu: str, job_id: str, observed_at: datetime, detail: str
) -> dict[str, str]:
    """Return one entry of `detail.faults` that `parse` reads back."""
    return {
        "instanceId": instance_id,
        "faultKey": named_fault.fault_key,
        "code": named_fault.code,
        "gpu": gpu or named_fault.gpu,
        "link": named_fault.link,
        "jobId": job_id,
        "observedAt": rfc3339(observed_at),
        "detail": fields.one_line(detail),
    }


class _Fault(EventModel):
    """An entry of `detail.faults`, as `fault_of` writes it."""

    model_config = ConfigDict(alias_generator=to_camel)

    instance_id: InstanceId
    fault_key: FactWord = ""
    code: Annotated[FactText, PRINTABLE] = ""
    gpu: FactWord = ""
    link: FactWord = ""
    job_id: JobName = ""
    observed_at: UtcTime
    detail: Annotated[FactDetail, PRINTABLE] = ""


class _Detail(EventModel):
    """`detail` of evenkeel.api / Evenkeel Reported Faults, as `report_detail` writes it."""

    model_config = ConfigDict(alias_generator=to_camel)

    caller: PlainText
    reporter_role: PlainText = ""
    faults: list[_Fault] = []


def parse(document: dict[str, Any]) -> ParsedEvent | Ignored | Malformed:
    """Read the event.

    Raises:
        ValidationError: the event does not fit its model.
    """
    event = EventEnvelope[_Detail].model_validate(document)
    detail = event.detail
    # An event without a known role is a detector's: the role with the least authority.
    role = ReporterRole.OPERATOR if detail.reporter_role == ReporterRole.OPERATOR else ReporterRole.DETECTOR
    for index, fault in enumerate(detail.faults):
        if not role.may_report(fault.fault_key):
            problem = f"{fault.fault_key} is a fault that a detector may not report"
            return Malformed("EVENT_NOT_ITS_FAULT", f"detail.faults[{index}].faultKey: {problem}")
    # All faults of a caller have the same source: they confirm each other no more than one report does.
    source = f"{_SOURCES[role]}:{detail.caller}"
    facts = tuple(_node_fact(fault, source, event.id) for fault in detail.faults)
    return ParsedEvent(facts) if facts else Ignored("a report without a fault")


def _node_fact(fault: _Fault, source: str, envelope_id: str) -> NodeFact:
    return NodeFact(
        kind=FactKind.FAULT,
        source=source,
        instance_id=fault.instance_id,
        fault_key=fault.fault_key,
        code=fault.code,
        gpu=fault.gpu,
        link=fault.link,
        job_id=fault.job_id,
        observed_at=fault.observed_at,
        envelope_id=envelope_id,
        detail=fault.detail,
    )
