"""After an admission, the updated fits of pending jobs equal those of a new search."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.pool_fits import SharedFits, pool_fits, subtract_assigned
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.node_capacity import TAINTED, NodeCapacity
from tests.examples import examples
from tests.unit.scheduling.builders import a_node_capacity, a_request, at

POOLS = {"p5": "ml.p5.48xlarge", "p4": "ml.p4d.24xlarge"}


def _capacity(dice: random.Random, number: int) -> NodeCapacity:
    pool = dice.choice(list(POOLS))
    accelerators = dice.choice((4, 8, 8))
    capacity = a_node_capacity(
        number,
        accelerators=accelerators,
        free=dice.choice((0, 4, accelerators)),
        pool=pool,
        instance_type=POOLS[pool],
        unschedulable_reason=dice.choice(("", "", "", "cordoned", TAINTED)),
    )
    return capacity.replace(
        taints=("owner=ana:NoSchedule",) if capacity.unschedulable_reason == TAINTED else (),
        usable_until=dice.choice((None, None, at(2_000))),
        efa=dice.choice((None, 0, 32)),
    )


def _request(dice: random.Random, number: int, avoid: list[str]) -> AdmissionRequest:
    return a_request(
        number,
        nodes=dice.choice((1, 1, 2, 3)),
        accelerators_per_node=dice.choice((8, 4, 0)),
        instance_types=dice.choice(((), (), (POOLS["p4"],))),
        avoid=tuple(dice.sample(avoid, min(len(avoid), dice.choice((0, 0, 2))))),
        is_recovery=dice.random() < 0.2,
        needs_node_until=dice.choice((None, None, at(3_000))),
    )


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_cached_fits_after_admissions_equal_a_new_search(seed: int, reserves: bool) -> None:
    dice = random.Random(seed)
    capacities = tuple(_capacity(dice, number) for number in range(1, dice.randint(2, 12)))
    if reserves:
        capacities = (capacities[0].replace(reserved_for="job-1"), *capacities[1:])
    policy = SchedulingPolicy(spare_nodes={"p5": dice.choice((0, 1))})
    fits = SharedFits(capacities, policy)
    waiting = [_request(dice, number, [capacity.life.key for capacity in capacities]) for number in range(1, 7)]

    for request in dice.choices(waiting, k=20):
        pool_fits_kept = fits.fits_of(request, capacities)

        assert pool_fits_kept == pool_fits(request, capacities, policy)
        best = next((fit.best for fit in pool_fits_kept if fit.best), ())
        if best and dice.random() < 0.7:
            expected = subtract_assigned(capacities, request, best)
            capacities = fits.subtract(capacities, request, best)
            assert capacities == expected
        elif dice.random() < 0.1:
            # Nodes that became free in another way begin anew.
            freed = [capacity.with_free(capacity.allocatable) for capacity in capacities]
            capacities = tuple(freed)
