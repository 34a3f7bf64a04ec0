"""`evenkeel teams spend`: a table of groups, and CSV with FOCUS columns."""

import csv
from io import StringIO

import pytest

from tests.unit.api.seeds import a_job, ago, an_attempt, store
from tests.unit.api.test_showback import store_two_jobs
from tests.unit.cli.conftest import CliFixture


@pytest.fixture
def fleet(cli: CliFixture) -> CliFixture:
    store_two_jobs(cli.gateway)
    return cli


def test_spend_report_shows_teams_and_use_without_a_price(fleet: CliFixture) -> None:
    assert fleet.run("teams", "spend", "--since", "4h").out.splitlines()[:5] == [
        "2026-11-03T06:15Z to 2026-11-03T10:15Z",
        "",
        "TEAM    JOBS  GPU-HOURS     COST   RENT  WITHOUT PRICE",
        "nlp        1       30.9  $255.39  $0.00            0.0",
        "vision     1        2.7  unknown  $0.00            2.7",
    ]


@pytest.mark.parametrize(("by", "names"), [("user", ["role/Nlp", "role/Vision"]), ("project", ["llama", "vit"])])
def test_spend_can_be_listed_by_user_or_project(fleet: CliFixture, by: str, names: list[str]) -> None:
    lines = fleet.run("teams", "spend", "--since", "4h", "--by", by, terminal=True).out.splitlines()

    assert [line.split()[1] for line in lines[3:5]] == names
    assert max(map(len, lines)) <= 80


def test_csv_has_the_columns_of_the_focus_standard(fleet: CliFixture) -> None:
    nlp, vision = csv.DictReader(StringIO(fleet.run("teams", "spend", "--since", "4h", "-o", "csv").out))

    assert (nlp["SubAccountName"], nlp["ConsumedUnit"], nlp["BillingCurrency"]) == ("nlp", "GPU-Hours", "USD")
    assert float(nlp["EffectiveCost"]) == pytest.approx(255.39, abs=0.01)
    assert (vision["EffectiveCost"], vision["x_Project"]) == ("", "vit")
    assert nlp["ChargePeriodEnd"] == nlp["BillingPeriodEnd"] == "2026-11-03T10:15:02Z"


# FOCUS 1.2: columns with the feature level Mandatory, and whether they may be null.
MANDATORY = {
    **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), False),
    **dict.fromkeys(("BillingAccountId", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart"), False),
    **dict.fromkeys(("ChargeCategory", "ChargePeriodEnd", "ChargePeriodStart", "InvoiceIssuerName"), False),
    **dict.fromkeys(("ProviderName", "PublisherName", "ServiceCategory", "ServiceName"), False),
    **dict.fromkeys(("BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit"), True),
}


def test_csv_has_every_mandatory_column_of_focus(fleet: CliFixture) -> None:
    nlp, _ = csv.DictReader(StringIO(fleet.run("teams", "spend", "--since", "4h", "-o", "csv").out))

    assert MANDATORY.keys() - nlp.keys() == set()
    assert [name for name, may_be_null in MANDATORY.items() if not may_be_null and not nlp[name]] == []
    assert nlp["ChargeClass"] == ""
    assert nlp["PricingQuantity"] == nlp["ConsumedQuantity"]
    assert nlp["BillingAccountId"] == "laptop"


def test_spend_report_reads_every_page(fleet: CliFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenkeel_cli.spend_page._PAGE", 1)

    assert fleet.run("teams", "spend", "--since", "4h", "-o", "csv").out.count("AI and Machine Learning") == 2


def test_job_in_two_pools_is_not_two_jobs(fleet: CliFixture) -> None:
    job = a_job(41, state="RUNNING", current_attempt=2)
    first = an_attempt(job, state="LOST", admitted_at=ago(minutes=60), ended_at=ago(minutes=45))
    second = an_attempt(job, 2, admitted_at=ago(minutes=40), pool="other-pool")
    store(fleet.gateway.fakes.ledger, job, first, second)

    by_team, by_pool = (fleet.run("teams", "spend", "--since", "4h", "--by", by).out for by in ("team", "pool"))

    assert [line.split()[:3] for line in by_team.splitlines()[3:4]] == [["default", "≤", "2"]]
    assert by_team.splitlines()[6].split()[:2] == ["all", "3"]
    assert [line.split()[2] for line in by_pool.splitlines()[3:5]] == ["1", "1"]
