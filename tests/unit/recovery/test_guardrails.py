"""Guardrails: each rule alone, their order, and the order in which blocked incidents proceed."""

import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from evenkeel.domain.health.faults import Severity
from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.domain.nodes import FleetNode, NodeLife
from evenkeel.domain.recovery.guardrails import (
    GUARDRAILS,
    BlockedAction,
    GuardrailAction,
    GuardrailFacts,
    GuardrailName,
    NodeFailure,
    Register,
    RegisterEntry,
    SharedCause,
    check_guardrails,
    pool_limit,
    shared_causes,
    unblocked_actions,
)
from evenkeel.domain.recovery.holds import Hold, Holds
from evenkeel.domain.recovery.repair_policy import GuardrailPolicy
from tests.examples import examples
from tests.unit.recovery.facts import at

NOW = at(10_000)
POLICY = GuardrailPolicy(
    fleet_repairs=3,
    pool_repairs=2,
    pool_repair_share=0.25,
    repairs_per_hour=5,
    fleet_cordons=4,
    pool_cordons=3,
    pool_cordon_share=0.5,
    shared_cause_count=3,
    shared_cause_share=0.1,
    shared_cause_window_seconds=600,
    stale_after_seconds=1800,
)
HOLD = Hold(by="ana", reason="looking at it", since=at(0), until=at(20_000))


def a_life(number: int) -> NodeLife:
    return NodeLife(cluster="c", instance_id=f"i-{number:08x}", launched_at=at(-90_000))


def a_register_entry(number: int, pool: str = "p5", **changes: Any) -> RegisterEntry:
    facts = {"life_key": a_life(number).key, "incident_id": f"inc-{number}", "pool": pool, "since": at(9_000)}
    return RegisterEntry.model_validate({**facts, **changes})


def a_register(*entries: RegisterEntry, requested_at: Sequence[float] = ()) -> Register:
    return Register(entries=entries, requested_at=tuple(at(seconds) for seconds in requested_at))


def guardrail_facts(**changes: Any) -> GuardrailFacts:
    facts = {"life_key": a_life(0).key, "pool": "p5", "pool_nodes": 8, "evidence_at": at(9_900), "now": NOW}
    return GuardrailFacts.model_validate({**facts, **changes})


def a_group_fact(kind: GroupFactKind, seconds: float, group: str = "p5") -> GroupFact:
    return GroupFact(kind=kind, source="hyperpod", instance_group=group, observed_at=at(seconds), envelope_id="e")


def zone_cause(*failed_at: float, nodes: int = 20) -> SharedCause:
    return SharedCause(
        kind="zone", name="use1-az1", nodes=nodes, faulted_at=tuple(at(seconds) for seconds in failed_at)
    )


