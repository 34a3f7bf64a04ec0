"""The rest of the teams' budgets in dollars, rent included. Beyond it, nothing is rented for a team.

    rest = limit - settled cost - cost of running attempts - rent so far - expected further cost of running rentals

A rented node costs its rent from the request until it is gone. Any other node costs the policy's price of an
accelerator-hour while an attempt holds it. A cost counts in the period in which it arose.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

from evenkeel.domain.economics import money
from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.quotas.spending import PeriodUsage, Spending, budget_used, split_by_period
from evenkeel.domain.quotas.teams import Period, Team, TeamSetup
from evenkeel.domain.renting.rental import Rental, RentalState

_COST_PARTS_PER_MICRO = money.COST_PARTS_PER_USD // money.MICROS_PER_USD

Spends = Mapping[tuple[str, str], Spending]
"""By team and name of the period."""


def rent_by_period(rental: Rental, now: datetime) -> tuple[PeriodUsage, ...]:
    """Split the cost of a rental so far by period. For each kind of period, the parts add up to its bill.

    Each period appears once, even if several offers had nodes in it: a commit writes a row only once.
    """
    result: Counter[str] = Counter()
    for bill in rental.bills():
        for period in Period:
            for key, cost_parts in _split_by_period(bill, period, now):
                result[key] += cost_parts
    return tuple(
        PeriodUsage(key, Spending(usd_micros=round(cost_parts / _COST_PARTS_PER_MICRO)))
        for key, cost_parts in result.items()
    )


def add_rent(
    spent: Spends, setup: TeamSetup, rentals: Iterable[Rental], now: datetime
) -> dict[tuple[str, str], Spending]:
    """Return the teams' spending with the rent of present rentals. Rentals that ended are already included."""
    result = dict(spent)
    for rental in rentals:
        team = setup.by_name.get(rental.team)
        if team is None or rental.state is RentalState.ENDED:
            continue
        current = {budget.period.key_at(now) for budget in team.budgets if budget.usd is not None}
        for key, rent in rent_by_period(rental, now):
            if key in current:
                earlier = result.get((team.name, key), Spending())
                result[team.name, key] = earlier.replace(usd_micros=earlier.usd_micros + rent.usd_micros)
    return result


def remaining_by_team(
    setup: TeamSetup,
    spent: Spends,
    charges: Iterable[Charge],
    rentals: Iterable[Rental],
    economy: EconomyPolicy,
    now: datetime,
) -> dict[str, int]:
    """Return the rest of each team's tightest budget in dollars, in parts of `economics.money`.

    A rental counts fully against the present period, although it may last longer. A team without such a budget is left
    out.

    Args:
        setup: The teams.
        spent: The spending, as `add_rent` returns it.
        charges: The charges of running attempts.
        rentals: The present rentals, without rentals that are to be replaced.
        economy: Prices of nodes that are not rented.
        now: The time.
    """
    all_charges, all_rentals = tuple(charges), tuple(rentals)
    result = {}
    for team in setup.teams:
        budget = _tightest_budget(team, spent, all_charges, economy, now)
        if budget is not None:
            to_pay = sum(expected_remaining_cost(rental, now) for rental in all_rentals if rental.team == team.name)
            result[team.name] = budget - to_pay
    return result


def expected_remaining_cost(rental: Rental, now: datetime) -> int:
    """Return the expected further cost of a rental, in parts; 0 if it is being released.

    A rental that has exceeded its expected cost is expected to cost half as much again, as for its run time
    (`start_estimates`).
    """
    if not rental.state.hosts_holder:
        return 0
    so_far = money.bill(rental.bills(), now).cost_parts
    remaining_parts = rental.expected_parts - so_far
    return remaining_parts if remaining_parts > 0 else so_far // 2


def _tightest_budget(
    team: Team, spent: Spends, charges: tuple[Charge, ...], economy: EconomyPolicy, now: datetime
) -> int | None:
    team_charges = [charge for charge in charges if charge.team == team.name]
    periods = {period: amount for (of, period), amount in spent.items() if of == team.name}
    return min(
        (
            (
                round(budget.usd * money.MICROS_PER_USD)
                - budget_used(budget, team_charges, periods, economy, now).usd_micros
            )
            * _COST_PARTS_PER_MICRO
            for budget in team.budgets
            if budget.usd is not None
        ),
        default=None,
    )


def _split_by_period(bill: money.BillableRental, period: Period, now: datetime) -> list[tuple[str, int]]:
    """Return each period's part of a bill: the cost by its end, less the cost by its start."""
    total, billed_before, result = bill.cost_parts(now), 0, []
    pieces = split_by_period(period, bill.started_at, bill.ended_at or now)
    for key, _, until in pieces[:-1]:
        # A started second is billed. A second across the border belongs to the earlier period.
        by_then = min(total, bill.replace(ended_at=until, min_billed_seconds=0).cost_parts(now))
        result.append((key, by_then - billed_before))
        billed_before = by_then
    return [*result, (pieces[-1][0], total - billed_before)]
