"""Number of generated examples of a test: some in `make test`, all in `make test-all`."""

import os

ALL_TESTS = "EVENKEEL_ALL_TESTS"
"""Environment variable: `make test-all` sets it."""


def examples(number: int) -> int:
    """Return the number of examples to try: a fifth of `number`, at least 5, unless all tests run."""
    return number if os.environ.get(ALL_TESTS) else max(5, number // 5)
