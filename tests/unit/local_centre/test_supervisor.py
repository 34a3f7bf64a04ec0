"""What dies is started again, with growing pauses, and not for ever."""

import threading
from dataclasses import dataclass, field

import pytest

from evenkeel_local.supervisor import MOST_DEATHS, WINDOW_SECONDS, Backoff, GivenUp, Restart, Supervisor


class Stopping(threading.Event):
    """An event that never waits in fact, and says that it is over after some waits."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._after = after

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return len(self.waits) > self._after


@dataclass
class FakePart:
    """A part that dies as often as its list of states says."""

    name: str
    states: list[bool]
    failures: int = 0
    restarts: list[str] = field(default_factory=list)

    def is_running(self) -> bool:
        return self.states.pop(0) if self.states else True

    def restart(self) -> tuple[str, str]:
        self.restarts.append(self.name)
        if len(self.restarts) <= self.failures:
            raise OSError("the port is in use")
        return "its state.", "its processes."


def supervised(*parts: FakePart, waits: int = 20) -> tuple[Supervisor, list[str], list[list[Restart]]]:
    said: list[str] = []
    published: list[list[Restart]] = []
    supervisor = Supervisor(
        lambda: parts, say=said.append, restarted=lambda restarts: published.append(list(restarts)), clock=lambda: 0.0
    )
    supervisor.run(Stopping(waits))
    return supervisor, said, published


def test_dead_part_is_started_again_and_its_loss_is_said() -> None:
    part = FakePart("GPU cluster", [True, False])

    supervisor, said, published = supervised(FakePart("engine", []), part)

    assert part.restarts == ["GPU cluster"]
    assert said == [
        "GPU cluster died: it is started again in 1 s",
        "GPU cluster runs again. Kept: its state. Lost: its processes.",
    ]
    assert [(one.part, one.lost) for one in published[-1]] == [("GPU cluster", "its processes.")]
    assert supervisor.restarts == published[-1]


def test_nothing_is_started_again_while_all_runs() -> None:
    part = FakePart("engine", [])

    _, said, _ = supervised(part)

    assert (part.restarts, said) == ([], [])


def test_start_that_fails_is_tried_again_after_a_longer_pause() -> None:
    part = FakePart("engine", [False], failures=2)

    _, said, _ = supervised(part)

    assert part.restarts == ["engine"] * 3
    assert [line.rpartition("in ")[2] for line in said[:3]] == ["1 s", "2 s", "4 s"]
    assert "the port is in use" in said[1]


def test_part_that_keeps_dying_is_given_up() -> None:
    part = FakePart("engine", [False] * 100)

    with pytest.raises(GivenUp, match="engine died: it died more than 5 times"):
        supervised(part, waits=100)

    assert len(part.restarts) == MOST_DEATHS


def test_supervision_ends_during_a_pause() -> None:
    part = FakePart("engine", [False])

    supervised(part, waits=1)

    assert part.restarts == []


def test_pauses_grow_to_a_limit_and_old_deaths_are_forgotten() -> None:
    backoff = Backoff()

    assert [backoff.died("engine", now) for now in (0, 1, 2, 3, 4, 5)] == [1, 2, 4, 8, 16, None]
    assert backoff.died("GPU cluster", 5) == 1
    assert backoff.died("engine", 5 + WINDOW_SECONDS) == 1
