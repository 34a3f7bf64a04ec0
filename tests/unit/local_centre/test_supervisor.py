"""A dead part of the local data centre is restarted, after growing pauses and only a limited number of times."""

import threading
from dataclasses import dataclass, field

import pytest

from evenkeel_local.supervisor import (
    MAX_DEATHS,
    PROBE_SECONDS,
    WINDOW_SECONDS,
    Backoff,
    HangDetector,
    PartRestart,
    RestartLimitReached,
    Supervisor,
)


class StopsAfterWaits(threading.Event):
    """An event whose `wait` returns at once. It is set after a number of waits."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._after = after

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return len(self.waits) > self._after


@dataclass
class FakePart:
    """A part that is running or dead according to a list of states."""

    name: str
    states: list[bool]
    failures: int = 0
    silent: list[bool] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)

    def is_running(self) -> bool:
        return self.states.pop(0) if self.states else True

    def is_silent(self) -> bool:
        return self.silent.pop(0) if self.silent else False

    def restart(self) -> tuple[str, str]:
        self.restarts.append(self.name)
        if len(self.restarts) <= self.failures:
            raise OSError("the port is in use")
        return "its state.", "its processes."


def restarted_parts(*parts: FakePart, waits: int = 20) -> tuple[Supervisor, list[str], list[list[PartRestart]]]:
    messages: list[str] = []
    published: list[list[PartRestart]] = []
    supervisor = Supervisor(
        lambda: parts,
        say=messages.append,
        restarted=lambda restarts: published.append(list(restarts)),
        clock=lambda: 0.0,
    )
    supervisor.run(StopsAfterWaits(waits))
    return supervisor, messages, published


def test_dead_process_restarts_and_its_loss_is_reported() -> None:
    part = FakePart("GPU cluster", [True, False])

    supervisor, messages, published = restarted_parts(FakePart("engine", []), part)

    assert part.restarts == ["GPU cluster"]
    assert messages == [
        "GPU cluster died: restarting it in 1 s",
        "GPU cluster runs again. Kept: its state. Lost: its processes.",
    ]
    assert [(part_restart.part, part_restart.lost) for part_restart in published[-1]] == [
        ("GPU cluster", "its processes.")
    ]
    assert supervisor.restarts == published[-1]


def test_process_that_answers_no_probe_restarts() -> None:
    part = FakePart("GPU cluster", [], silent=[False, True])

    _, messages, published = restarted_parts(FakePart("engine", []), part)

    assert messages[0] == "GPU cluster has not answered for 30 s: restarting it in 1 s"
    assert [part_restart.part for part_restart in published[-1]] == ["GPU cluster"]


class Probe:
    """A probe with prepared answers and failures, and a clock."""

    def __init__(self) -> None:
        self.now, self.is_answering, self.calls = 0.0, True, 0

    def __call__(self) -> None:
        self.calls += 1
        if not self.is_answering:
            raise TimeoutError

    def is_silent_after(self, silence: HangDetector, seconds: float) -> bool:
        self.now += seconds
        return silence.is_silent()


def test_process_counts_as_silent_only_after_several_failed_probes() -> None:
    probe = Probe()
    silence = HangDetector(probe, clock=lambda: probe.now)
    assert not probe.is_silent_after(silence, 0)

    probe.is_answering = False
    assert [probe.is_silent_after(silence, PROBE_SECONDS) for _ in range(7)] == [False] * 6 + [True]


def test_one_successful_probe_resets_the_failed_probes() -> None:
    probe = Probe()
    silence = HangDetector(probe, clock=lambda: probe.now)
    probe.is_answering = False
    assert not any(probe.is_silent_after(silence, PROBE_SECONDS) for _ in range(6))

    probe.is_answering = True
    assert not probe.is_silent_after(silence, PROBE_SECONDS)
    probe.is_answering = False
    assert not any(probe.is_silent_after(silence, PROBE_SECONDS) for _ in range(6))


def test_process_is_not_probed_more_often_than_needed() -> None:
    probe = Probe()
    silence = HangDetector(probe, clock=lambda: probe.now)

    for _ in range(40):
        probe.is_silent_after(silence, PROBE_SECONDS / 20)

    assert probe.calls == 2


def test_no_process_restarts_while_all_processes_run() -> None:
    part = FakePart("engine", [])

    _, messages, _ = restarted_parts(part)

    assert (part.restarts, messages) == ([], [])


def test_failed_start_is_retried_after_a_longer_pause() -> None:
    part = FakePart("engine", [False], failures=2)

    _, messages, _ = restarted_parts(part)

    assert part.restarts == ["engine"] * 3
    assert [line.rpartition("in ")[2] for line in messages[:3]] == ["1 s", "2 s", "4 s"]
    assert "the port is in use" in messages[1]


def test_process_that_keeps_failing_is_not_restarted_again() -> None:
    part = FakePart("engine", [False] * 100)

    with pytest.raises(RestartLimitReached, match="engine died: it died more than 5 times"):
        restarted_parts(part, waits=100)

    assert len(part.restarts) == MAX_DEATHS


def test_supervisor_can_stop_during_a_restart_pause() -> None:
    part = FakePart("engine", [False])

    restarted_parts(part, waits=1)

    assert part.restarts == []


def test_restart_pauses_grow_to_a_limit_and_later_reset() -> None:
    backoff = Backoff()

    assert [backoff.record_death("engine", now) for now in (0, 1, 2, 3, 4, 5)] == [1, 2, 4, 8, 16, None]
    assert backoff.record_death("GPU cluster", 5) == 1
    assert backoff.record_death("engine", 5 + WINDOW_SECONDS) == 1
