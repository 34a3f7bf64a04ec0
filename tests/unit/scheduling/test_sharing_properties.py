"""Random fleets with several teams: every decision replays, no limit is broken, and no node is assigned twice."""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.admission import queue_with_teams
from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionFacts, decide
from evenkeel.domain.admission.queue_with_teams import decide_with_teams
from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.kueue.nomination import KnownNominations, Nomination
from evenkeel.domain.kueue.objects import Admitted, Workload
from evenkeel.domain.kueue.pending_queue import PendingWorkload
from evenkeel.domain.quotas.teams import TeamSetup
from tests.examples import examples
from tests.kueue_checker import overcommitted
from tests.unit.scheduling.builders import a_node_capacity, a_request, at
from tests.unit.scheduling.test_sharing import GPU, P5, a_charge, a_setup, a_team, check_facts_of_a_cycle

P4 = "ml.p4d.24xlarge"
TEAMS = ("red", "blue", "green")


def a_random_charge(dice: random.Random, number: int, instance_type: str) -> Charge:
    return a_charge(
        number,
        dice.choice(TEAMS),
        number,
        priority=dice.choice((0, 1, 5)),
        instance_type=instance_type,
        use={instance_type: {GPU: 8}},
    )


def random_admission_input(dice: random.Random) -> AdmissionInput:
    """Return a fleet that exceeds no limit yet."""
    setup = a_setup(
        *(
            a_team(
                name,
                cohort=dice.choice(("fleet", "fleet", "")),
                queue={
                    "groups": [
                        {P5: {GPU: _quota(dice)}}
                        if dice.random() < 0.6
                        else {P4: {GPU: _quota(dice)}, P5: {GPU: _quota(dice)}}
                    ],
                    "strategy": dice.choice(("BestEffortFIFO", "StrictFIFO")),
                    "preemption": {
                        "within": dice.choice(("Never", "LowerPriority", "LowerOrNewerEqualPriority")),
                        "reclaim": dice.choice(("Never", "LowerPriority", "Any")),
                    },
                },
            )
            for name in TEAMS
        ),
        fairSharing=dice.random() < 0.5,
    )
    capacities = []
    charges: list[Charge] = []
    for number in range(1, dice.randint(2, 9)):
        kind = dice.choice((P5, P5, P4))
        closed = dice.choice(("", "", "", "cordoned"))
        charge = a_random_charge(dice, number, kind)
        taken = dice.random() < 0.6 and not list(exceeded_limits(setup, [*charges, charge]))
        charges += [charge] if taken else []
        capacities.append(
            a_node_capacity(
                number, free=0 if taken else 8, pool=kind[3:5], instance_type=kind, unschedulable_reason=closed
            )
        )
    stopping = [charge.job_id for charge in charges if dice.random() < 0.2]
    pending = [_request(dice, number) for number in range(20, 20 + dice.randint(0, 8))]
    scheduler_state = SchedulerState()
    if stopping and pending:
        head = dice.choice(pending)
        scheduler_state = scheduler_state.after_preemption(head.team, head.job_id, stopping, at(500))
    return AdmissionInput(
        tuple(capacities), tuple(pending), setup, tuple(charges), frozenset(stopping), scheduler_state
    )


