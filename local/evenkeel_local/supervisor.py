"""Supervise a data centre: restart a part that dies or stops answering, with growing pauses, up to a limit.

The GPU cluster saves its state each second, so it restarts with its objects and machines, as after a power cut. The
engine keeps its tables in memory. If it dies, jobs, incidents and decisions are lost, and the data centre is rebuilt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
MAX_DEATHS: Final = 5
"""Deaths within the window; one more ends the data centre."""
WINDOW_SECONDS: Final = 600.0
PROBE_SECONDS: Final = 5.0
"""Time between two probes of a running part."""
SILENT_SECONDS: Final = 30.0
"""A part whose probes fail for this long counts as dead. The time is long, because a restart ends its processes."""
_POLL_SECONDS: Final = 0.25

Say = Callable[[str], None]


class RestartLimitReached(Exception):
    """Raised if a part died too often. The message names the part and its log."""


@dataclass(frozen=True)
class PartRestart:
    """A restart of a part."""

    part: str
    at: str
    """Time of the restart, RFC 3339."""
    kept: str
    lost: str


@dataclass
class HangDetector:
    """Detects a running part that no longer answers, such as a hung process."""

    probe: Callable[[], None]
    """Returns if the part answers, raises otherwise."""
    clock: Callable[[], float] = time.monotonic
    _probed_at: float | None = None
    _failing_since: float | None = None

    def is_silent(self) -> bool:
        """Return whether every probe has failed for `SILENT_SECONDS`; probe at most every `PROBE_SECONDS`."""
        now = self.clock()
        if self._probed_at is None or now - self._probed_at >= PROBE_SECONDS:
            try:
                self.probe()
                self._failing_since = None
            except Exception:  # noqa: BLE001 - after any error, the part has not answered
                self._failing_since = now if self._failing_since is None else self._failing_since
            self._probed_at = self.clock()
        return self._failing_since is not None and self._probed_at - self._failing_since >= SILENT_SECONDS


@dataclass
class Backoff:
    """The pause before a restart, by the number of recent deaths. Pure: the caller passes the time."""

    deaths: dict[str, list[float]] = field(default_factory=dict)

    def record_death(self, part: str, now: float) -> float | None:
        """Count a death; return the pause in seconds, or None if the part has died too often."""
        recent = [*(at for at in self.deaths.get(part, []) if now - at < WINDOW_SECONDS), now]
        self.deaths[part] = recent
        if len(recent) > MAX_DEATHS:
            return None
        return float(min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (len(recent) - 1)))


class SupervisedPart(Protocol):
    """A part of a data centre."""

    @property
    def name(self) -> str: ...

    def is_running(self) -> bool: ...

    def is_silent(self) -> bool:
        """Whether it runs but has not answered for `SILENT_SECONDS`."""
        ...

    def restart(self) -> tuple[str, str]:
        """Restart the part. Return a sentence about the kept state, and a sentence about the lost state."""
        ...


class Supervisor:
    """Checks the parts until it is stopped, and restarts dead parts."""

    def __init__(
        self,
        parts: Callable[[], tuple[SupervisedPart, ...]],
        *,
        say: Say,
        restarted: Callable[[list[PartRestart]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to supervise.

        Args:
            parts: Returns the current parts, in the order of the checks.
            say: Receives progress messages.
            restarted: Receives all restarts so far, after each restart.
            clock: A monotonic clock, in seconds.
        """
        self._parts = parts
        self._say = say
        self._restarted = restarted
        self._clock = clock
        self._backoff = Backoff()
        self.restarts: list[PartRestart] = []

    def run(self, stopping: threading.Event) -> None:
        """Supervise until `stopping` is set.

        Raises:
            RestartLimitReached: a part died too often.
        """
        while not stopping.wait(_POLL_SECONDS):
            for process_part in self._parts():
                why = _failure_text(process_part)
                if not why:
                    continue
                if not self._restart_part(process_part, why, stopping):
                    return
                break  # other parts may depend on this part: check all parts again

    def _restart_part(self, part: SupervisedPart, why: str, stopping: threading.Event) -> bool:
        """Try to restart a part until it runs or the restart limit is reached. Return False after a stop request."""
        while True:
            pause = self._backoff.record_death(part.name, self._clock())
            if pause is None:
                raise RestartLimitReached(
                    f"{why}: it died more than {MAX_DEATHS} times in {WINDOW_SECONDS / 60:.0f} minutes"
                )
            self._say(f"{why}: restarting it in {pause:.0f} s")
            if stopping.wait(pause):
                return False
            try:
                preserved_text, lost_text = part.restart()
            except Exception as error:  # noqa: BLE001 - the next start may succeed, whatever the error
                why = f"{part.name} did not start ({error})"
                continue
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self.restarts.append(PartRestart(part.name, now, preserved_text, lost_text))
            self._say(f"{part.name} runs again. Kept: {preserved_text} Lost: {lost_text}")
            self._restarted(self.restarts)
            return True


def _failure_text(part: SupervisedPart) -> str:
    """Return why a part must restart; empty if it works."""
    if not part.is_running():
        return f"{part.name} died"
    return f"{part.name} has not answered for {SILENT_SECONDS:.0f} s" if part.is_silent() else ""
