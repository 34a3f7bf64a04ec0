"""Changes by people in the audit: which of them are published, and the author in the event."""

import pytest

from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import RowChange
from evenkeel.services.publishing.publish_events import derive
from evenkeel.services.tables import fleet_rows, quota_rows
from tests.fakes.system import A_MOMENT


def an_audit_entry(kind: str) -> TimelineEntry:
    return TimelineEntry(at=A_MOMENT, kind=kind, text="role/Op (ana) did it.", writer="role/Op (ana)")


@pytest.mark.parametrize(
    ("kind", "published"),
    [("held", 1), ("released", 1), ("acknowledged", 0), ("approved", 0), ("declined", 0)],
)
def test_only_holds_and_releases_are_published_as_automation_changes(kind: str, published: int) -> None:
    change = RowChange(None, fleet_rows.automation_event_row(an_audit_entry(kind), "request"), A_MOMENT)

    assert len(derive(change, "laptop")) == published


def test_published_change_of_quotas_names_its_author() -> None:
    change = RowChange(None, quota_rows.setup_event_row(an_audit_entry("setup"), 1), A_MOMENT)

    (event,) = derive(change, "laptop")

    assert event.by == "role/Op (ana)"
