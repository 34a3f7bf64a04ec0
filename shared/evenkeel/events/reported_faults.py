"""evenkeel.api / Evenkeel Reported Faults: what a site's own detectors and operators report through the API.

The API puts these envelopes on the queue itself; no rule lets the bus deliver one, so who reports is who signed. A
detector's envelope that names a provider's or a person's fault was not made by the API, and is refused.
"""

import re
from datetime import datetime

from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.domain.health.reports import ReporterRole
from evenkeel.domain.values import rfc3339
from evenkeel.events import agent_log, driver_lines, eks_conditions, fields
from evenkeel.events.driver_lines import Reading
from evenkeel.events.outcomes import BadEvent, Ignored, ParsedEvent

SOURCE = "evenkeel.api"
DETAIL_TYPE = "Evenkeel Reported Faults"

_SOURCES = {ReporterRole.DETECTOR: "site", ReporterRole.OPERATOR: "person"}
_DIGITS = re.compile(r"[0-9]{1,4}", re.ASCII)


def readings(code: str, line: str) -> tuple[Reading, ...]:
    """Return the faults that a report names: by its code, else by its line; none where neither names one.

    A code is a key of the catalogue (`xid:79`), the number of an Xid, or a name as HyperPod or the EKS agent spell it.
    """
    found = agent_log.readings(line) if line else ()
    if not code:
        return found
    key = fault_key(code)
    if not key:
        return ()
    where = next((each for each in found if each.gpu), Reading(key, code))
    return (Reading(key, code, where.gpu, where.link),)


def fault_key(code: str) -> str:
    """Return the catalogue key of a code; empty where it has none: a guess would be a repair on hearsay."""
    found = default_catalogue().find(code)
    if found:
        return found.key
    if _DIGITS.fullmatch(code):
        return driver_lines.xid_key(code.lstrip("0") or "0")
    named = eks_conditions.reading(code)
    return named.fault_key if named and named.fault_key.startswith(("xid:", "eks:", "gpu:")) else ""


def detail_of(caller: str, reporter_role: ReporterRole, facts: list[dict[str, str]]) -> dict[str, object]:
    """Return the `detail` of an envelope that `parse` reads back."""
    return {"caller": caller, "reporterRole": reporter_role, "faults": facts}


def fault_of(
    instance_id: str, reading: Reading, *, gpu: str, job_id: str, observed_at: datetime, words: str
) -> dict[str, str]:
    """Return one fault of such a detail."""
    return {
        "instanceId": instance_id,
        "faultKey": reading.fault_key,
        "code": reading.code,
        "gpu": gpu or reading.gpu,
        "link": reading.link,
        "jobId": job_id,
        "observedAt": rfc3339(observed_at),
        "detail": fields.quoted(words),
    }


def parse(envelope: fields.Envelope) -> ParsedEvent | Ignored:
    """Read the event.

    Raises:
        BadEvent: at the first fault.
    """
    caller = fields.plain_text_of(envelope.detail, "caller", "detail.caller")
    filed_as = fields.plain_text_of(envelope.detail, "reporterRole", "detail.reporterRole", required=False)
    # An envelope that says nothing is a detector's: the one with the least authority.
    reporter_role = ReporterRole.OPERATOR if filed_as == ReporterRole.OPERATOR else ReporterRole.DETECTOR
    envelope_id, _ = envelope.identity()
    facts = []
    for path, fault in fields.list_of(envelope.detail, "faults", "detail.faults"):
        text = {
            name: fields.plain_text_of(fault, name, f"{path}.{name}", required=name in ("instanceId", "observedAt"))
            for name in ("instanceId", "faultKey", "code", "gpu", "link", "jobId", "observedAt", "detail")
        }
        fields.check_instance_id(text["instanceId"], f"{path}.instanceId")
        if not reporter_role.may_report(text["faultKey"]):
            raise BadEvent(
                "EVENT_NOT_ITS_FAULT", f"{path}.faultKey: {text['faultKey']} is a fault that a detector may not report"
            )
        facts.append(
            NodeFact(
                kind=FactKind.SICKENED,
                # One witness per caller, however much it says.
                source=f"{_SOURCES[reporter_role]}:{caller}",
                instance_id=text["instanceId"],
                fault_key=text["faultKey"],
                code=text["code"],
                gpu=text["gpu"],
                link=text["link"],
                job_id=text["jobId"],
                observed_at=fields.time_of(text["observedAt"], f"{path}.observedAt"),
                envelope_id=envelope_id,
                detail=text["detail"],
            )
        )
    return ParsedEvent(tuple(facts)) if facts else Ignored("a report without a fault")
