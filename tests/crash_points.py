"""The sides of an effect on which a test lets a process die.

A crash before an effect finds the rows that a crash after the previous effect leaves. `make test` plays only the side
after each effect, and of long plays every fourth effect; `make test-all` plays both sides of all effects.
"""

import pytest

from tests.fakes.crashes import CrashTiming

MARKS = {CrashTiming.BEFORE: (pytest.mark.exhaustive,), CrashTiming.AFTER: ()}
SIDES = [pytest.param(when, marks=marks) for when, marks in MARKS.items()]
"""Parametrizes a test with the argument `when`."""
SIDES_AND_STEPS = [
    pytest.param(CrashTiming.AFTER, 4),
    *(pytest.param(when, 1, marks=pytest.mark.exhaustive) for when in MARKS),
]
"""Parametrizes a test of a long play with the arguments `when` and `step`."""
