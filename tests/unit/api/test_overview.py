"""`GET /v1/overview`: a constant number of reads, a small answer, and old or unknown values marked as such."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import jsonschema
import pytest

from evenkeel.domain.health.incidents import StageTimes, StoredRecoveryPlan
from evenkeel.domain.recovery.holds import Hold, Holds
from evenkeel.domain.recovery.manual_cordons import ManualCordon
from evenkeel.domain.sources import SourceAge
from evenkeel.domain.values import rfc3339
from evenkeel.ports import LARGEST_ROW, Put, Row, RowChange, row_bytes
from evenkeel.services.context import Context
from evenkeel.services.jobs.check_role import Requester
from evenkeel.services.publishing import publish_events
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.fleet import read_overview, read_sources, read_status
from evenkeel.services.recovery import manual_cordons
from evenkeel.services.tables import fleet_rows, incident_rows, job_rows, quota_rows
from tests.fakes.counting import CountedCalls
from tests.fakes.system import A_MOMENT
from tests.fakes.world import a_context
from tests.unit.api.gateway import FLEET, Gateway
from tests.unit.api.seeds import (
    PLAN_AWAITING_APPROVAL,
    a_fleet_node,
    a_job,
    affected,
    ago,
    an_attempt,
    an_incident,
    store,
    store_fleet_counts,
    store_heartbeats,
)
from tests.unit.publishing.test_publish_events import SCHEMA
from tests.unit.scheduling.test_renting import a_rental

Json = dict[str, Any]
ROUTE = "/v1/overview"


def store_fleet(gateway: Gateway, nodes: int, jobs: int, incidents: int, teams: int = 3) -> None:
    store(gateway.fakes.ledger, *(a_fleet_node(number) for number in range(1, nodes + 1)))
    for number in range(1, jobs + 1):
        job = a_job(number % 29, job_id=f"job-{number:010d}", state=("PENDING", "RUNNING")[number % 2])
        store(gateway.fakes.ledger, job.replace(spec=job.spec.replace(team=f"team-{number % teams}")))
    jobs_of = [affected(a_job(number, job_id=f"job-{number:010d}")) for number in range(1, incidents + 1)]
    store(
        gateway.fakes.ledger,
        *(an_incident(number, affected_jobs=jobs) for number, jobs in enumerate(jobs_of, 1)),
        *(an_incident(10_000 + number, state="FAILED", affected_jobs=jobs) for number, jobs in enumerate(jobs_of)),
    )


def count_reads(size: int, read: Callable[[Sequence[SourceAge], Context], Json]) -> tuple[int, int]:
    """Return how many calls and rows one request reads in a fleet of this size."""
    gateway = Gateway()
    store_fleet(gateway, size, size, min(size, 200))
    store_heartbeats(gateway.fakes.ledger)
    store_fleet_counts(gateway.fakes)
    counted_calls = CountedCalls(gateway.fakes)
    context = a_context(gateway.fakes).replace(**counted_calls.ports)
    counted_calls.clear()

    read(read_sources.read_source_ages(context), context)

    return sum(counted_calls.calls.values()), counted_calls.rows_read


def test_overview_reads_as_many_rows_in_a_large_fleet() -> None:
    def read(sources: Sequence[SourceAge], context: Context) -> Json:
        return read_overview.show_overview(sources, Reader.for_requester(Requester(), context.ledger, ()), context)

    small, large = (count_reads(size, read) for size in (60, 1200))

    assert small == large
    assert large[0] <= 23
    assert large[1] <= 5 * read_overview.MAX_SHOWN


def test_status_reads_rows_in_pages_and_nothing_one_by_one() -> None:
    small, large = (count_reads(size, read_status.show_status) for size in (60, 1200))

    # Each row of a node, a job and an open incident is read. One page holds up to 1000 of them.
    assert small == (33, 330)
    assert large == (34, 3500)


def test_overview_of_a_large_fleet_stays_small() -> None:
    gateway = Gateway()
    store_fleet(gateway, 2000, 1000, 100, teams=300)
    counts = store_fleet_counts(gateway.fakes)

    answer = gateway.get(ROUTE)

    assert row_bytes(Row(fleet_rows.overview_key(), counts)) < LARGEST_ROW / 4
    assert len(answer.text) < 100_000
    assert len(answer.document["incidents"]["items"]) == read_overview.MAX_SHOWN
    assert answer.document["incidents"]["isLowerBound"] is True


def test_overview_counts_are_unknown_before_the_first_sweep() -> None:
    document = Gateway().get(ROUTE).document

    assert document["counts"] is None, "unknown is not zero"
    assert "no sweep has counted the fleet yet" in document["reasons"]
    assert document["health"] != "OK"


def test_counts_stored_by_an_older_release_are_unknown() -> None:
    gateway = Gateway()
    counts = store_fleet_counts(gateway.fakes)
    row = gateway.fakes.ledger.get(fleet_rows.overview_key())
    assert row
    counts_of_older_release = {name: value for name, value in counts.items() if name not in ("jobsOnNode", "serving")}
    gateway.fakes.ledger.commit(Put(Row(row.key, counts_of_older_release, row.version)))

    assert gateway.get(ROUTE).document["counts"] is None


@pytest.mark.parametrize(("minutes", "is_stale"), [(1, False), (11, True)])
def test_overview_marks_old_counts_with_their_time(minutes: int, is_stale: bool) -> None:
    gateway = Gateway()
    store_fleet(gateway, 3, 4, 0)
    store_fleet_counts(gateway.fakes, minutes_ago=minutes)

    counts = gateway.get(ROUTE).document["counts"]

    assert (counts["isStale"], counts["at"]) == (is_stale, rfc3339(A_MOMENT - timedelta(minutes=minutes)))


def test_overview_shows_unreadable_charges_after_sweep() -> None:
    gateway = Gateway()
    row = quota_rows.charge_row(an_attempt(a_job(1)))
    gateway.fakes.ledger.commit(Put(replace(row, doc={**row.doc, "accelerators": "of a newer release"})))
    store_fleet_counts(gateway.fakes, minutes_ago=1)

    overview = gateway.get(ROUTE).document

    assert overview["counts"]["unreadableCharges"] == 1
    assert [reason for reason in overview["reasons"] if reason.startswith("1 charge cannot be read")]


def test_overview_shows_unreadable_rental_after_sweep() -> None:
    gateway = Gateway()
    allocation, rental = (quota_rows.rental_allocation_row(a_rental(), 0), job_rows.rental_row(a_rental(), 0))
    unreadable_rental = replace(rental, doc={**rental.doc, "nodes": "of a newer release"})
    gateway.fakes.ledger.commit(Put(allocation), Put(unreadable_rental))
    store_fleet_counts(gateway.fakes, minutes_ago=1)

    overview = gateway.get(ROUTE).document

    assert (overview["counts"]["unreadableRentals"], overview["health"]) == (1, "CRITICAL")
    assert "1 open rental cannot be read: scheduling cycles fail, and rent is a lower bound" in overview["reasons"]


def test_fleet_with_old_counts_is_not_shown_as_healthy() -> None:
    gateway = Gateway()
    store_heartbeats(gateway.fakes.ledger)
    store_fleet_counts(gateway.fakes, minutes_ago=1)
    current = gateway.get(ROUTE).document
    store_fleet_counts(gateway.fakes, minutes_ago=11)

    with_old_counts = gateway.get(ROUTE).document

    assert (current["health"], with_old_counts["health"]) == ("OK", "DEGRADED")
    assert f"nodes and jobs were last counted at {rfc3339(ago(minutes=11))}" in with_old_counts["reasons"]


def test_incidents_that_await_an_answer_come_first_in_the_overview() -> None:
    gateway = Gateway()
    store_heartbeats(gateway.fakes.ledger)
    store_fleet_counts(gateway.fakes)
    plan = StoredRecoveryPlan(
        run=1,
        outcome="ASK",
        repairs_node=True,
        evidence_wait_seconds=60,
        max_repairs=2,
        decision_id="dec-1",
        reason="Replace it.",
    )
    store(gateway.fakes.ledger, an_incident(1), an_incident(2, plan=plan))

    document = gateway.get(ROUTE).document

    awaiting_answer, working = document["incidents"]["items"]
    assert (awaiting_answer["needsYou"], working["needsYou"]) == (True, False)
    assert awaiting_answer["ifUnanswered"].startswith("Without an answer: nothing is done")
    assert (working["ifUnanswered"], working["nodeLane"]["next"]) == (None, "the plan")
    assert working["fault"] == {"key": "xid:79", "name": "GPU has fallen off the bus"}
    incident_counts = document["incidents"]
    assert (incident_counts["open"], incident_counts["working"], incident_counts["needYou"]) == (2, 1, 1)
    assert document["health"] == "CRITICAL"


def test_incident_left_for_a_person_shows_its_outcome() -> None:
    gateway = Gateway()
    store(gateway.fakes.ledger, an_incident(3, state="FAILED", outcome="The node did not come back."))
    store_fleet_counts(gateway.fakes)

    document = gateway.get(ROUTE).document
    (shown_incident,) = document["incidents"]["items"]

    assert (
        shown_incident["incidentId"],
        shown_incident["state"],
        shown_incident["outcome"],
        shown_incident["needsYou"],
    ) == (
        "inc-0000000003",
        "FAILED",
        "The node did not come back.",
        True,
    )
    assert document["next"] == "evenkeel incidents show inc-0000000003"


def test_incident_failed_since_sweep_needs_person_at_once() -> None:
    gateway = Gateway()
    store_heartbeats(gateway.fakes.ledger)
    store_fleet_counts(gateway.fakes, minutes_ago=1)
    settled = StageTimes(settled_at=ago(seconds=20))
    before = StageTimes(settled_at=ago(hours=3))
    store(
        gateway.fakes.ledger,
        an_incident(3, state="FAILED", stages=settled),
        an_incident(4, state="FAILED", stages=before, opened_at=ago(hours=4)),
    )

    document = gateway.get(ROUTE).document

    assert [item["incidentId"] for item in document["incidents"]["items"]] == ["inc-0000000003"]
    assert (document["incidents"]["needYou"], document["health"]) == (1, "CRITICAL")


def test_incident_handled_by_a_person_leaves_the_overview_at_once() -> None:
    gateway = Gateway()
    store(gateway.fakes.ledger, an_incident(3, state="WAITING_FOR_PERSON"))
    store_fleet_counts(gateway.fakes)
    key = incident_rows.incident_key("inc-0000000003")
    row = gateway.fakes.ledger.get(key)
    assert row
    handled = an_incident(3, state="RECOVERED")
    gateway.fakes.ledger.commit(Put(incident_rows.incident_row(handled, row.version)))

    assert gateway.get(ROUTE).document["incidents"]["items"] == []


def test_jobs_of_an_incident_show_their_progress() -> None:
    gateway = Gateway()
    jobs = [a_job(number, state="RUNNING", current_attempt=2) for number in (1, 2, 3)]
    interrupted = tuple(affected(job)[0] for job in jobs)
    store(gateway.fakes.ledger, *jobs, an_incident(1, affected_jobs=interrupted))

    (item,) = gateway.get(ROUTE).document["incidents"]["items"]

    assert [lane["phase"] for lane in item["jobLanes"]] == ["running again", "running again"]
    assert item["affectedJobs"] == 3


def test_jobs_of_an_incident_awaiting_approval_appear_after_a_sweep() -> None:
    gateway = Gateway()
    job = a_job(1, state="RUNNING", current_attempt=1)
    store(gateway.fakes.ledger, job, an_attempt(job, 1), an_incident(1, plan=PLAN_AWAITING_APPROVAL))
    (before,) = gateway.get(ROUTE).document["incidents"]["items"]
    store_fleet_counts(gateway.fakes)

    (after,) = gateway.get(ROUTE).document["incidents"]["items"]

    assert before["jobLanes"] is None, "unknown is not none"
    assert [lane["phase"] for lane in after["jobLanes"]] == ["runs on the unhealthy node"]


def test_overview_shows_a_manual_cordon_at_once() -> None:
    gateway = Gateway()
    store_fleet_counts(gateway.fakes)
    life = a_fleet_node(1).life
    manual_cordons.record_cordon(
        gateway.fakes.ledger, ManualCordon(life_key=life.key, by="ana", reason="fan", at=A_MOMENT)
    )

    assert gateway.get(ROUTE).document["cordons"] == [
        {"instanceId": life.instance_id, "by": "ana", "reason": "fan", "at": rfc3339(A_MOMENT)}
    ]


def test_overview_etag_does_not_change_with_the_ages_of_sources() -> None:
    gateway = Gateway()
    store_heartbeats(gateway.fakes.ledger)
    first = gateway.get(ROUTE)
    gateway.fakes.clock.advance(5)

    repeated_answer = gateway.call("GET", ROUTE, headers={"If-None-Match": first.headers["ETag"]})

    assert {age["state"] for age in first.document["sourceAges"]} == {"CURRENT"}
    assert repeated_answer.status == 304


def test_overview_shows_rent_beside_its_cap() -> None:
    gateway = Gateway()
    store_fleet_counts(gateway.fakes)

    rent = gateway.get(ROUTE).document["counts"]["rent"]

    assert rent == {"nodes": 0, "usdPerHour": 0, "capUsdPerHour": 0}


def test_recorded_event_updates_the_change_time_of_the_overview() -> None:
    gateway = Gateway()
    before = gateway.get(ROUTE).document["changedAt"]
    change = RowChange(None, job_rows.job_row(a_job(1), 1), A_MOMENT)
    publish_events.run(change, a_context(gateway.fakes))

    assert (before, gateway.get(ROUTE).document["changedAt"]) == (None, rfc3339(A_MOMENT))


def test_overview_lists_priority_classes_by_priority() -> None:
    gateway = Gateway()
    classes = {"low": 100, "high": 900, "medium": 500}
    quotas = {"quotas": {"priorityClasses": classes}, "reason": "The classes of the site."}
    gateway.call("PUT", f"/v1/clusters/{FLEET}/quotas", quotas, headers={"If-None-Match": "*"})
    for number, name in enumerate(["", "low", "medium", "high"], 1):
        job = a_job(number)
        store(gateway.fakes.ledger, job.replace(spec=job.spec.replace(priority_class=name)))

    listed_classes = store_fleet_counts(gateway.fakes)["jobs"]["classes"]

    assert [job_class["priorityClass"] for job_class in listed_classes] == ["high", "medium", "low", None]


def test_overview_shows_a_hold_immediately() -> None:
    gateway = Gateway()
    hold = Hold(by="ana", reason="storm", since=ago(minutes=1), until=ago(minutes=-30))
    gateway.fakes.ledger.commit(Put(Row(fleet_rows.hold_key(), Holds(holds=(hold,)).to_json())))

    assert gateway.get(ROUTE).document["automation"]["isHeld"] is True


def test_unchanged_overview_is_answered_304_without_a_body() -> None:
    gateway = Gateway()
    store_fleet(gateway, 3, 4, 1)
    store_fleet_counts(gateway.fakes)
    tag = gateway.get(ROUTE).headers["ETag"]

    second_answer = gateway.call("GET", ROUTE, headers={"If-None-Match": tag})
    store(gateway.fakes.ledger, an_incident(7))
    changed = gateway.call("GET", ROUTE, headers={"If-None-Match": tag})

    assert (second_answer.status, changed.status) == (304, 200)


def test_overview_shows_the_p90_wait_of_each_team() -> None:
    gateway = Gateway()
    for number in range(1, 11):
        job = a_job(1, job_id=f"job-{number:010d}", submitted_at=ago(minutes=10 * number))
        store(gateway.fakes.ledger, job.replace(spec=job.spec.replace(team="nlp")))
    started = a_job(1, job_id="job-0000000099", submitted_at=ago(hours=9), started_at=ago(hours=8))
    store(gateway.fakes.ledger, started.replace(spec=started.spec.replace(team="vision")))

    waits = {team["team"]: team["p90WaitSeconds"] for team in store_fleet_counts(gateway.fakes)["teams"]}

    assert waits == {"nlp": 90 * 60, "vision": 3600}


def test_node_and_job_lists_show_counts_of_the_last_sweep() -> None:
    gateway = Gateway()
    store_fleet(gateway, 4, 6, 1)
    before = (gateway.get("/v1/nodes").document["counts"], gateway.get("/v1/jobs").document["counts"])
    store_fleet_counts(gateway.fakes, minutes_ago=1)

    nodes, jobs = gateway.get("/v1/nodes?pageSize=1").document, gateway.get("/v1/jobs?pageSize=1").document

    at = rfc3339(A_MOMENT - timedelta(minutes=1))
    assert before == (None, None), "unknown is not zero"
    assert nodes["counts"] == {"at": at, "byState": {"IN_SERVICE": 3, "REPAIRING": 1}, "isLowerBound": False}
    assert (jobs["counts"]["at"], jobs["counts"]["byState"]["PENDING"]) == (at, 3)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=REPAIRING", [1]),
        ("state=IN_SERVICE,REPAIRING", [4, 3, 1]),
        ("state=GONE", [2]),
        ("pool=other", []),
        ("pool=p5-workers&pageSize=2", [4, 3]),
    ],
)
def test_nodes_are_filtered_by_state_and_pool(query: str, expected: list[int]) -> None:
    gateway = Gateway()
    store_fleet(gateway, 4, 0, 1)
    row = gateway.fakes.ledger.get(fleet_rows.node_key(a_fleet_node(2).life.cluster, a_fleet_node(2).life.instance_id))
    assert row
    gateway.fakes.ledger.commit(Put(Row(row.key, a_fleet_node(2, is_gone=True).to_json(), row.version, row.state)))

    items = gateway.get(f"/v1/nodes?{query}").document["items"]

    assert [item["instanceId"] for item in items] == [a_fleet_node(number).life.instance_id for number in expected]


def test_unknown_state_of_a_node_is_refused() -> None:
    assert Gateway().get("/v1/nodes?state=BROKEN").status == 400


def test_class_table_counts_jobs_without_a_priority_class() -> None:
    gateway = Gateway()
    store(
        gateway.fakes.ledger,
        a_job(1, state="RUNNING", submitted_at=ago(hours=3), started_at=ago(hours=2)),
        a_job(2, submitted_at=ago(minutes=20)),
        a_job(3, submitted_at=ago(minutes=40)),
        a_job(4, submitted_at=ago(hours=1), is_preempted=True, started_at=ago(minutes=50)),
    )

    (unset,) = store_fleet_counts(gateway.fakes)["jobs"]["classes"]

    assert unset == {
        "priorityClass": None,
        "running": 1,
        "pending": 2,
        "preempted": 1,
        "suspended": 0,
        "averageRunSeconds": 7200,
        "longestRunSeconds": 7200,
        "averageWaitSeconds": 1800,
        "longestWaitSeconds": 2400,
    }


# ---------------------------------------------------------------- budgets


def published_budget_events(used: float, *, period: str = "2026-11", limit: float = 1000) -> Row:
    entry = {"team": "nlp", "period": period, "quantity": "gpuHours", "used": used, "limit": limit}
    return Row(fleet_rows.overview_key(), {"budgets": [entry]}, 7)


THRESHOLD_CROSSINGS = [
    (500, 790, None),
    (790, 800, 80),
    (800, 990, None),
    (990, 1003, 100),
    (100, 1200, 100),
    (1003, 1100, None),
]


@pytest.mark.parametrize(("before", "after", "threshold"), THRESHOLD_CROSSINGS)
def test_budget_event_is_published_when_use_crosses_a_threshold(
    before: float, after: float, threshold: int | None
) -> None:
    events = publish_events.derive(
        RowChange(published_budget_events(before), published_budget_events(after), A_MOMENT), "research"
    )

    assert [event.data["thresholdPercent"] for event in events] == ([threshold] if threshold else [])


def test_budget_event_has_one_id_for_each_budget_period() -> None:
    def event_ids(change: RowChange) -> list[str]:
        return [event.event_id for event in publish_events.derive(change, "research")]

    first = event_ids(RowChange(published_budget_events(790), published_budget_events(810), A_MOMENT))
    later_ids = event_ids(
        RowChange(published_budget_events(795), published_budget_events(805), A_MOMENT + timedelta(hours=1))
    )
    next_period_ids = event_ids(
        RowChange(published_budget_events(900), published_budget_events(850, period="2026-12"), A_MOMENT)
    )

    assert first == later_ids
    assert len({*first, *next_period_ids}) == 2


def test_budget_event_follows_the_schema() -> None:
    fakes = Gateway().fakes
    publish_events.run(
        RowChange(published_budget_events(790), published_budget_events(810), A_MOMENT), a_context(fakes)
    )
    (event,) = fakes.event_bus.events

    jsonschema.validate({"source": event.source, "detail-type": event.detail_type, "detail": event.detail}, SCHEMA)
    assert len(fakes.chat.messages) == 1, "a team lead learns of it in the channel"
