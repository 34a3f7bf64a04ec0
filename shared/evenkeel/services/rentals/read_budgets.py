"""What teams have spent in the periods of their budgets, and what is left of their dollars: read once, used by many."""

from collections.abc import Iterable
from datetime import datetime

from evenkeel.domain.policy import Policy
from evenkeel.domain.quotas.budgets import add_rent, remaining_by_team
from evenkeel.domain.quotas.spending import Spent
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.rental import Rental
from evenkeel.ports import Ledger
from evenkeel.services.rentals import rentals
from evenkeel.services.storage import read_charges, read_setup, rows


def spent(setup: TeamSetup, ledger: Ledger, rented: Iterable[Rental], now: datetime) -> dict[tuple[str, str], Spent]:
    """Return by team and period what settled attempts and rentals came to, with the rents of what is rented still.

    Args:
        setup: Whose budgets; read only where there are any.
        ledger: Where it is written.
        rented: Read before this, so that a rental that ends meanwhile is counted twice at worst, never not at all.
        now: The time.
    """
    periods = [(team.name, budget.period.key_at(now)) for team in setup.teams for budget in team.budgets]
    found = [ledger.get(rows.spent_key(team, period)) for team, period in periods]
    settled = {place: Spent.model_validate(row.doc) for place, row in zip(periods, found, strict=True) if row}
    return add_rent(settled, setup, rented, now)


def left_beside(rental: Rental, ledger: Ledger, policy: Policy, now: datetime) -> int | None:
    """Return what is left of its team's dollars if a rental's offer is replaced; None where there is no such budget."""
    setup = read_setup.run(ledger).setup
    team = setup.by_name.get(rental.team)
    if team is None or all(budget.usd is None for budget in team.budgets):
        return None
    only = setup.but(teams=(team,))
    rented = rentals.load(ledger).rentals
    charges = read_charges.held(ledger)
    others = [each for each in rented if each.name != rental.name]
    return remaining_by_team(only, spent(only, ledger, rented, now), charges, others, policy.economy, now)[team.name]
