"""Every planted bug still applies and names an invariant. `make mutants` proves that the seeds find it."""

import pytest

from tests.drill_mutants import drill_mutants
from tests.simulator.invariants import TABLE
from tests.simulator.mutant_types import type_errors
from tests.simulator.mutants import Mutant, known_seeds, mutants, why_not_applicable


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_every_planted_bug_patch_applies_and_names_an_invariant(mutant: Mutant) -> None:
    assert why_not_applicable(mutant.path) == ""
    assert mutant.invariant in {invariant.name for invariant in TABLE}


def test_every_invariant_has_a_planted_bug() -> None:
    assert {mutant.invariant for mutant in mutants()} == {invariant.name for invariant in TABLE}


def test_seed_is_known_for_every_planted_bug() -> None:
    assert set(known_seeds()) == {mutant.name for mutant in mutants()}


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_no_planted_bug_adds_a_type_error() -> None:
    patches = [*(mutant.path for mutant in mutants()), *(mutant.path for mutant in drill_mutants())]

    assert type_errors(patches) == {}
