"""The time, and new ids."""

import secrets
from datetime import UTC, datetime

ALPHABET = "23456789abcdefghjkmnpqrstvwxyz"
"""Without 0, 1, i, l, o and u: an id is read aloud and typed again, and spells nothing."""
LENGTH = 10


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class RandomIds:
    """Ten characters of thirty: 5.9e14 ids, so 24,000 of a kind collide with a chance of one in two million."""

    def new(self, prefix: str) -> str:
        return f"{prefix}-{''.join(secrets.choice(ALPHABET) for _ in range(LENGTH))}"
