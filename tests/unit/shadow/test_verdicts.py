"""The verdict on a decision in mode `observe`, from the later events of its node."""

from datetime import timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.shadow.report import summarise_cases
from evenkeel.domain.shadow.shadow_cases import Actor, NodeEvent, NodeEventKind, group_into_cases
from evenkeel.domain.shadow.verdicts import Cause, JudgedCase, ShadowTimes, Verdict, judge_case
from tests.examples import examples
from tests.unit.shadow.shadow_cases import HOUR, a_case, a_decision, an_event, at

K = NodeEventKind
TERMS = ShadowTimes(window_hours=24)
WINDOW = 24 * HOUR


def verdicts_of(*events: NodeEvent, known_until: float = 1000 * HOUR, **decision: object) -> JudgedCase:
    return judge_case(a_case(*events, known_until=known_until, **decision), TERMS)


# ---------------------------------------------------------------- an owner acted


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        (0, Verdict.SAME),
        (60, Verdict.SAME),
        (-60, Verdict.SAME),
        (61, Verdict.EARLIER),
        (WINDOW, Verdict.EARLIER),
        (-61, Verdict.LATER),
        (-905, Verdict.LATER),
    ],
)
def test_time_of_the_owners_action_decides_the_verdict(seconds: float, verdict: Verdict) -> None:
    case = verdicts_of(an_event(K.REPLACED, seconds))

    assert (case.cordon.verdict, case.cordon.seconds) == (verdict, seconds)
    assert (case.repair.verdict, case.repair.seconds) == (verdict, seconds)


@pytest.mark.parametrize("seconds", [-906, WINDOW + 1])
def test_owners_action_outside_the_window_is_not_compared(seconds: float) -> None:
    case = verdicts_of(an_event(K.REPLACED, seconds))

    assert case.cordon.verdict is case.repair.verdict is Verdict.UNKNOWN


def test_cordon_decision_is_compared_with_the_owners_first_action() -> None:
    case = verdicts_of(an_event(K.CORDONED, 300, Actor.PERSON), an_event(K.REPLACED, 900))

    assert (case.cordon.actor, case.cordon.seconds) == (Actor.PERSON, 300)
    assert (case.repair.actor, case.repair.seconds) == (Actor.HYPERPOD, 900)


def test_decision_to_cordon_an_already_cordoned_node_is_later() -> None:
    still_cordoned = verdicts_of(an_event(K.CORDONED, -7200, Actor.PERSON))
    removed = verdicts_of(an_event(K.CORDONED, -7200, Actor.PERSON), an_event(K.UNCORDONED, -3600, Actor.PERSON))
    untimed = verdicts_of(owner="PERSON", repair="")

    assert (still_cordoned.cordon.verdict, still_cordoned.cordon.seconds) == (Verdict.LATER, -7200)
    assert removed.cordon.verdict is Verdict.UNKNOWN
    assert (untimed.cordon.verdict, untimed.cordon.seconds) == (Verdict.LATER, None)


def test_second_record_of_an_action_can_name_its_actor() -> None:
    node_event = an_event(K.REPLACED, 600, Actor.UNKNOWN)

    soon_after = verdicts_of(node_event, an_event(K.REPLACED, 640)).repair
    too_late = verdicts_of(node_event, an_event(K.REPLACED, 700)).repair

    assert (soon_after.actor, soon_after.seconds, soon_after.evidence) == (Actor.HYPERPOD, 600, ("REPLACED at 640",))
    assert (too_late.actor, too_late.seconds) == (Actor.UNKNOWN, 600)


def test_removed_node_counts_as_replaced() -> None:
    assert verdicts_of(an_event(K.REMOVED, 600, Actor.KARPENTER)).repair.verdict is Verdict.EARLIER


def test_reboot_before_a_replacement_is_not_a_replacement() -> None:
    case = verdicts_of(an_event(K.REBOOTED, 60), an_event(K.REPLACED, 7200))

    assert (case.repair.verdict, case.repair.seconds) == (Verdict.EARLIER, 7200)


def test_decision_for_another_first_repair_is_different() -> None:
    replaced = verdicts_of(an_event(K.REPLACED, 600), repair="reboot")
    rebooted = verdicts_of(an_event(K.REBOOTED, 600), repair="reboot")
    checked = verdicts_of(an_event(K.REBOOTED, 600), repair="diagnose")

    assert [case.repair.verdict for case in (replaced, rebooted, checked)] == [
        Verdict.DIFFERENT,
        Verdict.EARLIER,
        Verdict.DIFFERENT,
    ]


def test_repair_that_evenkeel_leaves_to_the_owner_is_not_judged() -> None:
    case = verdicts_of(an_event(K.REPLACED, 600), repair="", owner="HYPERPOD")

    assert case.cordon.verdict is Verdict.EARLIER
    assert case.repair.verdict is Verdict.NOT_DECIDED