BLOCKED_CASES: list[tuple[str, GuardrailName, GuardrailAction, dict[str, Any], str]] = [
    ("held", GuardrailName.HOLD, GuardrailAction.REBOOT, {"hold": HOLD}, "ana holds automation: looking at it"),
    (
        "its pool is held",
        GuardrailName.HOLD,
        GuardrailAction.STOP,
        {"hold": HOLD.replace(pool="p5")},
        "ana holds automation on p5:",
    ),
    (
        "stop, where its cordon waits",
        GuardrailName.CORDON_BLOCKED,
        GuardrailAction.STOP,
        {"cordon_block_reason": "4 carry our cordon."},
        "The node is not cordoned yet, so its jobs keep running: 4 carry our cordon.",
    ),
    (
        "no capacity for a new machine",
        GuardrailName.GROUP_TROUBLE,
        GuardrailAction.REPLACE,
        {"group_reports": (a_group_fact(GroupFactKind.NO_CAPACITY, 9_500),)},
        "p5: HyperPod has no capacity for it",
    ),
    (
        "the lifecycle script fails",
        GuardrailName.GROUP_TROUBLE,
        GuardrailAction.REPLACE,
        {"group_reports": (a_group_fact(GroupFactKind.LIFECYCLE_SCRIPT_FAILED, 9_500),)},
        "p5: its lifecycle script fails on new nodes",
    ),
    (
        "the cluster has failed",
        GuardrailName.GROUP_TROUBLE,
        GuardrailAction.REBOOT,
        {"group_reports": (a_group_fact(GroupFactKind.CLUSTER_FAILED, 9_500, ""),)},
        "the cluster: the cluster itself has failed",
    ),
    (
        "three of a zone at once",
        GuardrailName.SHARED_CAUSE,
        GuardrailAction.REBOOT,
        {"causes": (zone_cause(9_500, 9_600, 9_700),)},
        "3 of 20 nodes of zone use1-az1 failed in 10 min",
    ),
    (
        "old evidence of a machine that looks well",
        GuardrailName.STALE_EVIDENCE,
        GuardrailAction.REPLACE,
        {"evidence_at": at(10_000 - 1800), "looks_healthy": True},
        "The node looks healthy and its fault is 30 min old",
    ),
    (
        "three in repair",
        GuardrailName.FLEET_REPAIRS,
        GuardrailAction.REBOOT,
        {"under_way": a_register(*(a_register_entry(n, "other") for n in (1, 2, 3)))},
        "3 nodes of the fleet are in repair; the limit is 3.",
    ),
    (
        "a quarter of the pool in repair",
        GuardrailName.POOL_REPAIRS,
        GuardrailAction.REBOOT,
        {"under_way": a_register(a_register_entry(1), a_register_entry(2))},
        "2 of 8 nodes of p5 are in repair; the limit is 2.",
    ),
    (
        "five calls within the hour",
        GuardrailName.REPAIR_RATE,
        GuardrailAction.REPLACE,
        {"under_way": a_register(requested_at=(7_000, 7_100, 8_000, 9_000, 9_100))},
        "Evenkeel made 5 repair requests in the last hour; the limit is 5.",
    ),
    (
        "four carry our cordon",
        GuardrailName.FLEET_CORDONS,
        GuardrailAction.CORDON,
        {"under_way": a_register(*(a_register_entry(n, "other") for n in (1, 2, 3, 4)))},
        "Evenkeel cordoned 4 nodes of the fleet; the limit is 4.",
    ),
    (
        "three of the pool carry our cordon",
        GuardrailName.POOL_CORDONS,
        GuardrailAction.CORDON,
        {"under_way": a_register(a_register_entry(1), a_register_entry(2), a_register_entry(3))},
        "Evenkeel cordoned 3 of 8 nodes of p5; the limit is 3.",
    ),
    (
        "three of the pool carry our cordon, and this one goes tomorrow",
        GuardrailName.POOL_CORDONS,
        GuardrailAction.CORDON,
        {
            "under_way": a_register(a_register_entry(1), a_register_entry(2), a_register_entry(3)),
            "terminates_at": at(96_400),
        },
        "Evenkeel cordoned 3 of 8 nodes of p5; the limit is 3.",
    ),
]


@pytest.mark.parametrize(
    ("why", "rule", "act", "changes", "reason"), BLOCKED_CASES, ids=[row[0] for row in BLOCKED_CASES]
)
def test_guardrail_blocks_the_action(
    why: str, rule: GuardrailName, act: GuardrailAction, changes: dict[str, Any], reason: str
) -> None:
    verdict = check_guardrails(act, guardrail_facts(**changes), POLICY)

    assert (verdict.is_allowed, verdict.guardrail) == (False, rule), why
    assert verdict.reason.startswith(reason)


