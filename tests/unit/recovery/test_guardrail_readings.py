"""The readings of guardrails agree with their verdicts."""

import itertools
from typing import Any

import pytest

from evenkeel.domain.health.group_facts import GroupFactKind
from evenkeel.domain.recovery.guardrail_readings import GuardrailReading, read_guardrails
from evenkeel.domain.recovery.guardrails import (
    GUARDRAILS,
    GuardrailAction,
    GuardrailFacts,
    GuardrailName,
    check_guardrails,
)
from tests.unit.recovery.facts import at
from tests.unit.recovery.test_guardrails import (
    HOLD,
    POLICY,
    a_group_fact,
    a_register,
    a_register_entry,
    guardrail_facts,
    zone_cause,
)

_ENTRIES = [
    (),
    (a_register_entry(1),),
    (a_register_entry(1), a_register_entry(2)),
    (a_register_entry(1), a_register_entry(2), a_register_entry(3, "p4"), a_register_entry(4, "p4")),
]
_REQUESTS = [(), (9_000, 9_100), (9_000, 9_100, 9_200, 9_300, 9_400)]
_CAUSES = [(), (zone_cause(9_500),), (zone_cause(9_500, 9_600, 9_700), zone_cause(9_500))]
_OTHER_FACTS: list[dict[str, Any]] = [
    {},
    {"hold": HOLD},
    {"group_reports": (a_group_fact(GroupFactKind.NO_CAPACITY, 9_800),)},
    {"looks_healthy": True, "evidence_at": 7_000},
]


def every_case() -> list[GuardrailFacts]:
    return [
        guardrail_facts(under_way=a_register(*entries, requested_at=requested), causes=causes, **changes)
        for entries, requested, causes, changes in itertools.product(_ENTRIES, _REQUESTS, _CAUSES, _OTHER_FACTS)
    ]


def readings_of(facts: GuardrailFacts, action: GuardrailAction) -> dict[GuardrailName, GuardrailReading]:
    return {reading.guardrail: reading for reading in read_guardrails(action, facts, POLICY)}


@pytest.mark.parametrize("action", [GuardrailAction.CORDON, GuardrailAction.REPLACE])
def test_guardrail_reading_is_at_its_limit_exactly_when_it_blocks(action: GuardrailAction) -> None:
    for facts in every_case():
        for reading in read_guardrails(action, facts, POLICY):
            assert reading.reading is not None
            assert reading.limit is not None
            is_reached = reading.reading >= reading.limit
            if reading.guardrail is GuardrailName.STALE_EVIDENCE:
                is_reached &= facts.looks_healthy
            if reading.guardrail is GuardrailName.SHARED_CAUSE and facts.looks_healthy:
                continue  # a node with old evidence that looks healthy is validated, not repaired
            assert reading.is_blocking == is_reached, reading


@pytest.mark.parametrize("action", [GuardrailAction.CORDON, GuardrailAction.REBOOT, GuardrailAction.REPLACE])
def test_every_guardrail_of_an_action_has_a_reading(action: GuardrailAction) -> None:
    readings = read_guardrails(action, guardrail_facts(), POLICY)

    assert [reading.guardrail for reading in readings] == [
        guardrail.name for guardrail in GUARDRAILS if action in guardrail.actions
    ]
    assert check_guardrails(action, guardrail_facts(), POLICY).is_allowed


def test_shared_cause_reading_shows_the_cause_nearest_its_limit() -> None:
    facts = guardrail_facts(causes=(zone_cause(9_500, nodes=100), zone_cause(9_600, 9_700)))

    reading = readings_of(facts, GuardrailAction.REPLACE)[GuardrailName.SHARED_CAUSE]

    assert (reading.reading, reading.limit) == (2, 3)
    assert reading.unit == "unhealthy nodes of zone use1-az1"


def test_guardrail_limit_of_a_pool_of_unknown_size_is_unknown() -> None:
    readings = readings_of(guardrail_facts(pool_nodes=0), GuardrailAction.REPLACE)

    assert readings[GuardrailName.POOL_REPAIRS].limit is None


@pytest.mark.parametrize(("evidence_at", "minutes"), [(None, None), (10_030, 0), (9_000, 16)])
def test_evidence_age_is_unknown_or_at_least_zero_minutes(evidence_at: int | None, minutes: int | None) -> None:
    facts = guardrail_facts(evidence_at=None if evidence_at is None else at(evidence_at))

    readings = readings_of(facts, GuardrailAction.REPLACE)

    assert readings[GuardrailName.STALE_EVIDENCE].reading == minutes


def test_shared_cause_of_incidents_far_apart_stays_below_its_limit() -> None:
    distant_incidents = zone_cause().replace(open_at=tuple(at(seconds) for seconds in (-90_000, -50_000, 9_600)))
    facts = guardrail_facts(causes=(distant_incidents,))

    reading = readings_of(facts, GuardrailAction.REPLACE)[GuardrailName.SHARED_CAUSE]

    assert (reading.reading, reading.limit, reading.is_blocking) == (1, 3, False)