def _quota(dice: random.Random) -> Any:
    nominal = dice.choice((0, 8, 16, 24))
    return dice.choice((nominal, nominal, {"nominal": nominal, "lend": nominal // 2}))


def _request(dice: random.Random, number: int) -> Any:
    recovers = dice.random() < 0.2
    return a_request(
        number,
        team=dice.choice(TEAMS),
        nodes=dice.choice((1, 1, 2, 3)),
        accelerators_per_node=dice.choice((8, 8, 4, 0)),
        priority=dice.choice((0, 1, 5)),
        instance_types=dice.choice(((), (), (P4,), (P5,))),
        is_recovery=recovers,
        attempts=int(recovers),
    )


def exceeded_limits(setup: TeamSetup, charges: list[Charge]) -> list[str]:
    # The scheduler ignores a limit without a cohort, so such queues are checked by its own tests.
    queues = setup.scheduler_declarations
    held = [
        Admitted(
            Workload(charge.job_id, charge.queue, ()),
            (),
            (),
            use={(flavor, name): count for flavor, amounts in charge.use.items() for name, count in amounts.items()},
        )
        for charge in charges
    ]
    return list(overcommitted(queues.queues, queues.cohorts, held))


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 2**32))
def test_every_decision_is_safe_and_replays_alone(seed: int) -> None:
    admission_input = random_admission_input(random.Random(seed))

    answers = decide_with_teams(
        admission_input, SchedulingPolicy(spare_nodes={"p5": seed % 2}), EconomyPolicy(), at(1000)
    )

    requests = {request.job_id: request for request in admission_input.pending}
    assert {answer.job_id for answer in answers} == set(requests)
    assert len(answers) == len(requests)
    taken: Counter[str] = Counter()
    admitted = list(admission_input.charges)
    for answer in answers:
        assert decide(AdmissionFacts.model_validate(answer.facts.to_json())) == answer
        request = requests[answer.job_id]
        if answer.action is AdmissionAction.ADMIT:
            assert len(set(answer.nodes)) == request.nodes
            taken.update({life.key: request.accelerators_per_node for life in answer.nodes})
            admitted.append(a_charge(0, request.team, use=answer.use, job_id=answer.job_id))
        assert answer.reason
        assert {victim.job_id for victim in answer.victims} <= {charge.job_id for charge in admission_input.charges}
    assert all(taken[capacity.life.key] <= capacity.free.accelerators for capacity in admission_input.capacities)
    assert not {capacity.life.key for capacity in admission_input.capacities if capacity.unschedulable_reason} & set(
        taken
    )
    assert exceeded_limits(admission_input.setup, admitted) == []
    check_facts_of_a_cycle(answers)


def crowded_admission_input(dice: random.Random) -> AdmissionInput:
    """Return an idle fleet with more jobs than nodes: many jobs would start and be preempted in the same cycle."""
    queue = {"preemption": {"within": "LowerPriority", "reclaim": "Any"}}
    teams = (
        a_team(name, cohort="fleet", queue={"groups": [{P5: {GPU: dice.choice((8, 16, 24))}}], **queue})
        for name in TEAMS
    )
    setup = a_setup(*teams, fairSharing=dice.random() < 0.7)
    capacities = (a_node_capacity(number, free=8, pool="p5", instance_type=P5) for number in range(1, 8))
    pending = (
        a_request(
            number,
            team=dice.choice(TEAMS),
            nodes=dice.choice((1, 1, 2, 3)),
            accelerators_per_node=8,
            priority=dice.choice((0, 1, 5)),
        )
        for number in range(20, 20 + dice.randint(6, 16))
    )
    return AdmissionInput(tuple(capacities), tuple(pending), setup, (), frozenset(), SchedulerState())


def crowded_admission_input_with_holders(dice: random.Random) -> AdmissionInput:
    """Return a fleet like that, in which some jobs run already."""
    queue = {"preemption": {"within": dice.choice(("LowerPriority", "LowerOrNewerEqualPriority")), "reclaim": "Any"}}
    teams = [
        a_team(name, cohort="fleet", queue={"groups": [{P5: {GPU: dice.choice((8, 16, 24, 32))}}], **queue})
        for name in TEAMS
    ]
    setup = a_setup(*teams, fairSharing=dice.random() < 0.7)
    charges: list[Charge] = []
    capacities = []
    for number in range(1, 12):
        charge = a_random_charge(dice, number, P5)
        is_taken = dice.random() < 0.4 and not list(exceeded_limits(setup, [*charges, charge]))
        charges += [charge] if is_taken else []
        capacities.append(a_node_capacity(number, free=0 if is_taken else 8, pool="p5", instance_type=P5))
    pending = (
        a_request(
            number,
            team=dice.choice(TEAMS),
            nodes=dice.choice((1, 1, 2, 3)),
            accelerators_per_node=8,
            priority=dice.choice((0, 1, 5)),
        )
        for number in range(20, 20 + dice.randint(8, 18))
    )
    return AdmissionInput(tuple(capacities), tuple(pending), setup, tuple(charges), frozenset(), SchedulerState())


@pytest.mark.parametrize(
    ("world", "seeds"),
    [(crowded_admission_input, range(100)), (crowded_admission_input_with_holders, range(70, 130))],
)
def test_runs_of_a_cycle_that_share_nominations_record_the_same(
    world: Callable[[random.Random], AdmissionInput], seeds: Iterable[int]
) -> None:
    reused = 0

    class CountedNominations(KnownNominations):
        def in_state(self, state: Hashable) -> dict[str, tuple[PendingWorkload, Nomination]]:
            nonlocal reused
            known = super().in_state(state)
            reused += len(known)
            return known

    class NoNominations(KnownNominations):
        def in_state(self, state: Hashable) -> dict[str, tuple[PendingWorkload, Nomination]]:
            return {}

    for seed in seeds:
        admission_input = world(random.Random(seed))
        answers = []
        for kind in (CountedNominations, NoNominations):
            with mock.patch.object(queue_with_teams, "KnownNominations", kind):
                answers.append(decide_with_teams(admission_input, SchedulingPolicy(), EconomyPolicy(), at(1000)))
        assert answers[0] == answers[1]
        assert [answer.to_json() for answer in answers[0]] == [answer.to_json() for answer in answers[1]]
    assert reused > 100