ALLOWED: list[tuple[str, GuardrailName, GuardrailAction, dict[str, Any]]] = [
    ("a hold does not bar a cordon", GuardrailName.HOLD, GuardrailAction.CORDON, {"hold": HOLD}),
    (
        "what is dead may be stopped",
        GuardrailName.CORDON_BLOCKED,
        GuardrailAction.STOP,
        {"cordon_block_reason": "too many", "is_dead": True},
    ),
    (
        "a reboot needs no new machine",
        GuardrailName.GROUP_TROUBLE,
        GuardrailAction.REBOOT,
        {"group_reports": (a_group_fact(GroupFactKind.NO_CAPACITY, 9_500),)},
    ),
    (
        "a launch succeeded since",
        GuardrailName.GROUP_TROUBLE,
        GuardrailAction.REPLACE,
        {
            "group_reports": (
                a_group_fact(GroupFactKind.NO_CAPACITY, 9_500),
                a_group_fact(GroupFactKind.PROVISIONED, 9_600),
            )
        },
    ),
    (
        "the cluster is in service again",
        GuardrailName.GROUP_TROUBLE,
        GuardrailAction.REBOOT,
        {
            "group_reports": (
                a_group_fact(GroupFactKind.CLUSTER_FAILED, 9_500, ""),
                a_group_fact(GroupFactKind.CLUSTER_STATUS, 9_600, "").replace(code="InService"),
            )
        },
    ),
    (
        "the trouble is long ago",
        GuardrailName.GROUP_TROUBLE,
        GuardrailAction.REPLACE,
        {"group_reports": (a_group_fact(GroupFactKind.NO_CAPACITY, 9_400),)},
    ),
    ("two of a zone", GuardrailName.SHARED_CAUSE, GuardrailAction.REBOOT, {"causes": (zone_cause(9_500, 9_600),)}),
    (
        "the wave is over",
        GuardrailName.SHARED_CAUSE,
        GuardrailAction.REBOOT,
        {"causes": (zone_cause(9_400, 9_600, 9_700),)},
    ),
    (
        "three of a large zone are chance",
        GuardrailName.SHARED_CAUSE,
        GuardrailAction.REBOOT,
        {"causes": (zone_cause(9_500, 9_600, 9_700, nodes=40),)},
    ),
    (
        "old evidence of a machine that is ill",
        GuardrailName.STALE_EVIDENCE,
        GuardrailAction.REPLACE,
        {"evidence_at": at(0)},
    ),
    (
        "fresh evidence of a machine that looks well",
        GuardrailName.STALE_EVIDENCE,
        GuardrailAction.REPLACE,
        {"looks_healthy": True},
    ),
    (
        "a machine in repair counts not against itself",
        GuardrailName.FLEET_REPAIRS,
        GuardrailAction.REPLACE,
        {"under_way": a_register(a_register_entry(0), a_register_entry(1))},
    ),
    (
        "entries of other pools",
        GuardrailName.POOL_REPAIRS,
        GuardrailAction.REBOOT,
        {"under_way": a_register(a_register_entry(1), a_register_entry(2, "other"))},
    ),
    (
        "requests of an hour ago",
        GuardrailName.REPAIR_RATE,
        GuardrailAction.REBOOT,
        {"under_way": a_register(requested_at=(6_400, 7_100, 8_000, 9_000, 9_100))},
    ),
    (
        "a machine that goes by itself soon",
        GuardrailName.FLEET_CORDONS,
        GuardrailAction.CORDON,
        {"under_way": a_register(*map(a_register_entry, range(1, 9))), "terminates_at": at(10_120)},
    ),
    (
        "cordons are counted apart",
        GuardrailName.POOL_CORDONS,
        GuardrailAction.CORDON,
        {"under_way": a_register(a_register_entry(1), a_register_entry(2))},
    ),
]


@pytest.mark.parametrize(("why", "rule", "act", "changes"), ALLOWED, ids=[row[0] for row in ALLOWED])
def test_guardrail_allows_the_action(
    why: str, rule: GuardrailName, act: GuardrailAction, changes: dict[str, Any]
) -> None:
    assert check_guardrails(act, guardrail_facts(**changes), POLICY).is_allowed, f"{rule}: {why}"


def test_replacement_without_any_limit_reached_is_allowed() -> None:
    assert check_guardrails(GuardrailAction.REPLACE, guardrail_facts(), POLICY).is_allowed


