"""Earlier faults count by key, within their window, once for each incident and each series of signals."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.health.classification import ClassifiedFact, IncidentFault
from evenkeel.domain.health.faults import RecurKey, Rung, Severity, default_catalogue
from evenkeel.domain.health.incident_updates import with_fact
from evenkeel.domain.health.incidents import AffectedNode, FactKind, Incident, NodeFact, Recurrence
from evenkeel.domain.health.ingestion import IngestAction, IngestDecision, NodeHistory, decide_ingestion
from evenkeel.domain.health.recurrence import FaultHistory, find_recurrence, history_keys, with_occurrence
from evenkeel.domain.nodes import NodeLife
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.system import A_MOMENT

LIFE = NodeLife(cluster=CLUSTER, instance_id=instance_id(1), launched_at=A_MOMENT - timedelta(days=90))
NEXT_LIFE = NodeLife(cluster=CLUSTER, instance_id=instance_id(2), launched_at=A_MOMENT - timedelta(days=1))
CATALOGUE = default_catalogue()
AFFECTED = AffectedNode(life=LIFE, slot=f"{CLUSTER}/seat-1", pool="p5-workers")
LOCATION = f"slot/{AFFECTED.slot}"


def a_fact(hours: float = 0, **changes: Any) -> NodeFact:
    facts: dict[str, Any] = {
        "kind": FactKind.FAULT,
        "source": "kubernetes.node",
        "instance_id": LIFE.instance_id,
        "fault_key": "xid:79",
        "observed_at": A_MOMENT + timedelta(hours=hours),
        "envelope_id": "e-1",
    }
    return NodeFact.model_validate({**facts, **changes})


def a_history(*hours: float, affected: AffectedNode = AFFECTED, **changes: Any) -> FaultHistory:
    """Return a history with an incident at each of these hours."""
    history = FaultHistory()
    for number, hour in enumerate(hours):
        history = with_occurrence(history, a_fact(hour, **changes), affected, f"inc-{number}")
    return history


def recurrence_of(
    fact: NodeFact, history: FaultHistory, affected: AffectedNode = AFFECTED, incident_id: str = "inc-new"
) -> Recurrence | None:
    return find_recurrence(ClassifiedFact.of(fact, affected, CATALOGUE), [history], incident_id=incident_id)


def decide(
    fact: NodeFact,
    history: FaultHistory | None = None,
    affected: AffectedNode = AFFECTED,
    new_id: str = "inc-new",
    **records: Any,
) -> IngestDecision:
    histories = {LOCATION: history} if history else {}
    report = ClassifiedFact.of(fact, affected, CATALOGUE)
    return decide_ingestion(report, NodeHistory(histories=histories, **records), CATALOGUE, new_id=new_id, now=A_MOMENT)


def rungs_of(incident: Incident) -> tuple[Rung, ...]:
    return IncidentFault.of(incident, CATALOGUE).rungs


# ---------------------------------------------------------------- counting


def test_second_fault_in_the_window_starts_on_the_next_rung() -> None:
    recurrence = recurrence_of(a_fact(48), a_history(0))

    assert recurrence
    assert (recurrence.rung, recurrence.count) == (Rung.REPLACE, 2)
    assert "occurred 2 times within 720 h on this device" in recurrence.reason


@pytest.mark.parametrize(
    ("key", "before", "rung"),
    [
        ("xid:4711", (0, 4), Rung.ASK_PERSON),
        ("node:oom_killer", (0,), Rung.ASK_PERSON),
        ("xid:79", (0, 4), Rung.REPLACE),
        ("xid:64", (0,), Rung.REPLACE),
    ],
)
def test_person_decides_after_the_last_rung_unless_node_is_quarantined(
    key: str, before: tuple[float, ...], rung: Rung
) -> None:
    recurrence = recurrence_of(a_fact(9, fault_key=key), a_history(*before, fault_key=key))

    assert recurrence
    assert recurrence.rung is rung


def test_faults_before_the_window_do_not_count() -> None:
    assert recurrence_of(a_fact(721), a_history(0)) is None


def test_signals_of_one_incident_count_once() -> None:
    history = a_history(0)
    for minute in range(60):
        history = with_occurrence(history, a_fact(minute / 60), AFFECTED, "inc-0")

    assert len(history.occurrences) == 1
    assert recurrence_of(a_fact(1), history, incident_id="inc-0") is None


def test_incidents_of_one_fault_series_count_once() -> None:
    lasting_fault = "sxid:11012"
    history = a_history(*(minute / 60 for minute in range(0, 60, 2)), fault_key=lasting_fault)

    assert recurrence_of(a_fact(1, fault_key=lasting_fault), history) is None


def test_configured_number_of_fault_series_raises_the_rung() -> None:
    lasting_fault = "sxid:11012"

    nine_series, ten_series = (
        a_history(*(index / 10 for index in range(count)), fault_key=lasting_fault) for count in (8, 9)
    )

    assert recurrence_of(a_fact(1, fault_key=lasting_fault), nine_series) is None
    recurrence = recurrence_of(a_fact(1, fault_key=lasting_fault), ten_series)
    assert recurrence
    assert recurrence.rung is Rung.REBOOT


def test_recurring_fault_of_severity_info_alerts_no_person() -> None:
    key = "eks:IODelays"

    assert default_catalogue()[key].severity is Severity.INFO
    assert recurrence_of(a_fact(9, fault_key=key), a_history(*range(8), fault_key=key)) is None


def test_fault_without_a_recurrence_rule_never_recurs() -> None:
    assert (
        recurrence_of(a_fact(1, fault_key="ec2:spot_interruption"), a_history(0, fault_key="ec2:spot_interruption"))
        is None
    )


# ---------------------------------------------------------------- location of the count: slot, node or job


@pytest.mark.parametrize(
    ("key", "recur_key", "before", "now", "counts"),
    [
        ("xid:79", RecurKey.GPU, {"gpu": "GPU-1"}, {"gpu": "GPU-1"}, True),
        ("xid:79", RecurKey.GPU, {"gpu": "GPU-1"}, {"gpu": "GPU-2"}, False),
        ("xid:79", RecurKey.GPU, {"gpu": ""}, {"gpu": "GPU-2"}, True),
        ("xid:74", RecurKey.LINK, {"gpu": "GPU-1", "link": "4"}, {"gpu": "GPU-1", "link": "4"}, True),
        ("xid:74", RecurKey.LINK, {"gpu": "GPU-1", "link": "4"}, {"gpu": "GPU-1", "link": "5"}, False),
        ("xid:74", RecurKey.LINK, {"gpu": "GPU-1", "link": "4"}, {"gpu": "GPU-2", "link": "4"}, False),
        ("node:not_ready", RecurKey.NODE, {}, {}, True),
    ],
)
def test_recurrence_counts_only_faults_of_equal_key(
    key: str, recur_key: RecurKey, before: dict[str, Any], now: dict[str, Any], counts: bool
) -> None:
    assert default_catalogue()[key].recur_key is recur_key

    recurrence = recurrence_of(a_fact(1, fault_key=key, **now), a_history(0, fault_key=key, **before))

    assert (recurrence is not None) == counts


def test_replacement_resets_fault_counts_except_those_of_the_slot() -> None:
    affected = AFFECTED.replace(life=NEXT_LIFE)

    assert recurrence_of(a_fact(1), a_history(0), affected) is None
    assert recurrence_of(a_fact(1, fault_key="xid:64"), a_history(0, fault_key="xid:64"), affected)


def test_fault_that_follows_a_job_recurs_on_another_node() -> None:
    hang_fault, first_node = "train:hang", AFFECTED.replace(job_ids=("job-1",))
    second_node = AffectedNode(life=NEXT_LIFE, slot=f"{CLUSTER}/seat-2", job_ids=("job-1", "job-2"))

    before = a_history(0, affected=first_node, fault_key=hang_fault)

    assert history_keys(default_catalogue()[hang_fault], second_node) == (
        f"slot/{second_node.slot}",
        "job/job-1",
        "job/job-2",
    )
    recurrence = recurrence_of(a_fact(1, fault_key=hang_fault), before, second_node)
    assert recurrence
    assert recurrence.rung is Rung.DIAGNOSE
    assert recurrence_of(a_fact(1, fault_key=hang_fault), before, second_node.replace(job_ids=("job-2",))) is None


def test_node_that_overheats_under_two_jobs_is_replaced() -> None:
    fault_key = "thermal:slowdown"
    first = a_history(0, 1, 2, affected=AFFECTED.replace(job_ids=("job-1",)), fault_key=fault_key)

    assert recurrence_of(a_fact(5, fault_key=fault_key), first, AFFECTED.replace(job_ids=("job-1",))) is None
    assert recurrence_of(a_fact(5, fault_key=fault_key), a_history(0, 1, fault_key=fault_key)) is None
    recurrence = recurrence_of(a_fact(5, fault_key=fault_key), first, AFFECTED.replace(job_ids=("job-2",)))
    assert recurrence
    assert recurrence.rung is Rung.REPLACE


# ---------------------------------------------------------------- incidents of recurring faults


def test_incident_of_a_recurring_fault_starts_on_a_higher_rung() -> None:
    decision = decide(a_fact(24), a_history(0))

    assert decision.incident
    assert rungs_of(decision.incident) == ("replace",)
    assert "occurred 2 times" in decision.incident.min_rung_reason
    assert len(decision.histories[LOCATION].occurrences) == 2


def test_fault_after_return_counts_as_next_incident() -> None:
    first = decide(a_fact())
    assert first.incident
    returned = first.incident.with_stage_time("validated_at", A_MOMENT + timedelta(hours=1))

    late = decide(a_fact(0.5), first.histories[LOCATION], open_incident=returned)
    second = decide(a_fact(2), late.histories[LOCATION], new_id="inc-next", open_incident=late.incident)
    again = decide(a_fact(3), second.histories[LOCATION], new_id="inc-other", open_incident=second.incident)

    assert again.incident
    occurrences = [(entry.incident_id, entry.last_at) for entry in again.histories[LOCATION].occurrences]
    assert occurrences == [
        ("inc-new", A_MOMENT + timedelta(hours=0.5)),
        ("inc-next", A_MOMENT + timedelta(hours=3)),
    ]
    assert [recurrence.count for recurrence in again.incident.recurrences] == [2]


def test_repeated_minor_fault_does_not_block_a_major_repair() -> None:
    incident = decide(a_fact(1, fault_key="xid:64")).incident
    assert incident
    unknown = a_history(*range(-5, 0), fault_key="xid:4711")

    report = ClassifiedFact.of(a_fact(1, fault_key="xid:4711"), AFFECTED, CATALOGUE)
    after = with_fact(incident, report, {LOCATION: unknown}, CATALOGUE)

    assert after.recurrences
    assert rungs_of(after) == ("replace",)


def test_recurrence_confirms_only_faults_that_need_no_second_source() -> None:
    for key, is_confirmed in (("thermal:slowdown", True), ("gpu:driver_hang", False)):
        nodes = [AFFECTED.replace(job_ids=(f"job-{number}",)) for number in range(2)]
        history = a_history(0, fault_key=key, affected=nodes[0])
        incident = decide(a_fact(9, fault_key=key), history, nodes[1]).incident
        assert incident
        assert incident.recurrences
        assert (len(incident.independent_sources) > 1) == is_confirmed


# ---------------------------------------------------------------- faults that last


def test_repeatedly_reported_code_is_one_incident_and_one_occurrence() -> None:
    lasting_fault = "sxid:11012"
    history = a_history(0, fault_key=lasting_fault)
    for minute in range(2, 60, 2):
        decision = decide(a_fact(minute / 60, fault_key=lasting_fault), history)
        assert decision.action is IngestAction.IGNORED
        history = decision.histories[LOCATION]

    assert [occurrence.incident_id for occurrence in history.occurrences] == ["inc-0"]
    assert history.occurrences[0].last_at == A_MOMENT + timedelta(minutes=58)


@pytest.mark.parametrize(
    ("fact", "affected"),
    [
        (a_fact(0.1, fault_key="sxid:11012"), AFFECTED),  # after six minutes of silence
        (a_fact(0.01, fault_key="sxid:11012", source="site:prober"), AFFECTED),  # another source
        (a_fact(0.01, fault_key="sxid:11012", link="9"), AFFECTED),  # another link
        (a_fact(0.01, fault_key="sxid:11012"), AFFECTED.replace(job_ids=("job-9",))),  # another job on it
        (a_fact(0.01, fault_key="xid:79"), AFFECTED),  # another fault
    ],
)
def test_stronger_signal_of_a_fault_series_opens_an_incident(fact: NodeFact, affected: AffectedNode) -> None:
    assert decide(fact, a_history(0, fault_key="sxid:11012"), affected).action is IngestAction.OPEN


def test_actionable_fault_never_joins_an_earlier_series() -> None:
    assert decide(a_fact(0.01), a_history(0)).action is IngestAction.OPEN


def test_fault_code_repeated_for_hours_opens_another_incident() -> None:
    lasting_fault = "sxid:11012"
    history = a_history(0, fault_key=lasting_fault)
    for minute in range(2, 200, 2):
        history = with_occurrence(history, a_fact(minute / 60, fault_key=lasting_fault), AFFECTED, "inc-0")

    assert decide(a_fact(200 / 60, fault_key=lasting_fault), history).action is IngestAction.OPEN


# ---------------------------------------------------------------- stored history


@given(st.permutations([0.0, 0.01, 0.5, 24.0, 48.0]))
def test_order_of_signals_does_not_change_recurrence(hours: list[float]) -> None:
    def history_in_order(order: list[float]) -> FaultHistory:
        history = FaultHistory()
        for hour in order:
            history = with_occurrence(history, a_fact(hour), AFFECTED, f"inc-{int(hour)}")
        return history

    assert history_in_order(hours) == history_in_order(sorted(hours)) == history_in_order([*hours, *hours])


def test_fault_history_is_bounded_and_drops_old_entries() -> None:
    long_ago = a_history(*range(100), fault_key="node:pressure")

    after_window = with_occurrence(long_ago, a_fact(99 + 720), AFFECTED, "inc-last")

    assert len(long_ago.occurrences) == 60
    assert [occurrence.incident_id for occurrence in after_window.occurrences] == ["inc-last"]
