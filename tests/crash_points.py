"""Parameters of crash tests: the effect at which a process dies, before or after it.

A crash before an effect leaves the same rows as a crash after the previous effect. `make test` crashes only after an
effect: after every third one, and in long scenarios after every fourth. `make test-all` crashes before and after every
effect.
"""

from typing import Any

import pytest

from tests.fakes.crashes import CrashTiming

SIDES = [pytest.param(CrashTiming.BEFORE, marks=pytest.mark.exhaustive), CrashTiming.AFTER]
"""Parametrizes a test with the argument `when`."""
SIDES_AND_STEPS = [
    pytest.param(CrashTiming.AFTER, 4),
    *(pytest.param(when, 1, marks=pytest.mark.exhaustive) for when in CrashTiming),
]
"""Parametrizes a test of a long scenario with the arguments `when` and `step`."""


def crash_mark(number: int, when: CrashTiming) -> tuple[Any, ...]:
    """Return the marks of a crash at an effect, by its number from 1."""
    return () if when is CrashTiming.AFTER and number % 3 == 0 else (pytest.mark.exhaustive,)


def effects_of(last: int) -> list[Any]:
    """Return the numbers of the effects up to `last`. Parametrizes a test with the argument `at`, beside `SIDES`."""
    return [pytest.param(at, marks=crash_mark(at, CrashTiming.AFTER)) for at in range(1, last + 1)]
