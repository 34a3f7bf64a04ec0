"""Whether checkpoints in memory survive: N machines in groups of m keep copies; k machines are lost.

A checkpoint is lost if all m machines of a group are lost. By inclusion and exclusion over the lost groups:

    P(recoverable) = sum over j of (-1)^j C(N/m, j) C(N - j m, k - j m) / C(N, k)

The usual bound stops at j = 1. If each machine copies to its next m - 1 neighbours instead, any m neighbours in a row
lose a checkpoint, which is more often. All lost machines are equally likely here. A rack or zone loses machines
together: place copies in different groups.
"""

from fractions import Fraction
from math import comb

from evenkeel.domain.economics.figure_checks import WrongFigure, whole_number
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Value

_MAX_MACHINES = 10_240
"""The exact counts of more machines take long, and have more digits than Python prints."""
_MAX_RING = 2_000


class CopySurvival(Value):
    """The probability that every checkpoint in memory survives."""

    machines: int
    group_size: int
    lost_machines: int
    recoverable_probability: float
    recoverable_sets: str
    """Sets of lost machines after which every checkpoint survives. Text, because the number may be very large."""
    lost_sets: str
    all_sets: str
    first_order_bound: float
    """The sum up to j = 1, at least 0: never more than the exact probability."""
    ring_recoverable_probability: float | None
    """If each machine copies to its neighbours; null above the size that exact counting supports."""


def copy_survival(machines: int, group_size: int, lost_machines: int) -> CopySurvival:
    """Return the probability that every checkpoint survives the loss of some machines.

    Args:
        machines: Machines that hold checkpoints in memory.
        group_size: Machines that hold the same checkpoint.
        lost_machines: Machines that are lost at once.
    """
    _check_figures(machines, group_size, lost_machines)
    possible = comb(machines, lost_machines)
    recoverable = recoverable_sets(machines, group_size, lost_machines)
    sets_with_lost_group = comb(machines - group_size, lost_machines - group_size) if lost_machines >= group_size else 0
    bound = 1 - Fraction(machines // group_size * sets_with_lost_group, possible)
    ring = ring_recoverable_sets(machines, group_size, lost_machines) if machines <= _MAX_RING else None
    return CopySurvival(
        machines=machines,
        group_size=group_size,
        lost_machines=lost_machines,
        recoverable_probability=float(Fraction(recoverable, possible)),
        recoverable_sets=str(recoverable),
        lost_sets=str(possible - recoverable),
        all_sets=str(possible),
        first_order_bound=float(max(Fraction(0), bound)),
        ring_recoverable_probability=None if ring is None else float(Fraction(ring, possible)),
    )


def recoverable_sets(machines: int, group_size: int, lost_machines: int) -> int:
    """Count the sets of lost machines that leave a copy in every group."""
    groups = machines // group_size
    return sum(
        (-1) ** lost_groups
        * comb(groups, lost_groups)
        * comb(machines - lost_groups * group_size, lost_machines - lost_groups * group_size)
        for lost_groups in range(min(groups, lost_machines // group_size) + 1)
    )


def ring_recoverable_sets(machines: int, group_size: int, lost_machines: int) -> int:
    """Count the sets of lost machines without `group_size` neighbours in a row on a ring.

    The kept machines cut the ring into gaps of 0 to `group_size` - 1 lost machines. With n kept machines, each set of
    gaps solves g1 + ... + gn = lost. Each arrangement is counted from each kept machine: N/n of them are distinct.
    """
    survivors = machines - lost_machines
    if survivors == 0:
        return 0
    gaps: int = sum(
        (-1) ** excluded_gaps
        * comb(survivors, excluded_gaps)
        * comb(lost_machines - excluded_gaps * group_size + survivors - 1, survivors - 1)
        for excluded_gaps in range(min(survivors, lost_machines // group_size) + 1)
    )
    return machines * gaps // survivors


def _check_figures(machines: int, group_size: int, lost_machines: int) -> None:
    whole_number("machines", machines, 1, _MAX_MACHINES)
    whole_number("group_size", group_size, 1, machines)
    whole_number("lost_machines", lost_machines, 0, machines)
    if machines % group_size:
        raise WrongFigure("group_size", f"must divide the {count_of(machines, 'machine')}, and {group_size} does not")
