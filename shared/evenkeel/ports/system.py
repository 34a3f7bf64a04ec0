"""The clock, new ids, and metrics with log lines."""

from datetime import datetime
from typing import Any, Protocol


class Clock(Protocol):
    """The current time."""

    def now(self) -> datetime:
        """Return the current time in UTC, with its time zone."""
        ...

    def sleep_about(self, seconds: float) -> None:
        """Wait between half and one and a half of these seconds, at random, so that equal callers part."""
        ...


class Ids(Protocol):
    """New ids."""

    def new(self, prefix: str) -> str:
        """Return `<prefix>-` and ten unambiguous characters (`inc`, `job`, `dec`, `op`)."""
        ...


class Telemetry(Protocol):
    """Metrics, and log lines with the keys that the entry wrapper adds.

    A metric has at most three dimensions with few values each. Ids are never dimensions.
    """

    def count(self, name: str, value: float = 1.0, **dimensions: str) -> None:
        """Emit a count."""
        ...

    def gauge(self, name: str, value: float, **dimensions: str) -> None:
        """Emit an amount as it is now, without a unit."""
        ...

    def seconds(self, name: str, value: float, **dimensions: str) -> None:
        """Emit a duration in seconds."""
        ...

    def info(self, message: str, **keys: Any) -> None:
        """Log a state change."""
        ...

    def warning(self, message: str, **keys: Any) -> None:
        """Log something degraded but handled."""
        ...

    def error(self, message: str, **keys: Any) -> None:
        """Log a problem that needs a person. The key `runbook` names its runbook."""
        ...
