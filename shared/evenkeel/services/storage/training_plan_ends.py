"""The ends of training plans: the sweep stores them, and decisions about capacity use them like the policy's own."""

from collections.abc import Callable
from typing import Any

from evenkeel.domain.capacity.training_plans import PlanEnd, PlanEnds
from evenkeel.ports import Row, Unreadable
from evenkeel.services.context import Context
from evenkeel.services.tables import fleet_rows, rows


def with_training_plan_ends(context: Context) -> Context:
    """Return the context with a policy that also has the reservations of training plans, as last read.

    An end that this release cannot read does not count: the policy's own reservation of that pool does. The sweep
    reports it.
    """
    row = context.ledger.get(fleet_rows.plan_ends_key())
    if row is None:
        return context

    def warn(error: Unreadable) -> None:
        context.telemetry.warning("PlanEndNotRead", detail=str(error))

    return context.replace(policy=context.policy.with_training_plan_ends(readable_plan_ends(row, warn)))


def readable_plan_ends(row: Row, report: Callable[[Unreadable], None]) -> PlanEnds:
    """Return the ends that this release can read, and the row's unknown fields.

    `report` is called for each other end.
    """
    groups: Any = row.doc.get("groups", [])
    ends = []
    for number, document in enumerate(groups if isinstance(groups, list) else [groups]):
        try:
            ends.append(rows.parse(row.key, PlanEnd, document))
        except Unreadable as error:
            report(Unreadable(f"groups.{number} of {error}"))
    return rows.parse(row.key, PlanEnds, {**row.doc, "groups": []}).replace(groups=tuple(ends))