def test_every_guardrail_is_tested_when_it_blocks_and_allows() -> None:
    assert [rail.name for rail in GUARDRAILS] == list(GuardrailName)
    assert {row[1] for row in BLOCKED_CASES} == {row[1] for row in ALLOWED} == set(GuardrailName)


def test_first_violated_guardrail_is_reported() -> None:
    facts_that_violate_all = {
        name: value
        for row in BLOCKED_CASES
        if GuardrailAction.REPLACE in guarded_actions(row[1])
        for name, value in row[3].items()
    }

    assert (
        check_guardrails(GuardrailAction.REPLACE, guardrail_facts(**facts_that_violate_all), POLICY).guardrail
        == GuardrailName.HOLD
    )


def guarded_actions(rule: GuardrailName) -> tuple[GuardrailAction, ...]:
    return next(rail.actions for rail in GUARDRAILS if rail.name is rule)


@pytest.mark.parametrize(
    ("act", "changes", "clears"),
    [
        (GuardrailAction.REBOOT, {"hold": HOLD}, 20_000),
        (GuardrailAction.REPLACE, {"group_reports": (a_group_fact(GroupFactKind.NO_CAPACITY, 9_500),)}, 10_100),
        (GuardrailAction.REBOOT, {"causes": (zone_cause(9_450, 9_500, 9_600, 9_700),)}, 10_100),
        (
            GuardrailAction.REBOOT,
            {"under_way": a_register(requested_at=(7_000, 7_100, 8_000, 9_000, 9_100, 9_200))},
            10_700,
        ),
    ],
    ids=["hold", "trouble", "wave", "rate"],
)
def test_blocked_action_is_allowed_from_the_stated_time(
    act: GuardrailAction, changes: dict[str, Any], clears: float
) -> None:
    facts = guardrail_facts(**changes)
    verdict = check_guardrails(act, facts, POLICY)

    assert verdict.clears_at == at(clears)
    before = {"now": at(clears - 1)}
    after: dict[str, Any] = {"now": at(clears)} | ({"hold": None} if facts.hold else {})
    assert not check_guardrails(act, facts.replace(**before), POLICY).is_allowed
    assert check_guardrails(act, facts.replace(**after), POLICY).is_allowed


# ---------------------------------------------------------------- limits by share and by count


@pytest.mark.parametrize(
    ("count", "share", "machines", "expected"),
    [
        (4, 0.1, 100, 4),
        (4, 0.1, 20, 2),
        (4, 0.1, 3, 1),
        (None, 0.1, 100, 10),
        (4, None, 3, 4),
        (4, 0.1, 0, 1),
    ],
)
def test_lower_of_count_and_share_limits_repairs_of_a_pool(
    count: int | None, share: float | None, machines: int, expected: int
) -> None:
    assert pool_limit(count, share, machines) == expected


@pytest.mark.parametrize("act", ["repair", "cordon"])
def test_policy_that_bounds_neither_count_nor_share_is_refused(act: str) -> None:
    with pytest.raises(ValidationError, match=f"the {act}s of a pool have no limit"):
        GuardrailPolicy.model_validate({f"pool_{act}s": None, f"pool_{act}_share": None})


# ---------------------------------------------------------------- registers


def test_repair_register_drops_calls_older_than_an_hour() -> None:
    register = a_register(a_register_entry(1), requested_at=(6_400, 6_401))

    remaining = register.without_old_requests(NOW)

    assert [a_register_entry.incident_id for a_register_entry in remaining.entries] == ["inc-1"]
    assert remaining.requested_at == (at(6_401),)


def test_repair_register_has_one_entry_for_each_node() -> None:
    register = (
        Register()
        .with_entry(a_register_entry(1), is_request=True)
        .with_entry(a_register_entry(1, incident_id="inc-9", since=NOW), is_request=True)
    )

    assert [a_register_entry.incident_id for a_register_entry in register.entries] == ["inc-9"]
    assert register.requested_at == (at(9_000), NOW)
    assert register.without_nodes(a_life(1).key) == Register(requested_at=register.requested_at)


