"""Clock, ids and telemetry under the control of a test."""

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from evenkeel.domain.metrics import check_declared

A_MOMENT = datetime(2026, 11, 3, 10, 15, 2, tzinfo=UTC)


class FixedClock:
    """A clock that only a test moves."""

    def __init__(self, now: datetime = A_MOMENT) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now

    def sleep_about(self, seconds: float) -> None:
        """Advance the clock. A clock that time drives itself waits as long."""
        self.advance(seconds)

    def set(self, now: datetime) -> None:
        self._now = now

    def advance(self, seconds: float) -> datetime:
        """Advance the clock, and return the new time."""
        self._now += timedelta(seconds=seconds)
        return self._now


class SequenceIds:
    """Ids such as `inc-0000000001` and `job-0000000002`, with one counter for all prefixes."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, prefix: str) -> str:
        return f"{prefix}-{next(self._numbers):010d}"


@dataclass(frozen=True)
class RecordedMetric:
    name: str
    value: float
    unit: str
    dimensions: Mapping[str, str]


@dataclass
class LogLine:
    level: str
    message: str
    keys: dict[str, Any]


@dataclass
class RecordingTelemetry:
    """Keeps metrics and log lines. Accepts only declared metrics, as the real telemetry does."""

    metrics: list[RecordedMetric] = field(default_factory=list)
    lines: list[LogLine] = field(default_factory=list)
    bound: dict[str, Any] = field(default_factory=dict)

    def bind(self, keys: Mapping[str, Any]) -> None:
        self.bound = dict(keys)

    def count(self, name: str, value: float = 1.0, **dimensions: str) -> None:
        check_declared(name, "Count", dimensions)
        self.metrics.append(RecordedMetric(name, value, "Count", dimensions))

    def gauge(self, name: str, value: float, **dimensions: str) -> None:
        check_declared(name, "None", dimensions)
        self.metrics.append(RecordedMetric(name, value, "None", dimensions))

    def seconds(self, name: str, value: float, **dimensions: str) -> None:
        check_declared(name, "Seconds", dimensions)
        self.metrics.append(RecordedMetric(name, value, "Seconds", dimensions))

    def info(self, message: str, **keys: Any) -> None:
        self.lines.append(LogLine("INFO", message, keys))

    def warning(self, message: str, **keys: Any) -> None:
        self.lines.append(LogLine("WARNING", message, keys))

    def error(self, message: str, **keys: Any) -> None:
        self.lines.append(LogLine("ERROR", message, keys))

    def exception(self, message: str, error: BaseException, **keys: Any) -> None:
        self.lines.append(LogLine("ERROR", message, {**keys, "error": type(error).__name__, "detail": str(error)}))

    @property
    def totals(self) -> Counter[str]:
        """Sum of each metric over all dimensions."""
        totals: Counter[str] = Counter()
        for metric in self.metrics:
            totals[metric.name] += metric.value  # type: ignore[assignment]  # sums of floats, compared with ints
        return totals
