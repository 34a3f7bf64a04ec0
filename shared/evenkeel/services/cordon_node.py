"""State CordonNode of recover_node: keep new pods off a suspect node."""

from datetime import datetime

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.policy import Mode
from evenkeel.domain.recovery.plan import not_allowed
from evenkeel.domain.values import Value
from evenkeel.ports import Cluster, CordonResult, Ledger, Telemetry, Write
from evenkeel.services import incident_record

WRITER = "cordon_node"

Request = incident_record.Request


class Outcome(Value):
    """What was found or done."""

    outcome: str
    """CORDONED, BY_PERSON, GONE or HELD."""
    reason: str


_SAID = {
    CordonResult.CORDONED: ("CORDONED", "Cordoned: no new pod lands on it."),
    CordonResult.ALREADY_OURS: ("CORDONED", "Cordoned: no new pod lands on it."),
    CordonResult.BY_OTHER_INCIDENT: ("CORDONED", "Cordoned already, for an earlier incident."),
    CordonResult.BY_PERSON: ("BY_PERSON", "A person cordoned it: left as it is."),
    CordonResult.GONE: ("GONE", "The node is gone from its cluster."),
}


def run(
    request: Request,
    *,
    ledger: Ledger,
    cluster: Cluster,
    telemetry: Telemetry,
    mode: Mode,
    drills_may_act: bool,
    now: datetime,
) -> Outcome:
    """Cordon the node with our mark. A hold on automation does not hold this: it is what makes waiting safe.

    Idempotent: yes, by the mark; a person's own cordon is left alone.
    """
    incident, _ = incident_record.load(ledger, request.incident_id)
    barred = not_allowed(mode, is_drill=incident.is_drill, drills_may_act=drills_may_act)
    if barred or incident.state.is_settled:
        return Outcome(outcome="HELD", reason=barred or "The incident is settled.")
    if not incident.node_name:
        return Outcome(outcome="GONE", reason="The machine never joined its cluster.")
    found = cluster.cordon(incident.life.cluster, incident.node_name, incident.incident_id)
    outcome, reason = _SAID[found]

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        if current.stages.cordoned_at is not None or current.state.is_settled:
            return None
        after = current.at_stage("cordoned_at", now) if outcome in ("CORDONED", "BY_PERSON") else current
        if after is current:
            return None
        line = incident_record.told(current.incident_id, "cordoned", reason, at=now, writer=WRITER)
        return after, [line]

    incident_record.amend(ledger, incident.incident_id, change)
    if found is CordonResult.CORDONED:
        telemetry.seconds("DetectedToCordoned", (now - incident.opened_at).total_seconds())
    return Outcome(outcome=outcome, reason=reason)