# ---------------------------------------------------------------- shared causes


def a_node(number: int, **changes: Any) -> FleetNode:
    facts: dict[str, Any] = {
        "life": a_life(number),
        "slot": f"c/{number}",
        "pool": "p5",
        "zone": "az1",
        "image": "1.0",
        "is_ready": True,
        "provider_status": "Running",
        "changed_at": at(0),
    }
    return FleetNode.model_validate({**facts, **changes})


def failure_times(*numbers: int) -> list[NodeFailure]:
    return [NodeFailure(a_life(number).key, "p5", at(9_000 + number)) for number in numbers]


def shared_causes_of(
    fleet: list[FleetNode], failures: list[NodeFailure], number: int = 1
) -> dict[str, tuple[int, int]]:
    causes = shared_causes(a_life(number).key, "p5", fleet, failures, now=NOW, boot_seconds=600)
    return {cause.key: (len(cause.faulted_at), cause.nodes) for cause in causes}


def test_faulty_nodes_are_counted_by_zone_ultra_server_and_image() -> None:
    fleet = [
        a_node(1, ultra_server="us-1"),
        a_node(2, ultra_server="us-1", image="2.0"),
        a_node(3, zone="az2"),
        a_node(4, pool="other", zone="az2"),
    ]

    causes = shared_causes_of(fleet, failure_times(1, 2, 3))

    assert causes == {"zone/az1": (2, 2), "UltraServer/us-1": (2, 2), "image/p5 1.0": (2, 2)}


def test_booting_maintained_and_removed_nodes_count_for_no_cause() -> None:
    young_life = NodeLife(cluster="c", instance_id="i-00000009", launched_at=at(9_900))
    fleet = [
        a_node(1),
        a_node(2, life=young_life, is_ready=False),
        a_node(3, provider_status="SystemUpdating", is_ready=False),
        a_node(4, is_gone=True),
    ]

    assert shared_causes_of(fleet, failure_times(1, 3))["zone/az1"] == (1, 1)


def test_faulty_node_counts_for_shared_causes_after_it_is_gone() -> None:
    assert shared_causes_of([a_node(1), a_node(2, is_gone=True)], failure_times(1, 2))["zone/az1"] == (2, 2)


def test_node_of_unknown_image_shares_a_cause_with_its_pool() -> None:
    assert shared_causes_of([a_node(2, image="")], failure_times(1, 2)) == {"image/p5": (2, 2)}


# ---------------------------------------------------------------- order of blocked incidents


def a_waiting_incident(
    number: int, severity: Severity = Severity.MAJOR, act: GuardrailAction = GuardrailAction.REBOOT, **changes: Any
) -> BlockedAction:
    facts = guardrail_facts(**{"life_key": a_life(number).key, **changes})
    return BlockedAction(incident_id=f"inc-{number}", severity=severity, opened_at=at(number), action=act, facts=facts)


def test_incidents_proceed_by_severity_then_age_within_the_limit() -> None:
    blocked = [
        a_waiting_incident(4),
        a_waiting_incident(3),
        a_waiting_incident(2, Severity.CRITICAL),
        a_waiting_incident(1),
        a_waiting_incident(5, Severity.MINOR),
    ]

    assert unblocked_actions(blocked, POLICY) == {"inc-2", "inc-1"}


def test_incident_under_a_hold_does_not_delay_other_incidents() -> None:
    blocked = [a_waiting_incident(1, hold=HOLD), a_waiting_incident(2), a_waiting_incident(3), a_waiting_incident(4)]

    assert unblocked_actions(blocked, POLICY) == {"inc-2", "inc-3"}


def test_recovered_node_proceeds_without_counting_against_the_limit() -> None:
    old_evidence: dict[str, Any] = {"evidence_at": at(0), "looks_healthy": True}
    blocked = [a_waiting_incident(1, **old_evidence), a_waiting_incident(2), a_waiting_incident(3)]

    assert unblocked_actions(blocked, POLICY) == {"inc-1", "inc-2", "inc-3"}


