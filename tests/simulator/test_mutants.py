"""The planted bugs still fit the tree, and each names what it breaks. `make mutants` sees the seeds find them."""

import pytest

from tests.simulator.invariants import TABLE
from tests.simulator.mutants import Mutant, mutants, why_not_applicable


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_planted_bug_fits_the_tree_and_names_an_invariant(mutant: Mutant) -> None:
    assert why_not_applicable(mutant.path) == ""
    assert mutant.invariant in {invariant.name for invariant in TABLE}


def test_there_are_enough_of_them() -> None:
    assert len(mutants()) >= 10
