"""What is left of teams' budgets in dollars, rents included: beyond that nothing is rented for a team.

    left = limit - settled - what has run by now - rents by now - what running rentals are yet expected to cost

A rented node costs its rent, from the moment it is asked for until it is gone; all others the policy's price of an
accelerator-hour while an attempt holds them. Each counts in the period in which it was held.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

from evenkeel.domain.economics import money
from evenkeel.domain.economics.policy import EconomyPolicy
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.quotas.spending import PeriodUsage, Spent, budget_used, split_by_period
from evenkeel.domain.quotas.teams import Period, Team, TeamSetup
from evenkeel.domain.renting.rental import Rental, RentalState

_PARTS_OF_A_MICRO = money.PARTS // money.MICROS

Spends = Mapping[tuple[str, str], Spent]
"""By team and period's name."""


def rent_by_period(rental: Rental, now: datetime) -> tuple[PeriodUsage, ...]:
    """Split what a rental has cost by now into the periods in which it did; of each kind they add up to its bill.

    Each period is there once, though several offers had nodes in it: a commit writes a row no more than once.
    """
    found: Counter[str] = Counter()
    for bill in rental.bills():
        for period in Period:
            for key, parts in _split_by_period(bill, period, now):
                found[key] += parts
    return tuple(PeriodUsage(key, Spent(usd_micros=round(parts / _PARTS_OF_A_MICRO))) for key, parts in found.items())


def add_rent(spent: Spends, setup: TeamSetup, rentals: Iterable[Rental], now: datetime) -> dict[tuple[str, str], Spent]:
    """Return what teams have spent with the rents of what is rented still; those that ended are in it already."""
    found = dict(spent)
    for rental in rentals:
        team = setup.by_name.get(rental.team)
        if team is None or rental.state is RentalState.ENDED:
            continue
        current = {budget.period.key_at(now) for budget in team.budgets if budget.usd is not None}
        for key, more in rent_by_period(rental, now):
            if key in current:
                before = found.get((team.name, key), Spent())
                found[team.name, key] = before.but(usd_micros=before.usd_micros + more.usd_micros)
    return found


def remaining_by_team(
    setup: TeamSetup,
    spent: Spends,
    charges: Iterable[Charge],
    rentals: Iterable[Rental],
    economy: EconomyPolicy,
    now: datetime,
) -> dict[str, int]:
    """Return what is left of each team's tightest budget in dollars, in parts of `economics.money`.

    A rental counts whole against the period that is, though it may outlast it. Who has no such budget is left out.

    Args:
        setup: The teams.
        spent: As `add_rent` returns it.
        charges: What attempts hold.
        rentals: What is rented; one that is to be replaced is left out.
        economy: Prices of what is not rented.
        now: The time.
    """
    held, rented = tuple(charges), tuple(rentals)
    found = {}
    for team in setup.teams:
        budget = _tightest_budget(team, spent, held, economy, now)
        if budget is not None:
            to_pay = sum(expected_remaining_cost(each, now) for each in rented if each.team == team.name)
            found[team.name] = budget - to_pay
    return found


def expected_remaining_cost(rental: Rental, now: datetime) -> int:
    """Return what a rental is yet expected to cost, in parts; what goes back is about gone.

    One that has outrun its expectation is expected to cost half as much again, as its run is (`starts.left_of`).
    """
    if not rental.state.serves:
        return 0
    so_far = money.bill(rental.bills(), now).parts
    left = rental.expected_parts - so_far
    return left if left > 0 else so_far // 2


def _tightest_budget(
    team: Team, spent: Spends, charges: tuple[Charge, ...], economy: EconomyPolicy, now: datetime
) -> int | None:
    own = [charge for charge in charges if charge.team == team.name]
    periods = {period: each for (of, period), each in spent.items() if of == team.name}
    return min(
        (
            (round(budget.usd * money.MICROS) - budget_used(budget, own, periods, economy, now).usd_micros)
            * _PARTS_OF_A_MICRO
            for budget in team.budgets
            if budget.usd is not None
        ),
        default=None,
    )


def _split_by_period(bill: money.BillableRental, period: Period, now: datetime) -> list[tuple[str, int]]:
    """Return what each period has of a bill: what it came to by its end, less what it came to before."""
    total, before, found = bill.parts(now), 0, []
    pieces = split_by_period(period, bill.started_at, bill.ended_at or now)
    for key, _, until in pieces[:-1]:
        # Seconds are billed that were begun, so one that spans the border is the earlier period's.
        by_then = min(total, bill.but(ended_at=until, least_billed_seconds=0).parts(now))
        found.append((key, by_then - before))
        before = by_then
    return [*found, (pieces[-1][0], total - before)]
