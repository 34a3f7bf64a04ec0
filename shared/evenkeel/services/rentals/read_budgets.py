"""What teams have spent in the periods of their budgets, and what is left of their dollars: read once, used by many."""

from collections.abc import Iterable

from evenkeel.domain.quotas.budgets import add_rent, remaining_by_team
from evenkeel.domain.quotas.spending import Spent
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.rental import Rental
from evenkeel.services.context import Context
from evenkeel.services.rentals import rentals
from evenkeel.services.storage import read_charges, read_setup, rows


def spent(setup: TeamSetup, context: Context, rented: Iterable[Rental]) -> dict[tuple[str, str], Spent]:
    """Return by team and period what settled attempts and rentals came to, with the rents of what is rented still.

    Args:
        setup: Whose budgets; read only where there are any.
        rented: Read before this, so that a rental that ends meanwhile is counted twice at worst, never not at all.
    """
    periods = [(team.name, budget.period.key_at(context.now)) for team in setup.teams for budget in team.budgets]
    found = [context.ledger.get(rows.spent_key(team, period)) for team, period in periods]
    settled = {place: Spent.model_validate(row.doc) for place, row in zip(periods, found, strict=True) if row}
    return add_rent(settled, setup, rented, context.now)


def left_beside(rental: Rental, context: Context) -> int | None:
    """Return what is left of its team's dollars if a rental's offer is replaced; None where there is no such budget."""
    setup = read_setup.run(context.ledger).setup
    team = setup.by_name.get(rental.team)
    if team is None or all(budget.usd is None for budget in team.budgets):
        return None
    only = setup.but(teams=(team,))
    rented = rentals.load(context.ledger).rentals
    charges = read_charges.held(context.ledger)
    others = [each for each in rented if each.name != rental.name]
    return remaining_by_team(only, spent(only, context, rented), charges, others, context.policy.economy, context.now)[
        team.name
    ]
