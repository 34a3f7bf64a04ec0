"""What a fact means: open, join, a copy, or old news."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.health.faults import Severity, catalogue, look_up
from evenkeel.domain.health.incidents import FactKind, Incident, IncidentState, NodeFact, SickSeat
from evenkeel.domain.health.intake import Intake, IntakeDecision, LastIncident, join_or_open, joined, ladder_of, worse
from evenkeel.domain.nodes import NodeLife
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.system import A_MOMENT

LIFE = NodeLife(cluster=CLUSTER, instance_id=instance_id(1), launched_at=A_MOMENT - timedelta(days=1))
SEAT = SickSeat(life=LIFE, slot=f"{CLUSTER}/seat-1", node_name="node-1", pool="p5-workers")


def a_fact(seconds: float = 0, **changes: Any) -> NodeFact:
    facts: dict[str, Any] = {
        "kind": FactKind.SICKENED,
        "source": "hyperpod.node-health",
        "instance_id": LIFE.instance_id,
        "fault_key": "hp:NvidiaErrorReboot",
        "observed_at": A_MOMENT + timedelta(seconds=seconds),
        "envelope_id": "e-1",
    }
    return NodeFact.model_validate({**facts, **changes})


def decide(fact: NodeFact, **changes: Any) -> IntakeDecision:
    facts: dict[str, Any] = {"known_as": "", "last": None, "current": None, "drills_may_act": False}
    return join_or_open(fact, SEAT, **{**facts, **changes}, new_id="inc-new", now=A_MOMENT + timedelta(seconds=1))


def an_incident(fact: NodeFact | None = None) -> Incident:
    incident = decide(fact or a_fact()).incident
    assert incident
    return incident


# ---------------------------------------------------------------- which way a fact goes


def test_the_first_signal_opens_an_incident_that_says_what_was_seen() -> None:
    decision = decide(a_fact())

    assert decision.action is Intake.OPEN
    assert decision.incident
    assert (decision.incident.state, decision.incident.severity) == (IncidentState.OPEN, Severity.MAJOR)
    assert decision.incident.first_signal_at == A_MOMENT
    assert decision.incident.stages.detected_at == A_MOMENT + timedelta(seconds=1)


def test_a_second_signal_joins_the_open_incident() -> None:
    decision = decide(a_fact(source="kubernetes.node", fault_key="node:not_ready"), current=an_incident())

    assert decision.action is Intake.JOIN
    assert decision.incident
    assert decision.incident.evidence_count == 2
    assert decision.incident.sources == ("hyperpod.node-health", "kubernetes.node")


def test_a_copy_is_known_while_its_incident_is_open_and_after() -> None:
    incident = an_incident()

    while_open = decide(a_fact(), known_as="inc-new", current=incident)
    after = decide(a_fact(), known_as="inc-new", last=LastIncident(incident_id="inc-new"))

    assert (while_open.action, while_open.incident) == (Intake.KNOWN, incident)
    assert (after.action, after.incident) == (Intake.KNOWN, None)


def test_news_from_before_the_return_to_service_opens_nothing() -> None:
    last = LastIncident(incident_id="inc-old", returned_at=A_MOMENT + timedelta(minutes=10))

    assert decide(a_fact(), last=last).action is Intake.LATE
    assert decide(a_fact(60 * 11), last=last).action is Intake.OPEN


def test_a_fault_in_the_very_second_of_the_return_counts_since_event_times_are_cut() -> None:
    last = LastIncident(incident_id="inc-old", returned_at=A_MOMENT + timedelta(milliseconds=700))

    assert decide(a_fact(), last=last).action is Intake.OPEN


def test_the_same_fault_again_after_the_return_is_a_new_sickness() -> None:
    last = LastIncident(incident_id="inc-old", returned_at=A_MOMENT)

    assert decide(a_fact(5), known_as="inc-old", last=last).action is Intake.OPEN
    assert decide(a_fact(-5), known_as="inc-old", last=last).action is Intake.KNOWN


def test_nothing_said_of_a_replaced_machine_matters() -> None:
    last = LastIncident(incident_id="inc-old", is_over=True)

    assert decide(a_fact(9999), last=last).action is Intake.LATE


def test_healthy_again_never_opens_and_is_noted_on_the_open_incident() -> None:
    healthy = a_fact(30, kind=FactKind.RECOVERED, fault_key="")

    assert decide(healthy).action is Intake.IDLE
    decision = decide(healthy, current=an_incident())
    assert decision.incident
    assert decision.incident.recovered_at == healthy.observed_at
    assert decision.incident.fault_key == "hp:NvidiaErrorReboot"


def test_healthy_from_before_the_fault_says_nothing() -> None:
    decision = decide(a_fact(-30, kind=FactKind.RECOVERED, fault_key=""), current=an_incident())

    assert decision.incident
    assert decision.incident.recovered_at is None


# ---------------------------------------------------------------- what the provider does about it


def test_news_of_a_repair_joins_and_changes_neither_fault_nor_witnesses() -> None:
    incident = an_incident()
    news = a_fact(60, kind=FactKind.PROGRESS, fault_key="", code="reboot_in_progress", source="hyperpod.cluster-event")

    decision = decide(news, current=incident)

    assert decision.action is Intake.JOIN
    assert decision.incident
    assert [(each.code, each.at) for each in decision.incident.progress] == [("reboot_in_progress", news.observed_at)]
    assert decision.incident.but(progress=(), evidence_count=1) == incident


def test_news_of_a_repair_opens_nothing() -> None:
    assert decide(a_fact(kind=FactKind.PROGRESS, fault_key="", code="provisioned")).action is Intake.IDLE


def test_two_pieces_of_news_in_one_minute_are_two_facts() -> None:
    started, failed = (
        a_fact(kind=FactKind.PROGRESS, fault_key="", code=code)
        for code in ("replacement_started", "replacement_failed")
    )

    assert started.fact_key != failed.fact_key


def test_only_the_last_ten_pieces_of_news_are_kept_in_order_of_time() -> None:
    incident = an_incident()
    for second in reversed(range(12)):
        news = a_fact(second, kind=FactKind.PROGRESS, fault_key="", code=f"step_{second}")
        incident = joined(incident, news, drills_may_act=False)

    assert [each.code for each in incident.progress] == [f"step_{second}" for second in range(2, 12)]


def test_the_earliest_deadline_counts() -> None:
    early, late = A_MOMENT + timedelta(minutes=2), A_MOMENT + timedelta(hours=1)
    incident = an_incident(a_fact(deadline_at=late))

    sooner = joined(incident, a_fact(1, deadline_at=early), drills_may_act=False)

    assert incident.deadline_at == late
    assert sooner.deadline_at == early
    assert joined(sooner, a_fact(2), drills_may_act=False).deadline_at == early


# ---------------------------------------------------------------- the worst fault wins


@pytest.mark.parametrize(
    ("current", "other", "wins"),
    [
        ("hp:NvidiaErrorReboot", "xid:79", "xid:79"),
        ("xid:79", "hp:NvidiaErrorReboot", "xid:79"),
        ("hp:NvidiaErrorReboot", "node:not_ready", "hp:NvidiaErrorReboot"),
        ("node:not_ready", "hp:NvidiaErrorReboot", "node:not_ready"),
        ("node:not_ready", "hp:NvidiaErrorTerminate", "hp:NvidiaErrorTerminate"),
        ("hp:unknown_fault_type", "xid:13", "xid:13"),
        ("hp:NvidiaErrorReboot", "xid:*", "hp:NvidiaErrorReboot"),
        ("hp:NvidiaErrorReboot", "xid:43", "hp:NvidiaErrorReboot"),
        ("xid:48", "xid:79", "xid:48"),
    ],
)
def test_worst_row_wins_and_an_xid_refines_a_fault_type(current: str, other: str, wins: str) -> None:
    assert worse(current, other) == wins


def test_an_xid_never_makes_gentler_what_hyperpod_asks_for() -> None:
    incident = an_incident(a_fact(fault_key="hp:NvidiaErrorTerminate"))

    refined = joined(incident, a_fact(fault_key="xid:79"), drills_may_act=False)

    assert refined.fault_key == "xid:79"
    assert ladder_of(refined) == ("replace",)


def test_hyperpod_asking_for_more_after_the_xid_raises_the_rung() -> None:
    incident = an_incident(a_fact(fault_key="xid:79"))

    raised = joined(incident, a_fact(fault_key="hp:NvidiaErrorTerminate"), drills_may_act=False)

    assert (ladder_of(incident), ladder_of(raised)) == (("reboot", "replace"), ("replace",))


FAULTS = st.sampled_from(sorted(catalogue()))


@given(st.lists(FAULTS, min_size=1, max_size=6))
def test_severity_never_falls_and_no_rung_gets_gentler_than_asked(keys: list[str]) -> None:
    incident = an_incident(a_fact(fault_key=keys[0]))
    for key in keys[1:]:
        after = joined(incident, a_fact(fault_key=key), drills_may_act=False)
        assert after.severity.rank >= incident.severity.rank
        assert after.severity.rank >= look_up(key).severity.rank
        assert not incident.asked_rung or ladder_of(after)[0] == "replace"
        incident = after


# ---------------------------------------------------------------- drills


def test_a_forged_drill_changes_nothing_of_a_real_incident() -> None:
    incident = an_incident()
    drill = a_fact(5, fault_key="hp:NvidiaErrorTerminate", is_drill=True)

    after = joined(incident, drill, drills_may_act=False)

    assert after == incident.but(evidence_count=2)


def test_a_real_signal_makes_a_drill_real_and_only_its_own_fault_counts() -> None:
    drill = an_incident(a_fact(fault_key="hp:NvidiaErrorTerminate", is_drill=True))

    after = joined(drill, a_fact(fault_key="node:not_ready", source="kubernetes.node"), drills_may_act=False)

    assert drill.is_drill
    assert not after.is_drill
    assert (after.fault_key, after.asked_rung, after.severity) == ("node:not_ready", "", Severity.MAJOR)


def test_where_drills_may_act_they_count_like_real_ones() -> None:
    incident = an_incident(a_fact(fault_key="node:not_ready", source="kubernetes.node"))

    after = joined(incident, a_fact(fault_key="hp:NvidiaErrorTerminate", is_drill=True), drills_may_act=True)

    assert ladder_of(after) == ("replace",)
    assert not after.is_drill
