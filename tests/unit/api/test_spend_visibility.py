"""Every route shows the spending of a team only to its members and to operators."""

from typing import Any

import pytest

from evenkeel.ports import Add, Put, Row, RowChange
from evenkeel.services.publishing import publish_events
from evenkeel.services.queries.fleet import read_overview
from evenkeel.services.tables import fleet_rows, job_rows, quota_rows
from tests.fakes.world import a_context
from tests.unit.api.gateway import ACCOUNT, FLEET, Gateway
from tests.unit.api.seeds import a_fleet_node, a_job, ago, an_attempt, store, store_heartbeats
from tests.unit.api.test_tenant_isolation import role_arn, session_arn
from tests.unit.costs.test_rent import a_rental

TEAMS = ("nlp", "vision")
CALLERS = {
    "viewer of nlp": (session_arn("NlpGuest"), {"nlp"}),
    "lead of vision": (session_arn("VisionLead"), {"vision"}),
    "member of every team": (session_arn("Everywhere"), {"nlp", "vision"}),
    "member of no team": (session_arn("Stranger"), set[str]()),
    "operator": (session_arn("Operator"), {"nlp", "vision", "gone"}),
    "operator's role in another account": ("arn:aws:sts::999988887777:assumed-role/Operator/ana", set[str]()),
}


@pytest.fixture
def site() -> Gateway:
    """Two teams with budgets, and a team that was removed. Each held GPUs and rented nodes."""
    gateway = Gateway(environment={"OPERATOR_PRINCIPALS": role_arn("Operator")})
    new, ledger = {"If-None-Match": "*"}, gateway.fakes.ledger
    quotas = {"members": [{"principal": role_arn("Everywhere"), "role": "viewer"}]}
    body: dict[str, Any] = {"quotas": quotas, "reason": "x"}
    assert gateway.call("PUT", f"/v1/clusters/{FLEET}/quotas", body, headers=new).status == 200
    for name, member in zip(TEAMS, ("NlpGuest", "VisionLead"), strict=True):
        team = {
            "name": name,
            "namespace": name,
            "members": [{"principal": role_arn(member), "role": "viewer"}],
            "budgets": [{"period": "month", "usd": 1000}],
        }
        assert gateway.call("PUT", f"/v1/teams/{name}/quota", {"team": team, "reason": "x"}, headers=new).status == 200
        amount = {"usdMicros": 900_000_000, "acceleratorSeconds": 0, "unpricedSeconds": 0}
        ledger.commit(Add(quota_rows.spent_key(name, "2026-11"), amount))
    for number, name in enumerate((*TEAMS, "gone"), 1):
        job = a_job(number, rentals=1, current_attempt=1)
        price: dict[str, Any] = {"instance_type": "ml.p5.48xlarge", "usd_per_accelerator_hour": 6.88}
        attempt = an_attempt(job, team=name, running_at=ago(minutes=20), **price)
        rental = a_rental(number, 0, None, team=name).replace(job_id=job.job_id, begun_at=ago(minutes=30))
        store(ledger, job.replace(spec=job.spec.replace(team=name)), attempt, a_fleet_node(number))
        ledger.commit(Put(job_rows.rental_row(rental.with_offer(opened_at=ago(minutes=30)), 0)))
    store_heartbeats(ledger)
    counts = read_overview.counts_document((), a_context(gateway.fakes))
    before, after = Row(fleet_rows.overview_key(), {"budgets": []}, 1), Row(fleet_rows.overview_key(), counts, 1)
    ledger.commit(Put(Row(fleet_rows.overview_key(), counts)))
    publish_events.run(RowChange(before, after, ago(minutes=1)), a_context(gateway.fakes))
    return gateway


@pytest.mark.parametrize("caller", CALLERS)
def test_overview_shows_budgets_of_own_teams(site: Gateway, caller: str) -> None:
    principal, visible_teams = CALLERS[caller]

    counts = site.get("/v1/overview", caller=principal).document["counts"]

    assert {budget["team"] for budget in counts["budgets"]} == visible_teams & set(TEAMS)
    assert {team["team"] for team in counts["teams"]} >= set(TEAMS)


@pytest.mark.parametrize("caller", CALLERS)
def test_cost_report_shows_spend_of_own_teams(site: Gateway, caller: str) -> None:
    principal, visible_teams = CALLERS[caller]

    document = site.get("/v1/cost-report", caller=principal).document

    teams = {team["team"]: team for team in document["teams"]}
    assert set(teams) == {"nlp", "vision", "gone"}
    assert all(team["gpuHours"] > 0 for team in teams.values())
    for figure in ("usdMicros", "rentUsdMicros"):
        assert {name for name, team in teams.items() if team[figure] is not None} == visible_teams, figure
    assert {rent["name"] for rent in document["rent"]["teams"]} == visible_teams
    assert document["rent"]["usdMicros"] > 0, "sums over all teams are public"


@pytest.mark.parametrize("caller", CALLERS)
def test_events_show_budgets_of_own_teams(site: Gateway, caller: str) -> None:
    principal, visible_teams = CALLERS[caller]

    items = site.get("/v1/events", caller=principal).document["items"]

    assert {item["team"] for item in items if item["kind"] == "Budget Near End"} == visible_teams & set(TEAMS)


def test_without_teams_every_caller_sees_all_spend(gateway: Gateway) -> None:
    job = a_job(1, current_attempt=1)
    attempt = an_attempt(job, instance_type="ml.p5.48xlarge", usd_per_accelerator_hour=6.88)
    store(gateway.fakes.ledger, job, attempt, a_fleet_node(1))

    (team,) = gateway.get("/v1/cost-report", caller=f"arn:aws:iam::{ACCOUNT}:root").document["teams"]

    assert team["usdMicros"] > 0
