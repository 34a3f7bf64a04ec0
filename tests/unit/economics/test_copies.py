"""In-memory copies of checkpoints: the formulas agree with an enumeration of all sets of lost machines."""

from itertools import combinations

import pytest

from evenkeel.domain.economics import checkpoint_copies
from evenkeel.domain.economics.figure_checks import WrongFigure

CASES = [(n, m, k) for n in range(1, 11) for m in range(1, n + 1) if n % m == 0 for k in range(n + 1)]


def count_harmless_sets(machines: int, size: int, lost: int) -> tuple[int, int]:
    """Count, one by one, the sets of lost machines that lose no data: with copies in groups, and on a ring."""
    grouped = ring = 0
    for lost_machines in map(frozenset, combinations(range(machines), lost)):
        grouped += not any(set(range(at, at + size)) <= lost_machines for at in range(0, machines, size))
        ring += not any({(at + step) % machines for step in range(size)} <= lost_machines for at in range(machines))
    return grouped, ring


@pytest.mark.parametrize(("machines", "size", "lost"), CASES)
def test_recoverable_sets_match_an_enumeration_of_all_sets(machines: int, size: int, lost: int) -> None:
    counts = (
        checkpoint_copies.recoverable_sets(machines, size, lost),
        checkpoint_copies.ring_recoverable_sets(machines, size, lost),
    )

    assert counts == count_harmless_sets(machines, size, lost)


def test_survival_probability_of_a_known_case_is_exact() -> None:
    copy_survival = checkpoint_copies.copy_survival(6, 2, 3)

    assert (copy_survival.recoverable_sets, copy_survival.all_sets, copy_survival.recoverable_probability) == (
        "8",
        "20",
        0.4,
    )
    assert copy_survival.ring_recoverable_probability == pytest.approx(0.1)


@pytest.mark.parametrize(("machines", "size", "lost"), [(256, 2, 3), (256, 2, 20), (512, 4, 30)])
def test_ring_placement_of_copies_survives_less_than_group_placement(machines: int, size: int, lost: int) -> None:
    copy_survival = checkpoint_copies.copy_survival(machines, size, lost)

    assert copy_survival.ring_recoverable_probability is not None
    assert copy_survival.ring_recoverable_probability < copy_survival.recoverable_probability
    assert copy_survival.first_order_bound <= copy_survival.recoverable_probability


@pytest.mark.parametrize(
    ("machines", "size", "lost", "field"),
    [
        (0, 1, 0, "machines"),
        (6, 4, 1, "group_size"),
        (6, 7, 1, "group_size"),
        (6, 2, 7, "lost_machines"),
        (10_242, 2, 1, "machines"),
    ],
)
def test_impossible_replica_groups_are_refused(machines: int, size: int, lost: int, field: str) -> None:
    with pytest.raises(WrongFigure) as error_info:
        checkpoint_copies.copy_survival(machines, size, lost)

    assert error_info.value.field == field
