"""The ports Clock and Ids."""

import random
import secrets
import time
from datetime import UTC, datetime

ALPHABET = "23456789abcdefghjkmnpqrstvwxyz"
"""Characters without 0, 1, i, l, o and u, so that people can read an id aloud, and ids do not form words."""
LENGTH = 10


class SystemClock:
    """The system clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep_about(self, seconds: float) -> None:
        time.sleep(seconds * random.uniform(0.5, 1.5))  # noqa: S311 - jitter


class RandomIds:
    """Random ids: 10 of 30 characters, so 5.9e14 ids. Two of 24,000 ids are equal with a chance of 1 in 2 million."""

    def new(self, prefix: str) -> str:
        return f"{prefix}-{''.join(secrets.choice(ALPHABET) for _ in range(LENGTH))}"
