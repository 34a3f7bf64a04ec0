"""A step of a recovery: its request, and whether it may act now."""

from evenkeel.domain.health.incidents import Incident, NodeBranchResult
from evenkeel.domain.recovery.approval import is_approved
from evenkeel.domain.recovery.modes import current_mode
from evenkeel.domain.recovery.plan import why_not_allowed
from evenkeel.domain.values import Value
from evenkeel.services.context import Context
from evenkeel.services.tables import incident_rows


class RecoveryStepRequest(Value):
    """A request to take a step of a recovery. Most states of the workflow `recover_node` have this input."""

    schema_version: int = 1
    incident_id: str
    run: int
    """Number of the recovery run of the incident, from 1."""


def is_over(request_run: int, incident: Incident) -> bool:
    """Return whether a run of a recovery is over: the incident is settled, or a later run took over.

    Step Functions may deliver a task twice, and a function may outlive its task. So every step that acts asks this.
    """
    return incident.state.is_settled or request_run < incident.run


REPAIR_OVER_TEXT = "The incident is settled, a later run took over, or the repair of the node has ended."


def is_repair_over(request_run: int, incident: Incident) -> bool:
    """Return whether a run is over, or its branch that repairs the node has ended. Steps before that end are over."""
    return is_over(request_run, incident) or incident.node_branch not in ("", NodeBranchResult.NOT_NEEDED)


def has_left_node(incident: Incident) -> bool:
    """Return whether ReturnNode has ended that branch. RepairNode repeats its own answers, but not after that."""
    return incident.node_branch in (
        NodeBranchResult.RETURNED,
        NodeBranchResult.STAYS_CORDONED,
        NodeBranchResult.GONE,
    )


def drill_may_act(incident: Incident, context: Context) -> bool:
    """Return whether a drill may act now: the stack allows it, and no real incident is open for the node.

    A real incident ignores drills, so the drill yields.
    """
    return context.site.drills_may_act and (
        not incident.is_drill or context.ledger.get(incident_rows.open_key(incident.life)) is None
    )


def why_may_not_act(incident: Incident, context: Context) -> str:
    """Return why Evenkeel may not act on an incident now; empty if it may.

    Every service asks right before it acts, because the stack's mode, an approval or a real incident may have changed
    since the plan. `RepairNode` also checks which repair steps were approved.
    """
    mode = current_mode(context.mode, incident.mode, is_approved=is_approved(incident))
    may_act = drill_may_act(incident, context)
    return why_not_allowed(mode, is_drill=incident.is_drill, drills_may_act=may_act)
