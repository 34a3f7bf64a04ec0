"""The sides of an effect on which a test lets a process die.

A crash before an effect finds the rows that a crash after the previous effect leaves. `make test` plays only the side
after each effect; `make test-all` plays both.
"""

import pytest

from tests.fakes.crashes import CrashTiming

MARKS = {CrashTiming.BEFORE: (pytest.mark.exhaustive,), CrashTiming.AFTER: ()}
SIDES = [pytest.param(when, marks=marks) for when, marks in MARKS.items()]
"""Parametrizes a test with the argument `when`."""
