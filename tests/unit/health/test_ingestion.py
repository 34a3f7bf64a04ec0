"""The effect of a fact: it opens an incident, joins one, or is a duplicate or late."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.health import incident_updates
from evenkeel.domain.health.classification import ClassifiedFact, IncidentFault
from evenkeel.domain.health.faults import Rung, Severity, default_catalogue
from evenkeel.domain.health.incidents import AffectedNode, FactKind, Incident, IncidentState, NodeFact
from evenkeel.domain.health.ingestion import IngestAction, IngestDecision, LastIncident, NodeHistory, decide_ingestion
from evenkeel.domain.nodes import NodeLife
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.system import A_MOMENT

LIFE = NodeLife(cluster=CLUSTER, instance_id=instance_id(1), launched_at=A_MOMENT - timedelta(days=1))
CATALOGUE = default_catalogue()
AFFECTED = AffectedNode(life=LIFE, slot=f"{CLUSTER}/seat-1", node_name="node-1", pool="p5-workers")


def a_fact(seconds: float = 0, **changes: Any) -> NodeFact:
    facts: dict[str, Any] = {
        "kind": FactKind.FAULT,
        "source": "hyperpod.node-health",
        "instance_id": LIFE.instance_id,
        "fault_key": "hp:NvidiaErrorReboot",
        "observed_at": A_MOMENT + timedelta(seconds=seconds),
        "envelope_id": "e-1",
    }
    return NodeFact.model_validate({**facts, **changes})


def decide(fact: NodeFact, **changes: Any) -> IngestDecision:
    report = ClassifiedFact.of(fact, AFFECTED, CATALOGUE)
    now = A_MOMENT + timedelta(seconds=1)
    return decide_ingestion(report, NodeHistory(**changes), CATALOGUE, new_id="inc-new", now=now)


def with_fact(incident: Incident, fact: NodeFact) -> Incident:
    return incident_updates.with_fact(incident, ClassifiedFact.of(fact, AFFECTED, CATALOGUE), {}, CATALOGUE)


def rungs_of(incident: Incident) -> tuple[Rung, ...]:
    return IncidentFault.of(incident, CATALOGUE).rungs


def ladder_of(incident: Incident) -> tuple[Rung, ...]:
    return IncidentFault.of(incident, CATALOGUE).node_rungs


def an_incident(fact: NodeFact | None = None) -> Incident:
    incident = decide(fact or a_fact()).incident
    assert incident
    return incident


# ---------------------------------------------------------------- open, join or ignore


def test_first_signal_opens_an_incident_with_its_evidence() -> None:
    decision = decide(a_fact())

    assert decision.action is IngestAction.OPEN
    assert decision.incident
    assert (decision.incident.state, decision.incident.severity) == (IncidentState.OPEN, Severity.MAJOR)
    assert decision.incident.first_signal_at == A_MOMENT
    assert decision.incident.stages.detected_at == A_MOMENT + timedelta(seconds=1)


def test_second_signal_joins_open_incident() -> None:
    decision = decide(a_fact(source="kubernetes.node", fault_key="node:not_ready"), open_incident=an_incident())

    assert decision.action is IngestAction.JOIN
    assert decision.incident
    assert decision.incident.evidence_count == 2
    assert decision.incident.sources == ("hyperpod.node-health", "kubernetes.node")


def test_copied_signal_is_duplicate_during_and_after_its_incident() -> None:
    incident = an_incident()

    while_open = decide(a_fact(), known_incident_id="inc-new", open_incident=incident)
    after = decide(a_fact(), known_incident_id="inc-new", last_incident=LastIncident(incident_id="inc-new"))

    assert (while_open.action, while_open.incident) == (IngestAction.DUPLICATE, incident)
    assert (after.action, after.incident) == (IngestAction.DUPLICATE, None)


def test_signal_from_before_the_node_returned_opens_no_incident() -> None:
    last = LastIncident(incident_id="inc-old", returned_at=A_MOMENT + timedelta(minutes=10))

    assert decide(a_fact(), last_incident=last).action is IngestAction.STALE
    assert decide(a_fact(60 * 11), last_incident=last).action is IngestAction.OPEN


def test_fault_in_the_second_when_the_node_returned_counts() -> None:
    last = LastIncident(incident_id="inc-old", returned_at=A_MOMENT + timedelta(milliseconds=700))

    assert decide(a_fact(), last_incident=last).action is IngestAction.OPEN


def test_same_fault_after_the_return_opens_a_new_incident() -> None:
    last = LastIncident(incident_id="inc-old", returned_at=A_MOMENT)

    assert decide(a_fact(5), known_incident_id="inc-old", last_incident=last).action is IngestAction.OPEN
    assert decide(a_fact(-5), known_incident_id="inc-old", last_incident=last).action is IngestAction.DUPLICATE


def test_same_fault_after_return_joins_open_incident_once() -> None:
    returned = an_incident().replace(incident_id="inc-open").with_stage_time("validated_at", A_MOMENT)

    again = decide(a_fact(5), known_incident_id="inc-open", open_incident=returned)
    copy = decide(a_fact(5), known_incident_id="inc-open", open_incident=again.incident)
    earlier = decide(a_fact(-5), known_incident_id="inc-open", open_incident=returned)

    assert [decision.action for decision in (again, copy, earlier)] == ["JOIN", "DUPLICATE", "DUPLICATE"]


def test_repeated_facts_of_an_incident_awaiting_a_person_are_duplicates() -> None:
    last = LastIncident(incident_id="inc-left", returned_at=A_MOMENT, returned_by="inc-old")

    assert decide(a_fact(5), known_incident_id="inc-left", last_incident=last).action is IngestAction.DUPLICATE
    assert decide(a_fact(5), known_incident_id="inc-old", last_incident=last).action is IngestAction.OPEN


def test_signals_about_a_replaced_node_are_ignored() -> None:
    last = LastIncident(incident_id="inc-old", is_replaced=True)

    assert decide(a_fact(9999), last_incident=last).action is IngestAction.STALE


def test_recovery_signal_opens_no_incident_and_joins_an_open_one() -> None:
    healthy = a_fact(30, kind=FactKind.RECOVERED, fault_key="")

    assert decide(healthy).action is IngestAction.IGNORED
    decision = decide(healthy, open_incident=an_incident())
    assert decision.incident
    assert decision.incident.recovered_at == healthy.observed_at
    assert decision.incident.fault_key == "hp:NvidiaErrorReboot"


def test_recovery_signal_from_before_the_fault_is_ignored() -> None:
    decision = decide(a_fact(-30, kind=FactKind.RECOVERED, fault_key=""), open_incident=an_incident())

    assert decision.incident
    assert decision.incident.recovered_at is None


# ---------------------------------------------------------------- repair progress of the provider


def test_repair_progress_joins_without_changing_fault_or_sources() -> None:
    incident = an_incident()
    progress_fact = a_fact(
        60, kind=FactKind.PROGRESS, fault_key="", code="reboot_in_progress", source="hyperpod.cluster-event"
    )

    decision = decide(progress_fact, open_incident=incident)

    assert decision.action is IngestAction.JOIN
    assert decision.incident
    assert [(repair_progress.code, repair_progress.at) for repair_progress in decision.incident.progress] == [
        ("reboot_in_progress", progress_fact.observed_at)
    ]
    assert decision.incident.replace(progress=(), evidence_count=1) == incident


def test_repair_progress_opens_no_incident() -> None:
    assert decide(a_fact(kind=FactKind.PROGRESS, fault_key="", code="provisioned")).action is IngestAction.IGNORED


def test_two_progress_signals_in_one_minute_are_two_facts() -> None:
    started, failed = (
        a_fact(kind=FactKind.PROGRESS, fault_key="", code=code)
        for code in ("replacement_started", "replacement_failed")
    )

    assert started.fact_key != failed.fact_key


def test_last_ten_progress_signals_are_kept_in_time_order() -> None:
    incident = an_incident()
    for second in reversed(range(12)):
        progress_fact = a_fact(second, kind=FactKind.PROGRESS, fault_key="", code=f"step_{second}")
        incident = with_fact(incident, progress_fact)

    assert [repair_progress.code for repair_progress in incident.progress] == [
        f"step_{second}" for second in range(2, 12)
    ]


def test_earliest_deadline_of_an_incident_applies() -> None:
    early_deadline, late_deadline = A_MOMENT + timedelta(minutes=2), A_MOMENT + timedelta(hours=1)
    incident = an_incident(a_fact(deadline_at=late_deadline))

    sooner = with_fact(incident, a_fact(1, deadline_at=early_deadline))

    assert incident.deadline_at == late_deadline
    assert sooner.deadline_at == early_deadline
    assert with_fact(sooner, a_fact(2)).deadline_at == early_deadline


# ---------------------------------------------------------------- the worst fault wins


@pytest.mark.parametrize(
    ("first_code", "other", "wins"),
    [
        ("hp:NvidiaErrorReboot", "xid:79", "xid:79"),
        ("hp:NvidiaErrorReboot", "node:not_ready", "hp:NvidiaErrorReboot"),
        ("node:not_ready", "hp:NvidiaErrorTerminate", "hp:NvidiaErrorTerminate"),
        ("hp:unknown_fault_type", "xid:13", "xid:13"),
        ("hp:NvidiaErrorReboot", "xid:4711", "hp:NvidiaErrorReboot"),
        ("hp:NvidiaErrorReboot", "xid:43", "hp:NvidiaErrorReboot"),
        ("xid:48", "xid:79", "xid:48"),
        ("xid:48", "xid:171", "xid:171"),
        ("xid:64", "xid:48", "xid:64"),
        ("xid:63", "xid:48", "xid:48"),
        ("xid:74", "sxid:12020", "sxid:12020"),
        ("gpu:count_mismatch", "xid:79", "xid:79"),
        ("xid:79", "xid:154/gpu_reset_required", "xid:79"),
        ("xid:149/nonfatal", "xid:149/fatal", "xid:149/fatal"),
    ],
)
def test_incident_names_its_worst_and_most_exact_fault(first_code: str, other: str, wins: str) -> None:
    for first, second in ((first_code, other), (other, first_code)):
        incident = with_fact(an_incident(a_fact(fault_key=first)), a_fact(1, fault_key=second))
        assert incident.fault_key == wins


def test_xid_never_lowers_the_rung_that_hyperpod_requests() -> None:
    incident = an_incident(a_fact(fault_key="hp:NvidiaErrorTerminate"))

    refined = with_fact(incident, a_fact(fault_key="xid:79"))

    assert refined.fault_key == "xid:79"
    assert ladder_of(refined) == ("replace",)


def test_later_hyperpod_request_raises_the_rung_of_an_xid() -> None:
    incident = an_incident(a_fact(fault_key="xid:79"))

    with_hyperpod_request = with_fact(incident, a_fact(fault_key="hp:NvidiaErrorTerminate"))

    assert (ladder_of(incident), ladder_of(with_hyperpod_request)) == (("reboot", "replace"), ("replace",))


# ---------------------------------------------------------------- verdict of the driver (Xid 154)


def test_late_driver_verdict_raises_the_rung_of_an_incident() -> None:
    incident = an_incident(a_fact(fault_key="xid:13"))

    with_late_verdict = with_fact(incident, a_fact(45, fault_key="xid:154/node_reboot_required"))

    assert rungs_of(incident)[0] is Rung.RESTART_JOB
    assert rungs_of(with_late_verdict) == ("reboot", "replace")


@pytest.mark.parametrize("verdict", ["none", "drain_p2p", "drain_and_reset", "gpu_reset_required"])
def test_driver_verdict_never_lowers_a_rung_or_closes_an_incident(verdict: str) -> None:
    incident = an_incident(a_fact(fault_key="xid:64"))

    after = with_fact(incident, a_fact(45, fault_key=f"xid:154/{verdict}"))

    assert rungs_of(after) == rungs_of(incident) == ("replace",)
    assert after.recovered_at is None


def test_fault_that_awaits_a_driver_verdict_takes_its_rung() -> None:
    waiting = an_incident(a_fact(fault_key="xid:145/eval154"))

    incident = with_fact(waiting, a_fact(30, fault_key="xid:154/node_reboot_required"))

    assert rungs_of(waiting)[0] is Rung.FOLLOW_XID_154
    assert rungs_of(incident) == ("reboot", "replace")


# ---------------------------------------------------------------- cleanup codes and planned work


def test_cleanup_code_opens_and_changes_no_incident() -> None:
    cleanup_fact = a_fact(5, fault_key="xid:45")
    incident = an_incident(a_fact(fault_key="node:pressure"))

    assert decide(cleanup_fact).action is IngestAction.IGNORED
    assert with_fact(incident, cleanup_fact) == incident.replace(evidence_count=2)


def test_planned_work_opens_no_incident() -> None:
    assert decide(a_fact(fault_key="hp:patching_cordon")).action is IngestAction.IGNORED


# ---------------------------------------------------------------- independent sources


def test_signals_of_one_agent_over_two_channels_are_one_source() -> None:
    incident = an_incident(a_fact(fault_key="gpu:driver_hang"))

    with_second_channel = with_fact(incident, a_fact(9, fault_key="gpu:driver_hang", source="hyperpod.node-labels"))
    with_other_agent = with_fact(with_second_channel, a_fact(9, fault_key="xid:31", source="kubernetes.node"))

    assert with_second_channel.independent_sources == ("hyperpod",)
    assert with_other_agent.independent_sources == ("hyperpod", "kubernetes")


def test_fault_that_needs_no_action_confirms_no_other_fault() -> None:
    incident = an_incident(a_fact(fault_key="gpu:driver_hang"))

    after = with_fact(incident, a_fact(9, fault_key="eks:IODelays", source="kubernetes.node"))

    assert after.independent_sources == ("hyperpod",)


def test_each_site_detector_is_a_separate_source() -> None:
    incident = an_incident(a_fact(fault_key="gpu:driver_hang", source="site:prober"))

    after = with_fact(incident, a_fact(fault_key="gpu:driver_hang", source="site:ranker"))

    assert after.independent_sources == ("site:prober", "site:ranker")


def test_new_incident_counts_a_recent_source_of_the_settled_one() -> None:
    doubtful = a_fact(fault_key="gpu:driver_hang")
    location = f"slot/{AFFECTED.slot}"
    before = decide(doubtful).histories[location]
    second = a_fact(300, fault_key="gpu:driver_hang", source="site:prober")

    soon = decide(second, histories={location: before})
    much_later = decide(a_fact(700, fault_key="gpu:driver_hang", source="site:prober"), histories={location: before})
    returned = decide(
        second, histories={location: before}, last_incident=LastIncident(incident_id="i", returned_at=A_MOMENT)
    )

    assert soon.incident
    assert soon.incident.independent_sources == ("hyperpod", "site:prober")
    assert soon.incident.first_signal_at == A_MOMENT
    for decision in (much_later, returned):
        assert decision.incident
        assert decision.incident.independent_sources == ("site:prober",)


# ---------------------------------------------------------------- partial recovery


def test_node_with_two_faults_recovers_when_both_have_ended() -> None:
    incident = an_incident(a_fact(fault_key="eks:ForkFailedOutOfPIDs", source="kubernetes.node"))
    incident = with_fact(incident, a_fact(5, fault_key="xid:79", source="kubernetes.node"))
    facts = [
        a_fact(60, kind=FactKind.RECOVERED, fault_key=key, source="kubernetes.node")
        for key in ("eks:ForkFailedOutOfPIDs", "xid:79")
    ]

    partly = with_fact(incident, facts[0])
    wholly = with_fact(partly, facts[1])

    assert partly.recovered_at is None
    assert wholly.recovered_at == facts[1].observed_at


def test_recovery_of_one_agent_does_not_clear_another() -> None:
    incident = an_incident(a_fact(fault_key="disk:read_only", source="site:prober"))
    incident = with_fact(incident, a_fact(5))

    after = with_fact(incident, a_fact(60, kind=FactKind.RECOVERED, fault_key=""))

    assert after.recovered_at is None


def test_fault_that_returns_after_recovery_counts_again() -> None:
    incident = with_fact(an_incident(), a_fact(60, kind=FactKind.RECOVERED, fault_key=""))

    with_returned_fault = with_fact(incident, a_fact(70))

    assert incident.recovered_at
    assert with_returned_fault.recovered_at is None


# ---------------------------------------------------------------- any order, repeated signals

FAULTS = st.sampled_from(sorted(default_catalogue()))
SOURCES = st.sampled_from(["hyperpod.node-health", "hyperpod.node-labels", "kubernetes.node", "site:prober"])
FACTS = st.builds(
    lambda key, source, second, kind, gpu: a_fact(
        second, fault_key=key if kind is FactKind.FAULT else "", source=source, kind=kind, gpu=gpu
    ),
    FAULTS,
    SOURCES,
    st.integers(0, 900),
    st.sampled_from([FactKind.FAULT, FactKind.FAULT, FactKind.FAULT, FactKind.RECOVERED]),
    st.sampled_from(["", "GPU-1", "GPU-2"]),
)
_COMPARED_FIELDS = (
    *("fault_key", "severity", "min_rung", "independent_sources", "sources", "signals", "cleared_faults"),
    *("first_signal_at", "last_signal_at", "recovered_at", "recurrences"),
)


def incident_after(facts: list[NodeFact]) -> dict[str, Any]:
    """Return the incident after all facts; the first fact that opens an incident creates it."""
    evidence = [fact for fact in facts if fact.kind is FactKind.FAULT and decide(fact).action is IngestAction.OPEN]
    incident = an_incident(evidence[0])
    for fact in (fact for fact in facts if fact is not evidence[0]):
        incident = with_fact(incident, fact)
    return {name: getattr(incident, name) for name in _COMPARED_FIELDS}


@st.composite
def draw_shuffled_facts(draw: st.DrawFn) -> tuple[list[NodeFact], list[NodeFact]]:
    facts = [a_fact(draw(st.integers(0, 900))), *draw(st.lists(FACTS, max_size=7))]
    return facts, draw(st.permutations(facts))


@given(draw_shuffled_facts())
def test_order_of_signals_does_not_change_an_incident(orders: tuple[list[NodeFact], list[NodeFact]]) -> None:
    ordered, reordered = orders

    assert incident_after(ordered) == incident_after(reordered)


@given(st.lists(FACTS, max_size=6))
def test_repeated_signals_do_not_change_an_incident(facts: list[NodeFact]) -> None:
    facts = [a_fact(), *facts]

    assert incident_after(facts) == incident_after([*facts, *facts])


@given(st.lists(FAULTS, min_size=1, max_size=6))
def test_severity_never_falls_and_rungs_never_weaken(keys: list[str]) -> None:
    incident, strength = an_incident(), Rung.REBOOT.strength
    for key in keys:
        fault = default_catalogue().look_up(key)
        after = with_fact(incident, a_fact(fault_key=key))
        if fault.acts_alone and fault.ladder[0] is not Rung.IGNORE:
            strength = max(strength, fault.ladder[0].strength)
            assert after.severity.rank >= fault.severity.rank
        assert after.severity.rank >= incident.severity.rank
        assert rungs_of(after)[0].strength >= strength
        incident = after


def test_confirmed_fault_takes_the_lead_over_an_unconfirmed_fault() -> None:
    incident = an_incident(a_fact(fault_key="gpu:driver_hang"))

    after = with_fact(incident, a_fact(5, fault_key="xid:31"))

    assert (after.fault_key, after.severity) == ("xid:31", Severity.MAJOR)


@given(
    st.lists(FAULTS, min_size=1, max_size=5), st.sampled_from([key for key in default_catalogue() if "xid:154/" in key])
)
def test_verdict_never_lowers_the_rung_of_the_codes(keys: list[str], verdict: str) -> None:
    incident = an_incident()
    for key in keys:
        incident = with_fact(incident, a_fact(fault_key=key))

    after = with_fact(incident, a_fact(45, fault_key=verdict))

    assert rungs_of(after)[0].strength >= rungs_of(incident)[0].strength
    assert after.severity.rank >= incident.severity.rank


def test_incident_with_alternating_faults_keeps_its_first_signal_time() -> None:
    incident = an_incident(a_fact(fault_key="eks:NvidiaXIDError"))
    for minute in range(1, 30):
        key = "xid:31" if minute % 2 else "eks:DCGMHealthCodeFatal"
        incident = with_fact(incident, a_fact(60 * minute, fault_key=key))

    assert incident.first_signal_at == A_MOMENT
    assert incident.last_signal_at == A_MOMENT + timedelta(minutes=29)


# ---------------------------------------------------------------- drills


DRILL_FACTS = [
    a_fact(5, fault_key="hp:NvidiaErrorTerminate", is_drill=True),
    a_fact(5, kind=FactKind.RECOVERED, fault_key="", is_drill=True),
    a_fact(5, kind=FactKind.PROGRESS, fault_key="", code="replacement_failed", is_drill=True),
    a_fact(5, fault_key="ec2:spot_interruption", deadline_at=A_MOMENT, is_drill=True),
]


@pytest.mark.parametrize("drill", DRILL_FACTS, ids=lambda fact: f"{fact.kind} {fact.fault_key}")
def test_drill_fact_changes_no_real_incident(drill: NodeFact) -> None:
    incident = an_incident()

    assert with_fact(incident, drill) == incident


@pytest.mark.parametrize("fact", [a_fact(5), a_fact(5, kind=FactKind.RECOVERED, fault_key="")])
def test_real_fact_changes_no_incident_of_a_drill(fact: NodeFact) -> None:
    drill = an_incident(a_fact(is_drill=True))

    assert with_fact(drill, fact) == drill


@pytest.mark.parametrize("is_drill", [True, False])
def test_drill_and_real_incident_open_side_by_side(is_drill: bool) -> None:
    other_incident = an_incident(a_fact(is_drill=not is_drill))

    decision = decide(a_fact(5, is_drill=is_drill), open_incident=other_incident)

    assert decision.action is IngestAction.OPEN
    assert decision.incident
    assert decision.incident.is_drill is is_drill


def test_fact_of_a_drill_has_a_separate_key() -> None:
    for fact in (a_fact(), a_fact(kind=FactKind.PROGRESS, code="reboot_in_progress"), a_fact(occurrence="boot-1")):
        assert fact.replace(is_drill=True).fact_key != fact.fact_key


@pytest.mark.parametrize(
    ("seconds", "back", "repairs", "action"),
    [
        (30, None, ("reboot",), IngestAction.EXPECTED),
        (30, 60, ("reboot",), IngestAction.EXPECTED),
        (5, None, ("reboot",), IngestAction.JOIN),
        (90, 60, ("reboot",), IngestAction.JOIN),
        (30, None, (), IngestAction.JOIN),
    ],
    ids=["it is down for us", "it was", "before the call", "after it was back", "HyperPod's own repair"],
)
def test_not_ready_after_a_reboot_by_evenkeel_is_no_evidence(
    seconds: float, back: float | None, repairs: tuple[str, ...], action: IngestAction
) -> None:
    stages = an_incident().stages.replace(
        repair_requested_at=A_MOMENT + timedelta(seconds=10),
        node_back_at=A_MOMENT + timedelta(seconds=back) if back else None,
    )
    current = an_incident().replace(repairs=repairs, stages=stages)

    decision = decide(a_fact(seconds, fault_key="node:not_ready", source="kubernetes.node"), open_incident=current)

    assert decision.action is action
