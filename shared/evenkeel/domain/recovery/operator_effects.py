"""The effects of a person's cordon, uncordon or hold, in sentences: the plan that is shown before the change."""

from collections.abc import Sequence

from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.plurals import count_of
from evenkeel.domain.recovery.holds import Hold
from evenkeel.domain.recovery.manual_cordons import ManualCordon

_MAX_JOBS_NAMED = 8


def cordon_effects(node: FleetNode, *, is_cordoned: bool) -> tuple[str, ...]:
    """Return the effects of a person's cordon, most important first.

    Args:
        node: The node as the last sweep saw it.
        is_cordoned: Whether a person has cordoned it already.
    """
    if is_cordoned:
        return ("Nothing changes: a person has cordoned the node already.",)
    recovery = (f"The recovery {node.incident_id} of this node continues.",) if node.incident_id else ()
    return ("The node gets no new pods.", _work_text(node), "No recovery removes this cordon.", *recovery)


def uncordon_effects(
    node: FleetNode, *, is_cordoned: bool, incident_id: str, manual_cordon: ManualCordon | None
) -> tuple[str, ...]:
    """Return the effects of a person's uncordon, most important first.

    Args:
        node: The node as the last sweep saw it.
        is_cordoned: Whether the node is cordoned now.
        incident_id: The incident whose recovery cordoned it; empty if none.
        manual_cordon: The record of a person's cordon; None if there is none.
    """
    gets_pods = "The node gets new pods again. No hold and no guardrail blocks this."
    if incident_id:
        effects: tuple[str, ...] = (gets_pods, f"The recovery {incident_id} of this node ends.")
    elif is_cordoned and manual_cordon:
        why = f": {manual_cordon.reason}" if manual_cordon.reason else ", without a reason"
        effects = (gets_pods, f"{manual_cordon.by} cordoned it{why}")
    elif node.is_awaiting_validation:
        effects = ("Its validation is skipped.", gets_pods)
    else:
        effects = ("Nothing changes: the node is not cordoned.",)
    if node.marks or incident_id:
        marks = f" Its marks: {', '.join(node.marks)}." if node.marks else ""
        effects += (f"Evenkeel records that you report the node as healthy.{marks}",)
    return effects


def hold_effects(hold: Hold, in_force: Sequence[Hold]) -> tuple[str, ...]:
    """Return the effects of a hold, most important first.

    Args:
        hold: The requested hold.
        in_force: The holds in force now.
    """
    held_acts = "No recovery repairs a node or stops a job"
    if hold.stops_scheduling:
        held_acts += ", and no admission, preemption, resize or rental starts"
    replaced_hold = next((other for other in in_force if other.scope == hold.scope), None)
    return (
        f"{held_acts}{hold.scope_text} until {hold.until:%Y-%m-%d %H:%M}Z.",
        *_scheduling_effects(hold, replaced_hold, in_force),
        "Steps that have started still finish. Cordons of faulty nodes continue, and a hold never blocks an uncordon.",
        *(
            [f"It replaces the hold of {replaced_hold.by} until {replaced_hold.until:%Y-%m-%d %H:%M}Z."]
            if replaced_hold
            else ()
        ),
    )


def _scheduling_effects(hold: Hold, replaced_hold: Hold | None, in_force: Sequence[Hold]) -> tuple[str, ...]:
    if hold.stops_scheduling:
        return ()
    if replaced_hold is not None and replaced_hold.stops_scheduling:
        return ("Scheduling starts again, because this hold replaces a hold on scheduling.",)
    if any(other.stops_scheduling for other in in_force):
        return ()
    return ("Scheduling continues, and may preempt or resize jobs. To hold it too: evenkeel automation stop.",)


def _work_text(node: FleetNode) -> str:
    if not node.accelerators_in_use and not node.job_ids:
        return "No GPU of it is in use."
    jobs_text = ", ".join(node.job_ids[:_MAX_JOBS_NAMED])
    more_text = f" and {len(node.job_ids) - _MAX_JOBS_NAMED} more" if len(node.job_ids) > _MAX_JOBS_NAMED else ""
    jobs = f": {jobs_text}{more_text}" if jobs_text else ""
    gpus = count_of(node.accelerators, "GPU is", "GPUs are")
    return f"Running pods stay: {node.accelerators_in_use} of {gpus} in use{jobs}."
