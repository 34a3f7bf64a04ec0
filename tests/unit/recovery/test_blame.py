"""The node to which a fault of a job is attributed."""

from datetime import timedelta

import pytest

from evenkeel.domain.recovery.attribution import attribute_fault, attribution_facts
from tests.unit.api.seeds import a_job, a_life, ago, an_attempt, an_incident

ATTEMPT = an_attempt(a_job(1), 1, nodes=(1, 2))
SEEN_AT = ago(minutes=30)


@pytest.mark.parametrize(
    ("minutes_before", "is_blamed"), [(0, True), (10, True), (10.1, False), (-5, True), (-5.1, False)]
)
def test_recently_faulty_node_is_blamed_before_the_reporting_rank(minutes_before: float, is_blamed: bool) -> None:
    faulty = an_incident(2, last_signal_at=SEEN_AT - timedelta(minutes=minutes_before))

    blamed = attribute_fault(attribution_facts(ATTEMPT, 0, {faulty.life.key: faulty}, SEEN_AT))

    assert blamed
    assert blamed.instance_id == a_life(2 if is_blamed else 1).instance_id
    assert [other.option for other in blamed.alternatives] == ([a_life(1).instance_id] if is_blamed else [])


def test_first_of_two_faulty_nodes_is_the_cause() -> None:
    earlier_incident = an_incident(2, last_signal_at=SEEN_AT - timedelta(minutes=5))
    later_incident = an_incident(1, last_signal_at=SEEN_AT - timedelta(minutes=1))

    blamed = attribute_fault(
        attribution_facts(
            ATTEMPT,
            None,
            {earlier_incident.life.key: earlier_incident, later_incident.life.key: later_incident},
            SEEN_AT,
        )
    )

    assert blamed
    assert blamed.instance_id == earlier_incident.life.instance_id


@pytest.mark.parametrize(("rank", "number"), [(None, 1), (0, 1), (1, 2)])
def test_reporting_rank_is_blamed_without_a_faulty_node(rank: int | None, number: int) -> None:
    blamed = attribute_fault(attribution_facts(ATTEMPT, rank, {}, SEEN_AT))

    assert blamed
    assert blamed.instance_id == a_life(number).instance_id


def test_unknown_rank_is_attributed_to_no_node() -> None:
    assert attribute_fault(attribution_facts(ATTEMPT, 2, {}, SEEN_AT)) is None