def test_owners_action_without_a_decision_to_act_is_missed() -> None:
    case = verdicts_of(an_event(K.REPLACED, 600), cordons=False, repair="")

    assert case.cordon.verdict is case.repair.verdict is Verdict.MISSED


# ---------------------------------------------------------------- no owner acted


def test_decision_is_wrong_if_the_node_worked_without_repair() -> None:
    case = verdicts_of(an_event(K.RECOVERED, 600), an_event(K.IN_SERVICE, 600 + WINDOW))

    assert case.cordon.verdict is case.repair.verdict is Verdict.WOULD_HAVE_BEEN_WRONG
    assert case.cordon.evidence == ("RECOVERED at 600", f"IN_SERVICE at {600 + WINDOW}")


def test_node_in_service_before_the_window_ends_proves_nothing() -> None:
    case = verdicts_of(an_event(K.RECOVERED, 600), an_event(K.IN_SERVICE, 599 + WINDOW))

    assert (case.cordon.verdict, case.cordon.cause) == (Verdict.UNKNOWN, Cause.NOTHING_KNOWN)


def test_unfinished_comparison_window_states_its_end() -> None:
    case = verdicts_of(an_event(K.RECOVERED, 600), known_until=WINDOW)

    assert (case.cordon.verdict, case.cordon.cause) == (Verdict.UNKNOWN, Cause.WINDOW_OPEN)
    assert case.cordon.window_open_until == at(600 + WINDOW)


def test_comparison_window_restarts_after_each_new_fault() -> None:
    case = verdicts_of(
        an_event(K.RECOVERED, 600),
        an_event(K.FAULT, HOUR),
        an_event(K.RECOVERED, 2 * HOUR),
        an_event(K.IN_SERVICE, 600 + WINDOW),
    )

    assert (case.cordon.verdict, case.cordon.cause) == (Verdict.UNKNOWN, Cause.NOTHING_KNOWN)


def test_verdict_is_unknown_if_the_fault_recurs() -> None:
    case = verdicts_of(an_event(K.RECOVERED, HOUR), an_event(K.FAULT, WINDOW + 600), an_event(K.IN_SERVICE, 100 * HOUR))

    assert (case.cordon.verdict, case.cordon.cause) == (Verdict.UNKNOWN, Cause.FAULT_RECURRED)


def test_verdict_is_unknown_if_the_owner_acts_after_the_window() -> None:
    case = verdicts_of(
        an_event(K.RECOVERED, HOUR), an_event(K.REPLACED, WINDOW + 600), an_event(K.IN_SERVICE, 100 * HOUR)
    )

    assert (case.cordon.verdict, case.cordon.cause) == (Verdict.UNKNOWN, Cause.ACTED_TOO_SOON)


def test_decision_to_replace_is_wrong_if_a_reboot_was_enough() -> None:
    case = verdicts_of(an_event(K.REBOOTED, 600), an_event(K.IN_SERVICE, 600 + WINDOW))

    assert case.cordon.verdict is Verdict.EARLIER
    assert case.repair.verdict is Verdict.WOULD_HAVE_BEEN_WRONG
    assert case.repair.reason.startswith("HyperPod rebooted the node at ")


def test_verdict_is_same_if_nobody_acted_on_a_healthy_node() -> None:
    case = verdicts_of(an_event(K.IN_SERVICE, WINDOW), cordons=False, repair="")

    assert case.cordon.verdict is case.repair.verdict is Verdict.SAME


# ---------------------------------------------------------------- properties

KINDS = st.sampled_from(list(K))
EVENTS = st.lists(
    st.builds(an_event, KINDS, st.integers(-2 * HOUR, 60 * HOUR), st.sampled_from(list(Actor))), max_size=8
)
DECISIONS = st.sampled_from(
    [
        {"cordons": True, "repair": "replace"},
        {"cordons": True, "repair": "reboot"},
        {"cordons": True, "repair": "diagnose"},
        {"cordons": True, "repair": "", "owner": "HYPERPOD"},
        {"cordons": False, "repair": ""},
    ]
)
UNTIL = st.integers(0, 80 * HOUR)


@settings(max_examples=examples(500))
@given(EVENTS, DECISIONS, UNTIL, st.randoms(use_true_random=False))
def test_verdicts_do_not_depend_on_order_or_copies_of_events(
    events: list[NodeEvent], decision: dict[str, object], until: int, chance: Random
) -> None:
    shuffled = [*events, *events]
    chance.shuffle(shuffled)

    first = verdicts_of(*events, known_until=until, **decision)
    second = verdicts_of(*shuffled, known_until=until, **decision)

    assert (first.cordon, first.repair) == (second.cordon, second.repair)


