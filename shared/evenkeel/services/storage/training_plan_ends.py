"""The ends of training plans: the sweep stores them, and decisions about capacity use them like the policy's own."""

from evenkeel.domain.capacity.training_plans import PlanEnds
from evenkeel.services.context import Context
from evenkeel.services.storage import fleet_rows, rows


def with_training_plan_ends(context: Context) -> Context:
    """Return the context with a policy that also has the reservations of training plans, as last read."""
    row = context.ledger.get(fleet_rows.plan_ends_key())
    if row is None:
        return context
    return context.replace(policy=context.policy.with_training_plan_ends(rows.decode(row, PlanEnds)))
