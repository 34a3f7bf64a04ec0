"""An interrupted job with quota but without free nodes preempts only jobs that its queue may preempt."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision
from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.resources import NONE
from tests.examples import examples
from tests.unit.scheduling.builders import a_request, at
from tests.unit.scheduling.test_sharing import a_charge, a_setup, a_team, capacities, decide_pending


def an_interrupted_job(nodes: int = 1, **changes: Any) -> AdmissionRequest:
    facts = {"team": "red", "is_recovery": True, "resumes_by_preemption": True, "attempts": 1, "priority": 10}
    return a_request(90, nodes=nodes, **{**facts, **changes})


def two_team_setup(*, fair: bool = True) -> TeamSetup:
    return a_setup(a_team("red", gpus=32), a_team("blue", gpus=8), a_team("green", gpus=0), fairSharing=fair)


def a_fleet(count: int, *down: int, used: tuple[int, ...] = ()) -> tuple[NodeCapacity, ...]:
    return tuple(
        capacity.replace(unschedulable_reason="not ready", free=NONE) if number in down else capacity
        for number, capacity in enumerate(capacities(count, *used), start=1)
    )


def preemption_answer(
    machines: tuple[NodeCapacity, ...], charges: list[Charge], *, fair: bool = True, **more: Any
) -> AdmissionDecision:
    nodes = more.pop("nodes", 1)
    return decide_pending(two_team_setup(fair=fair), machines, an_interrupted_job(nodes), charges=charges, **more)[
        "job-90"
    ]


def victims(decided: AdmissionDecision) -> list[tuple[str, str]]:
    return [(victim.job_id, victim.reason) for victim in decided.victims]


@pytest.mark.parametrize("fair", [True, False])
def test_recovery_preempts_only_borrowers_of_its_quota(fair: bool) -> None:
    charges = [a_charge(1, "blue", 1), a_charge(2, "green", 2)]

    decided = preemption_answer(a_fleet(3, 3, used=(1, 2)), charges, fair=fair)

    assert decided.action is AdmissionAction.PREEMPT
    assert victims(decided) == [("job-2", "InCohortReclamation")]


@pytest.mark.parametrize("fair", [True, False])
def test_recovery_preempts_lower_class_of_its_own_queue(fair: bool) -> None:
    charges = [a_charge(1, "red", 1, priority=10), a_charge(2, "red", 2, priority=1)]

    decided = preemption_answer(a_fleet(3, 3, used=(1, 2)), charges, fair=fair)

    assert victims(decided) == [("job-2", "InClusterQueue")]


def test_recovery_without_preemption_option_preempts_nothing() -> None:
    machines, charges = a_fleet(2, 2, used=(1,)), [a_charge(1, "green", 1)]

    answers = decide_pending(
        two_team_setup(), machines, an_interrupted_job(resumes_by_preemption=False), charges=charges
    )

    assert answers["job-90"].action is AdmissionAction.WAIT


def test_insufficient_preemption_is_not_started() -> None:
    decided = preemption_answer(a_fleet(3, 2, 3, used=(1,)), [a_charge(1, "green", 1)], nodes=2)

    assert (decided.action, decided.victims) == (AdmissionAction.WAIT, ())


def test_nothing_is_preempted_if_stopping_jobs_free_enough_nodes() -> None:
    charges = [a_charge(1, "blue", 1), a_charge(2, "green", 2)]

    decided = preemption_answer(a_fleet(3, 3, used=(1, 2)), charges, stopping=frozenset({"job-1"}))

    assert (decided.action, decided.victims) == (AdmissionAction.WAIT, ())


def test_nodes_freed_for_another_recovery_are_not_counted() -> None:
    charges = [a_charge(1, "green", 1), a_charge(2, "green", 2)]
    machines = a_fleet(3, 3, used=(1, 2))

    def answer_after_preemption_for(for_whom: str) -> AdmissionDecision:
        scheduler_state = SchedulerState().after_preemption("red", for_whom, ["job-1"], at(900))
        return preemption_answer(machines, charges, stopping=frozenset({"job-1"}), scheduler_state=scheduler_state)

    assert victims(answer_after_preemption_for("job-90")) == [("job-1", "InCohortReclamation")]
    assert answer_after_preemption_for("job-91").action is AdmissionAction.WAIT


def test_two_interrupted_jobs_preempt_two_jobs() -> None:
    charges = [a_charge(1, "green", 1), a_charge(2, "green", 2)]
    second = an_interrupted_job(priority=11).model_copy(update={"job_id": "job-91"})

    answers = decide_pending(
        two_team_setup(), a_fleet(4, 3, 4, used=(1, 2)), an_interrupted_job(), second, charges=charges
    )

    assert sorted(name for name in ("job-90", "job-91") for _ in answers[name].victims) == ["job-90", "job-91"]
    assert {victim.job_id for answer in answers.values() for victim in answer.victims} == {"job-1", "job-2"}


@settings(max_examples=examples(120), deadline=None)
@given(
    held=st.lists(
        st.tuples(st.sampled_from(["red", "blue", "green"]), st.integers(0, 20), st.integers(1, 2)),
        min_size=1,
        max_size=5,
    ),
    down=st.integers(0, 2),
    nodes=st.integers(1, 3),
    fair=st.booleans(),
)
def test_victims_are_sufficient_minimal_and_preemptable(
    held: list[tuple[str, int, int]], down: int, nodes: int, *, fair: bool
) -> None:
    charges, first = [], 1
    for number, (team, priority, count) in enumerate(held, start=1):
        charges.append(a_charge(number, team, *range(first, first + count), priority=priority))
        first += count
    machines = a_fleet(first - 1 + down, *range(first, first + down), used=tuple(range(1, first)))

    decided = preemption_answer(machines, charges, fair=fair, nodes=nodes)

    if decided.action is not AdmissionAction.PREEMPT or decided.facts.preemption_plan is None:
        return
    by_name = {charge.job_id: charge for charge in charges}
    victims = [by_name[victim.job_id] for victim in decided.victims]
    use = {team: sum(charge.accelerators for charge in charges if charge.team == team) for team in ("blue", "green")}
    assert sum(len(charge.node_names) for charge in victims) >= nodes
    for charge in victims:
        assert sum(len(other.node_names) for other in victims if other is not charge) < nodes
        if charge.team == "red":
            assert charge.priority < 10
        else:
            assert use[charge.team] > {"blue": 8, "green": 0}[charge.team]


def test_identical_recovery_waits_for_the_first() -> None:
    charges = [a_charge(1, "green", 1), a_charge(2, "green", 2)]
    second = an_interrupted_job().model_copy(update={"job_id": "job-91", "submitted_at": at(95)})

    answers = decide_pending(
        two_team_setup(), a_fleet(4, 3, 4, used=(1, 2)), an_interrupted_job(), second, charges=charges
    )

    assert (answers["job-90"].action, answers["job-91"].action) == (AdmissionAction.PREEMPT, AdmissionAction.BLOCKED)
