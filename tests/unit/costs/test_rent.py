"""Rent in a window: bills are split at its start and end, and compared with the cap."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.rent_report import rent_report
from evenkeel.domain.renting.rental import Rental

BEGIN = datetime(2026, 11, 3, tzinfo=UTC)
CAP = 60_000_000


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def a_rental(number: int, opened: float, closed: float | None, *, nodes: int = 2, team: str = "nlp") -> Rental:
    offer: dict[str, Any] = {
        "pool": "burst-p5",
        "cluster": "c",
        "market": "on-demand",
        "instance_type": "p5.48xlarge",
        "zone": "z",
        "accelerators_per_node": 8,
        "micros_per_node_hour": 25_000_000,
        "min_billed_seconds": 60,
        "opened_at": at(opened),
        "closed_at": None if closed is None else at(closed),
        "joined_node_names": tuple(f"n{number}" for number in range(nodes)),
    }
    return Rental(
        job_id=f"job-{number}",
        number=1,
        team=team,
        namespace="n",
        state="READY" if closed is None else "ENDED",
        reason="",
        nodes=nodes,
        offers=(offer,),
        begun_at=at(opened),
        ready_by=at(opened + 900),
        ended_at=None if closed is None else at(closed),
        decision_id="dec-1",
    )


def test_rent_report_sums_rentals_by_pool_and_team() -> None:
    rentals = [a_rental(1, 0, 3600), a_rental(2, 1800, None, nodes=1, team="vision")]

    report = rent_report(rentals, Span(at(0), at(7200)), CAP)

    assert report.usd_micros == 50_000_000 + 37_500_000
    assert [(row.name, row.usd_micros) for row in report.teams] == [("nlp", 50_000_000), ("vision", 37_500_000)]
    assert [(row.name, row.rentals, row.node_hours) for row in report.pools] == [("burst-p5", 2, 3.5)]
    assert (report.peak_usd_micros_per_hour, report.peak_at) == (75_000_000, at(1800))
    assert report.hours_near_cap == 1.0


def test_report_without_rentals_has_no_peak_rent() -> None:
    report = rent_report([a_rental(1, 0, 3600, nodes=0)], Span(at(0), at(7200)), 0)

    assert (report.usd_micros, report.peak_at, report.hours_near_cap) == (0, None, None)


@given(st.integers(0, 9_000), st.integers(0, 9_000), st.integers(1, 8_999))
def test_bills_of_two_adjacent_windows_sum_to_the_whole_bill(opened: int, length: int, border: int) -> None:
    rental = a_rental(1, opened, opened + length)
    first = rent_report([rental], Span(at(0), at(border)), CAP)
    second = rent_report([rental], Span(at(border), at(100_000)), CAP)
    whole_bill = rent_report([rental], Span(at(0), at(100_000)), CAP)

    assert abs(first.usd_micros + second.usd_micros - whole_bill.usd_micros) <= 1
