"""Exact amounts of money. Prices are whole micro-dollars per hour; sums are exact and rounded once, for display.

    cost part   1/3600 of a micro-dollar: the cost of one second at a price of one micro-dollar per hour

Every name that ends in `_parts` counts cost parts. They are whole numbers, so a sum does not depend on the order, or on
how a rental is divided.
"""

from collections.abc import Iterable
from datetime import datetime

from evenkeel.domain.values import Instant, Value

MICROS_PER_USD = 1_000_000
COST_PARTS_PER_USD = 3600 * MICROS_PER_USD
"""Number of cost parts in one dollar."""


def cents(cost_parts: int) -> int:
    """Convert cost parts to whole cents. Half a cent is rounded away from zero."""
    sign, cost_parts = (-1 if cost_parts < 0 else 1), abs(cost_parts)
    return sign * ((cost_parts * 200 + COST_PARTS_PER_USD) // (2 * COST_PARTS_PER_USD))


def format_usd(cost_parts: int) -> str:
    """Format cost parts as dollars: `$1,204.50`."""
    amount = cents(cost_parts)
    return f"{'-' if amount < 0 else ''}${abs(amount) // 100:,}.{abs(amount) % 100:02}"


class BillableRental(Value):
    """Nodes that a team pays for by the hour, from their launch to their end."""

    pool: str
    job_id: str
    team: str
    micros_per_node_hour: int
    nodes: int
    min_billed_seconds: int = 60
    started_at: Instant
    ended_at: Instant | None = None

    @property
    def micros_per_hour(self) -> int:
        """Price of all its nodes, in micro-dollars per hour."""
        return self.micros_per_node_hour * self.nodes

    def cost_parts(self, now: datetime) -> int:
        """Return the cost until now. A started second counts as a whole second, as in the provider's bill."""
        duration = (self.ended_at or max(now, self.started_at)) - self.started_at
        seconds = duration.days * 86_400 + duration.seconds + (1 if duration.microseconds else 0)
        return self.micros_per_hour * max(seconds, self.min_billed_seconds)


class Bill(Value):
    """The cost of rentals in cost parts, in total and by team. The costs of the teams always add up to the total."""

    cost_parts: int
    by_team: dict[str, int]


def bill(rentals: Iterable[BillableRental], now: datetime) -> Bill:
    """Add up the cost of rentals until now."""
    by_team: dict[str, int] = {}
    for rental in rentals:
        by_team[rental.team] = by_team.get(rental.team, 0) + rental.cost_parts(now)
    return Bill(cost_parts=sum(by_team.values()), by_team=dict(sorted(by_team.items())))
