"""Money, exactly: whole micro-dollars an hour, summed without a rounding, rounded once where somebody reads it.

    part   1/3600 of a micro-dollar: what a price of one micro-dollar an hour comes to in one second

A bill adds parts, which are whole numbers, so that the sum does not depend on the order or on how a rental was cut.
"""

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from evenkeel.domain.values import Instant, Value

MICROS = 1_000_000
PARTS = 3600 * MICROS
"""Parts of one dollar."""


def micros(usd: str | Decimal) -> int:
    """Return dollars as whole micro-dollars.

    Raises:
        ValueError: it is finer than a micro-dollar.
    """
    exact = Decimal(usd) * MICROS
    if exact != exact.to_integral_value():
        raise ValueError(f"${usd} is finer than a micro-dollar")
    return int(exact)


def cents(parts: int) -> int:
    """Return whole cents, half a cent away from nought."""
    sign, parts = (-1 if parts < 0 else 1), abs(parts)
    return sign * ((parts * 200 + PARTS) // (2 * PARTS))


def format_usd(parts: int) -> str:
    """Write parts as people do: `$1,204.50`."""
    whole = cents(parts)
    return f"{'-' if whole < 0 else ''}${abs(whole) // 100:,}.{abs(whole) % 100:02}"


class BillableRental(Value):
    """Nodes that somebody pays for by the hour, from their launch to their end."""

    pool: str
    job_id: str
    team: str
    micros_per_node_hour: int
    nodes: int
    least_billed_seconds: int = 60
    started_at: Instant
    ended_at: Instant | None = None

    @property
    def micros_per_hour(self) -> int:
        """What it costs an hour while it lasts."""
        return self.micros_per_node_hour * self.nodes

    def parts(self, now: datetime) -> int:
        """Return what it has cost by now; begun seconds count whole, as they are billed."""
        lasted = (self.ended_at or max(now, self.started_at)) - self.started_at
        seconds = lasted.days * 86_400 + lasted.seconds + (1 if lasted.microseconds else 0)
        return self.micros_per_hour * max(seconds, self.least_billed_seconds)


class Bill(Value):
    """What rentals came to, by team. Teams' parts add up to the whole, always."""

    parts: int
    by_team: dict[str, int]


def bill(rentals: Iterable[BillableRental], now: datetime) -> Bill:
    """Add up what rentals have cost by now."""
    by_team: dict[str, int] = {}
    for rental in rentals:
        by_team[rental.team] = by_team.get(rental.team, 0) + rental.parts(now)
    return Bill(parts=sum(by_team.values()), by_team=dict(sorted(by_team.items())))
