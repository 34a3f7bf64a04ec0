"""Lists leave out a row that this release cannot read, and show all other rows."""

import pytest

from evenkeel.ports import Key, Put, Row
from evenkeel.services.tables import fleet_rows, incident_rows, job_rows
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import (
    PLAN_AWAITING_APPROVAL,
    a_fleet_node,
    a_job,
    an_attempt,
    an_incident,
    make_unreadable,
    store,
    store_heartbeats,
)


@pytest.mark.parametrize(
    ("path", "item_id", "key", "field", "shown"),
    [
        ("jobs", "jobId", job_rows.job_key("job-0000000001"), "priority", "job-0000000002"),
        ("jobs?sort=name", "jobId", job_rows.job_key("job-0000000001"), "priority", "job-0000000002"),
        ("jobs?state=PENDING", "jobId", job_rows.job_key("job-0000000001"), "priority", "job-0000000002"),
        ("nodes", "instanceId", fleet_rows.node_key(CLUSTER, instance_id(1)), "isReady", instance_id(2)),
        ("nodes?sort=pool", "instanceId", fleet_rows.node_key(CLUSTER, instance_id(1)), "isReady", instance_id(2)),
        ("incidents", "incidentId", incident_rows.incident_key("inc-0000000001"), "severity", "inc-0000000002"),
    ],
)
def test_list_shows_rows_beside_unreadable_one(
    path: str, item_id: str, key: Key, field: str, shown: str, gateway: Gateway
) -> None:
    store_heartbeats(gateway.fakes.ledger)
    for number in (1, 2):
        store(gateway.fakes.ledger, a_job(number, state="PENDING"), a_fleet_node(number), an_incident(number))
    make_unreadable(gateway.fakes.ledger, key, field)

    answer = gateway.get(f"/v1/{path}")

    assert (answer.status, [item[item_id] for item in answer.document["items"]]) == (200, [shown])


def test_job_shows_attempts_beside_unreadable_records(gateway: Gateway) -> None:
    job = a_job(1, state="RUNNING", current_attempt=2)
    store(gateway.fakes.ledger, job, an_attempt(job), an_attempt(job, attempt=2))
    make_unreadable(gateway.fakes.ledger, job_rows.attempt_key(job.job_id, 1), "accelerators")
    gateway.fakes.ledger.commit(Put(Row(job_rows.rental_key(job.job_id, 1), {"state": "of a newer release"})))

    document = gateway.get(f"/v1/jobs/{job.job_id}").document

    assert ([attempt["attempt"] for attempt in document["attempts"]], document["unreadableRecords"]) == ([2], 2)


def test_incident_shows_jobs_beside_unreadable_attempt(gateway: Gateway) -> None:
    jobs = [a_job(number, state="RUNNING") for number in (1, 2)]
    incident = an_incident(1, state="OPEN", plan=PLAN_AWAITING_APPROVAL)
    store(gateway.fakes.ledger, incident, *jobs, *(an_attempt(job) for job in jobs))
    make_unreadable(gateway.fakes.ledger, job_rows.attempt_key(jobs[0].job_id, 1), "accelerators")

    document = gateway.get(f"/v1/incidents/{incident.incident_id}").document

    assert [lane["jobId"] for lane in document["jobLanes"]] == [jobs[1].job_id]
