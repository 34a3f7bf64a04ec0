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

    def record(self, path: str, seconds: float, kind: str = "node", text: str = "an entry") -> None:
        at = (FAULT + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
        self.entries[path].append({"at": at, "kind": kind, "text": text})

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


def test_entry_behind_a_printed_one_has_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    timelines = FakeTimelines()
    printer = TimelinePrinter(DemoOutput(), timelines)  # type: ignore[arg-type]  # only `get` is used
    printer.injected_at = FAULT

    for path, seconds in (("/jobs/1/timeline", 6.0), ("/incidents/1/timeline", 5.5), ("/jobs/1/timeline", 7.0)):
        timelines.record(path, seconds)
        printer.print_new(*timelines.entries, until=FAULT + timedelta(minutes=1))

    lines = capsys.readouterr().out.splitlines()
    assert re.findall(r"\+(\d+\.\d+)s", "".join(lines)) == ["6.00", "7.00"]
    assert len({line.index("◆") for line in lines}) == 1


def test_only_final_receipt_is_printed_and_without_time(capsys: pytest.CaptureFixture[str]) -> None:
    """A receipt gets new figures when a later stage is recorded, long after its time."""
    timelines = FakeTimelines()
    printer = TimelinePrinter(DemoOutput(), timelines)  # type: ignore[arg-type]  # only `get` is used
    printer.injected_at = FAULT

    timelines.record("/jobs/1/timeline", 2.4, "receipt", "Attempt 1 lost 3 s.")
    timelines.record("/incidents/1/timeline", 13.4)
    printer.print_new(*timelines.entries, until=FAULT + timedelta(minutes=1))
    timelines.entries["/jobs/1/timeline"].clear()
    timelines.record("/jobs/1/timeline", 3.5, "receipt", "Attempt 1 lost 4 s.")
    printer.print_new(*timelines.entries, until=FAULT + timedelta(minutes=1))
    printer.print_receipts(*timelines.entries)

    printed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in printed] == [
        ["+13.40s", "node", "◆", "node", "an", "entry"],
        ["●", "Attempt", "1", "lost", "4", "s."],
    ]
