"""The demo prints the timelines of a job and an incident in order of time, although some entries are recorded late."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evenkeel_local.demo import DemoOutput, TimelinePrinter

FAULT = datetime(2026, 11, 3, 10, 0, tzinfo=UTC)


class FakeTimelines:
    """The API's timelines, by path."""

    def __init__(self) -> None:
        self.entries: dict[str, list[dict[str, Any]]] = {"/jobs/1/timeline": [], "/incidents/1/timeline": []}

    def record(self, path: str, seconds: float) -> None:
        at = (FAULT + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
        self.entries[path].append({"at": at, "kind": "node", "text": "an entry"})

    def get(self, path: str) -> dict[str, Any]:
        return {"entries": self.entries[path]}


def test_late_entry_is_printed_in_order_of_time(capsys: pytest.CaptureFixture[str]) -> None:
    timelines = FakeTimelines()
    printer = TimelinePrinter(DemoOutput(), timelines)  # type: ignore[arg-type]  # only `get` is used
    printer.injected_at = FAULT

    for path, seconds, now in (("/jobs/1/timeline", 2.0, 2.1), ("/incidents/1/timeline", 0.75, 2.6)):
        timelines.record(path, seconds)
        printer.print_new(*timelines.entries, until=FAULT + timedelta(seconds=now - 2.5))
    printer.print_new(*timelines.entries, until=FAULT + timedelta(minutes=1))

    assert re.findall(r"\+(\d+\.\d+)s", capsys.readouterr().out) == ["0.75", "2.00"]