@settings(max_examples=examples(500))
@given(EVENTS, DECISIONS, UNTIL)
def test_wrong_verdict_requires_a_node_that_worked_without_the_action(
    events: list[NodeEvent], decision: dict[str, object], until: int
) -> None:
    case = verdicts_of(*events, known_until=until, **decision)
    acts = [event for event in events if event.kind in (K.CORDONED, K.REBOOTED, K.REPLACED, K.REMOVED)]
    within = [act for act in acts if at(-905) <= act.at <= min(at(WINDOW), at(until))]

    if case.cordon.verdict is Verdict.WOULD_HAVE_BEEN_WRONG:
        assert not within
    for judgement in (case.cordon, case.repair):
        if judgement.verdict is Verdict.WOULD_HAVE_BEEN_WRONG:
            proof = [event.at for event in events if event.kind is K.IN_SERVICE and at(WINDOW) <= event.at <= at(until)]
            assert proof
            assert decision["cordons"]


@settings(max_examples=examples(500))
@given(EVENTS, DECISIONS, UNTIL)
def test_verdict_agrees_with_the_seconds_of_the_owners_action(
    events: list[NodeEvent], decision: dict[str, object], until: int
) -> None:
    case = verdicts_of(*events, known_until=until, **decision)

    for judgement in (case.cordon, case.repair):
        seconds = judgement.seconds
        assert (judgement.cause is not None) == (judgement.verdict is Verdict.UNKNOWN)
        assert (judgement.window_open_until is not None) == (judgement.cause is Cause.WINDOW_OPEN)
        match judgement.verdict:
            case Verdict.EARLIER:
                assert seconds is not None
                assert 60 < seconds <= WINDOW
            case Verdict.LATER:
                assert seconds is not None
                assert seconds < -60
            case Verdict.UNKNOWN:
                assert seconds is None
            case Verdict.MISSED:
                assert not decision["cordons"]
            case _:
                pass


@settings(max_examples=examples(300))
@given(EVENTS, DECISIONS, UNTIL, UNTIL)
def test_later_events_never_change_a_known_cordon_verdict(
    events: list[NodeEvent], decision: dict[str, object], until: int, more: int
) -> None:
    before = verdicts_of(*events, known_until=until, **decision).cordon
    after = verdicts_of(*events, known_until=until + more, **decision).cordon

    if before.verdict is not Verdict.UNKNOWN:
        assert (after.verdict, after.happened_at) == (before.verdict, before.happened_at)


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(EVENTS, DECISIONS, UNTIL), max_size=12))
def test_summary_counts_each_case_once(cases: list[tuple[list[NodeEvent], dict[str, object], int]]) -> None:
    judged_cases = [verdicts_of(*events, known_until=until, **decision) for events, decision, until in cases]

    summary = summarise_cases(judged_cases, TERMS)

    assert summary.cases == len(cases)
    assert sum(summary.cordons.values()) + sum(summary.no_cordons.values()) == len(cases)
    assert sum(summary.repairs.values()) == len(cases)
    rate = summary.false_cordons
    assert rate.of + rate.unknown == sum(summary.cordons.values())
    assert rate.count == summary.cordons.get(Verdict.WOULD_HAVE_BEEN_WRONG, 0)
    assert summary.cordons.get(Verdict.UNKNOWN, 0) <= rate.unknown
    assert rate.low <= (rate.share or rate.low) <= rate.high
    assert sum(fault.cases for fault in summary.faults) == len(cases)
    assert sum(fault.false_cordons.count for fault in summary.faults) == rate.count


# ---------------------------------------------------------------- cases


def test_incidents_of_a_node_within_a_window_are_one_case() -> None:
    decisions = [
        a_decision(incident_id=f"inc-{number}", decided_at=at(hours * HOUR))
        for number, hours in enumerate((0, 1, 24, 25))
    ]

    cases = group_into_cases(decisions, timedelta(hours=24))

    assert [(case.incident_id, len(every)) for case, every in cases] == [("inc-0", 3), ("inc-3", 1)]


def test_only_the_first_decision_to_act_is_judged() -> None:
    watched = a_decision(incident_id="inc-1", cordons=False, repair="")
    acted = a_decision(incident_id="inc-2", decided_at=at(HOUR), repair="reboot")
    later_decision = a_decision(incident_id="inc-3", decided_at=at(2 * HOUR), repair="replace")

    ((judged_one, every),) = group_into_cases([later_decision, watched, acted], timedelta(hours=24))

    assert judged_one == acted
    assert every == (watched, acted, later_decision)


def test_incidents_of_different_nodes_are_separate_cases() -> None:
    cases = group_into_cases([a_decision(), a_decision(incident_id="inc-2", node="eks/i-2/1")], timedelta(hours=24))

    assert len(cases) == 2
