"""Lists by state while an entity changes its state between two reads."""

from collections.abc import Sequence
from typing import Any

import pytest

from evenkeel.domain.health.incidents import LIST_ORDER as INCIDENT_ORDER
from evenkeel.domain.health.incidents import IncidentState, StageTimes
from evenkeel.domain.jobs.job import LIST_ORDER as JOB_ORDER
from evenkeel.domain.jobs.job import JobState
from evenkeel.ports import Put, Row
from evenkeel.services.tables import incident_rows, job_rows
from tests.fakes.ledger import InMemoryLedger
from tests.fakes.system import A_MOMENT
from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import a_job, an_incident, store, store_fleet_counts, store_heartbeats

INCIDENT_CHANGES = (
    (IncidentState.OPEN, IncidentState.RECOVERING),
    (IncidentState.RECOVERING, IncidentState.BLOCKED),
    (IncidentState.BLOCKED, IncidentState.RECOVERING),
    (IncidentState.RECOVERING, IncidentState.OPEN),
)
JOB_CHANGES = (
    (JobState.PENDING, JobState.STARTING),
    (JobState.STARTING, JobState.RUNNING),
    (JobState.RUNNING, JobState.PENDING),
    (JobState.RUNNING, JobState.SUSPENDED),
    (JobState.SUSPENDED, JobState.PENDING),
    (JobState.RUNNING, JobState.STOPPING),
    (JobState.STOPPING, JobState.CANCELLED),
)


def change_before_list_read(ledger: InMemoryLedger, monkeypatch: pytest.MonkeyPatch, number: int, changed: Row) -> None:
    """Change a row just before the list read with this number."""
    reads = iter(range(1_000))
    read_by_state = ledger.by_state

    def by_state(*arguments: Any, **options: Any) -> Any:
        if next(reads) == number:
            ledger.commit(Put(changed))
        return read_by_state(*arguments, **options)

    monkeypatch.setattr(ledger, "by_state", by_state)


@pytest.mark.parametrize("number", range(len(INCIDENT_ORDER)))
@pytest.mark.parametrize(("before", "after"), INCIDENT_CHANGES)
@pytest.mark.parametrize("path", ["/v1/incidents", "/v1/status", "/v1/overview"])
def test_incident_that_changes_state_between_pages_is_listed_once(
    gateway: Gateway,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    before: IncidentState,
    after: IncidentState,
    number: int,
) -> None:
    store_heartbeats(gateway.fakes.ledger)
    store(gateway.fakes.ledger, an_incident(1, state=before))
    change_before_list_read(
        gateway.fakes.ledger, monkeypatch, number, incident_rows.incident_row(an_incident(1, state=after), 1)
    )

    answer = gateway.get(path).document

    items: Sequence[Any] = answer["items"] if path == "/v1/incidents" else answer["incidents"]["items"]
    assert [incident["incidentId"] for incident in items] == ["inc-0000000001"]


@pytest.mark.parametrize("number", range(12))
def test_incident_that_fails_during_the_overview_is_listed_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store_heartbeats(gateway.fakes.ledger)
    store_fleet_counts(gateway.fakes, minutes_ago=1)
    store(gateway.fakes.ledger, an_incident(1, state="RECOVERING"))
    failed_incident = an_incident(1, state="FAILED", stages=StageTimes(settled_at=A_MOMENT))
    change_before_list_read(gateway.fakes.ledger, monkeypatch, number, incident_rows.incident_row(failed_incident, 1))

    incidents = gateway.get("/v1/overview").document["incidents"]

    assert [incident["incidentId"] for incident in incidents["items"]] == ["inc-0000000001"]
    assert incidents["working"] + incidents["needYou"] == 1


@pytest.mark.parametrize("number", range(len(JOB_ORDER)))
@pytest.mark.parametrize(("before", "after"), JOB_CHANGES)
def test_job_that_changes_state_between_pages_is_listed_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, before: JobState, after: JobState, number: int
) -> None:
    store(gateway.fakes.ledger, a_job(1, state=before))
    change_before_list_read(gateway.fakes.ledger, monkeypatch, number, job_rows.job_row(a_job(1, state=after), 1))

    items = gateway.get("/v1/jobs").document["items"]

    assert [job["jobId"] for job in items] == ["job-0000000001"]