def test_incidents_that_wait_to_cordon_do_not_delay_repairs() -> None:
    blocked = [
        a_waiting_incident(1),
        a_waiting_incident(2),
        *(a_waiting_incident(number, act=GuardrailAction.CORDON) for number in range(3, 8)),
    ]

    assert unblocked_actions(blocked, POLICY) == {"inc-1", "inc-2", "inc-3", "inc-4", "inc-5"}


def test_stop_of_jobs_proceeds_only_without_a_hold() -> None:
    assert unblocked_actions([a_waiting_incident(1, act=GuardrailAction.STOP)], POLICY) == {"inc-1"}
    assert unblocked_actions([a_waiting_incident(1, act=GuardrailAction.STOP, hold=HOLD)], POLICY) == frozenset()


@given(st.lists(st.tuples(st.sampled_from(list(Severity)), st.sampled_from(["p5", "g6", "trn"])), max_size=30))
def test_incidents_released_together_stay_within_the_limits(crowd: list[tuple[Severity, str]]) -> None:
    blocked = [a_waiting_incident(number, severity, pool=pool) for number, (severity, pool) in enumerate(crowd)]

    released = unblocked_actions(blocked, POLICY)

    pools = [blocked_action.facts.pool for blocked_action in blocked if blocked_action.incident_id in released]
    assert len(pools) <= POLICY.fleet_repairs
    assert all(pools.count(pool) <= 2 for pool in set(pools))
    assert bool(released) is bool(blocked), "release at least one blocked action"


# ---------------------------------------------------------------- holds


def test_hold_covers_fleet_pool_or_machine() -> None:
    of_pool, of_machine = HOLD.replace(pool="p5"), HOLD.replace(instance_id="i-1")
    holds = Holds(holds=(of_machine, of_pool))

    assert holds.hold_on_node("p5", "i-1", NOW) == of_machine
    assert holds.hold_on_node("p5", "i-2", NOW) == of_pool
    assert holds.hold_on_node("g6", "i-1", NOW) == of_machine
    assert holds.hold_on_node("g6", "i-2", NOW) is None
    assert Holds(holds=(*holds.holds, HOLD)).hold_on_node("p5", "i-1", NOW) == HOLD
    assert holds.hold_on_node("p5", "i-1", HOLD.until) is None


def test_row_with_a_hold_in_the_old_format_is_read() -> None:
    assert Holds.model_validate(HOLD.to_json()) == Holds(holds=(HOLD,))


# ---------------------------------------------------------------- concurrent requests


@given(st.data())
@settings(max_examples=examples(100))
def test_guardrail_limits_hold_for_any_order_of_concurrent_requests(data: st.DataObject) -> None:
    """Every request reads a version of the register and is stored only at that version, as in the ledger."""
    stored, version = Register(), 0
    read: dict[int, tuple[Register, int]] = {}
    for step in itertools.islice(itertools.count(), 40):
        number, action = data.draw(st.tuples(st.integers(0, 7), st.sampled_from(["read", "ask", "leave"])))
        pool, now = "p5" if number % 2 else "g6", NOW + timedelta(seconds=60 * step)
        if action == "read":
            read[number] = (stored.without_old_requests(now), version)
        elif action == "leave":
            stored, version = stored.without_nodes(a_life(number).key), version + 1
        elif number in read:
            under_way, at_version = read.pop(number)
            facts = guardrail_facts(life_key=a_life(number).key, pool=pool, under_way=under_way, now=now)
            if check_guardrails(GuardrailAction.REBOOT, facts, POLICY).is_allowed and at_version == version:
                stored, version = (
                    under_way.with_entry(a_register_entry(number, pool, since=now), is_request=True),
                    version + 1,
                )
        counts = [a_register_entry.pool for a_register_entry in stored.entries]
        assert len(counts) <= POLICY.fleet_repairs
        assert max(map(counts.count, counts), default=0) <= 2
        assert len(stored.without_old_requests(now).requested_at) <= POLICY.repairs_per_hour
