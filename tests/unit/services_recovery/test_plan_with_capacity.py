"""For an interrupted job, Evenkeel rents or preempts where that loses least, by the rules of the scheduling cycle."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.capacity.compatibility import Requirements
from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.decisions import Alternative, Decision
from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.jobs.job import JobState, ResumeOption
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.quotas.teams import FleetQuotas, Team
from evenkeel.domain.recovery.resume_options import ResumeFacts
from evenkeel.domain.recovery.resume_options import plan_resume as choose
from evenkeel.domain.renting.migration import temporary_capacity_of
from evenkeel.domain.renting.placement import PlacementFacts, choose_pool
from evenkeel.domain.renting.rental import Rental, RentalState
from evenkeel.domain.renting.rental_book import RentalAllocation
from evenkeel.domain.replay import replay
from evenkeel.ports import Put, Row, Table
from evenkeel.services.recovery import cordon_node, drain_node, plan_recovery, repair_node
from evenkeel.services.rentals import rent_capacity
from evenkeel.services.resume import plan_resume
from evenkeel.services.tables import job_rows, quota_rows, rows
from tests.examples import examples
from tests.fakes.cluster import CLUSTER
from tests.unit.scheduling.test_sharing import GPU, a_team
from tests.unit.services_jobs.test_rentals import (
    NODE_HOUR,
    ON_DEMAND,
    SPOT,
    RentalScenario,
    a_policy,
    a_pool,
    a_team_with,
)
from tests.unit.services_jobs.test_teams import MEMBERS, set_up_teams
from tests.unit.services_recovery.recovery_scenario import QUICK, RecoveryScenario

HOUR = 3600


def rental_policy(**changes: Any) -> Policy:
    """Return a policy: a repair takes two hours, and an hour of delay costs $500."""
    economy = EconomyPolicy(expected_reboot_seconds=2 * HOUR)
    return QUICK.replace(burst=a_policy(**changes).burst, economy=economy)


def recovery_with_resume_plan(policy: Policy, size: int = 2, **spec: Any) -> RecoveryScenario:
    """A recovery up to its resume plan, of a job that has every node."""
    recovery = RecoveryScenario(size=size, policy=policy)
    spec = {"checkpoint_uri": "s3://checkpoints/one", **spec}
    recovery.scenario.set_job(recovery.job.replace(spec=recovery.job.spec.replace(**spec)))
    return resume_plan_of(recovery)


def resume_plan_of(recovery: RecoveryScenario) -> RecoveryScenario:
    recovery.report_fault()
    for service in (plan_recovery, cordon_node, drain_node, plan_resume):
        recovery.run_state("", service)
    return recovery


def resume_record(recovery: RecoveryScenario) -> Decision:
    page = recovery.world.ledger.by_state(Table.INCIDENTS, f"DEC#{recovery.incident_id}")
    return next(decision for row in page.rows if (decision := rows.decode(row, Decision)).kind == "RESUME")


def considered_option(recovery: RecoveryScenario, option: str) -> Alternative:
    """Return one row of the table that was stored with the decision."""
    decision = resume_record(recovery)
    assert decision.chosen
    return next(
        alternative for alternative in (decision.chosen, *decision.alternatives) if alternative.option == option
    )


def stop_job(recovery: RecoveryScenario) -> None:
    recovery.scenario.stop(recovery.job_id, 1)
    recovery.scenario.settle(recovery.job_id, 1)


def rental_of(recovery: RecoveryScenario) -> Rental:
    return rows.load(recovery.world.ledger, job_rows.rental_key(recovery.job_id, 1), Rental, "rental")


def decisions_of_cycles(recovery: RecoveryScenario) -> list[Decision]:
    decision_rows = (row for key, row in recovery.world.ledger.rows.items() if key.pk.startswith("DEC#"))
    return [rows.decode(row, Decision) for row in decision_rows]


# ---------------------------------------------------------------- rented nodes


def test_job_that_loses_less_on_rented_nodes_is_planned_there() -> None:
    recovery = recovery_with_resume_plan(rental_policy())

    decision = resume_record(recovery)

    assert decision.action == "RENT"
    assert decision.reason.startswith(f"2 nodes of {SPOT} are rented for it, $")
    waits = considered_option(recovery, "WAIT_FOR_REPAIR")
    assert decision.chosen
    assert decision.chosen.usd is not None
    assert waits.usd is not None
    assert decision.chosen.usd < waits.usd
    assert replay(decision, recovery.policy).differs_from(decision) == ""


def test_recovery_and_cycle_compute_the_same_rent() -> None:
    recovery = recovery_with_resume_plan(rental_policy())

    facts = ResumeFacts.model_validate(resume_record(recovery).facts)
    plan = recovery.job.resume_plan

    assert facts.renting
    assert plan
    assert plan.max_rent_parts is not None
    job, usd = facts.renting.placement.job, considered_option(recovery, "RENT").usd
    held = 2 * HOUR + job.save_seconds  # until the node is back
    rent = 2 * NODE_HOUR[SPOT] / 1e6 * held / HOUR
    moved = job.save_seconds + facts.delays.launch.seconds + job.restart_seconds
    lost = facts.lost_work_seconds + facts.delays.launch.seconds + facts.delays.restore.seconds + moved
    assert usd == pytest.approx(rent + lost / HOUR * (16 * 8.256 + 500), rel=0.1)

    stop_job(recovery)
    recovery.scenario.run_scheduling_cycle()

    placement_record = next(decision for decision in decisions_of_cycles(recovery) if decision.kind == "PLACEMENT")
    cycle = PlacementFacts.model_validate(placement_record.facts)
    assert rent_by_pool(cycle) == rent_by_pool(facts.renting.placement)
    assert cycle.job.replace(max_rent_parts=None) == facts.renting.placement.job


@pytest.mark.parametrize(("measured", "expected"), [(600, (600, 1)), (None, (1400, 0))])
def test_measured_restore_replaces_the_figure_of_the_policy(measured: int | None, expected: tuple[int, int]) -> None:
    policy = rental_policy().replace(economy=EconomyPolicy(expected_reboot_seconds=2 * HOUR, min_samples=1))
    recovery = RecoveryScenario(size=2, policy=policy)
    attempt = recovery.scenario.attempt(recovery.job_id)
    assert attempt.running_at
    trained_at = attempt.running_at + timedelta(seconds=measured) if measured else None
    recovery.scenario.store_row(job_rows.attempt_row(attempt.replace(trained_at=trained_at), 0))
    resume_plan_of(recovery)

    restore = ResumeFacts.model_validate(resume_record(recovery).facts).delays.restore

    assert (restore.seconds, restore.samples) == expected


def rent_by_pool(facts: PlacementFacts) -> dict[str, int]:
    return {row.pool: row.rent_parts for row in choose_pool(facts).table}


def test_recovery_and_cycle_use_the_same_past_runs() -> None:
    recovery = RecoveryScenario(size=2, policy=rental_policy())
    for number in range(recovery.policy.economy.min_samples):
        ended = recovery.job.replace(
            job_id=f"job-ended-{number}",
            state=JobState.SUCCEEDED,
            started_at=recovery.now - timedelta(hours=9),
            ended_at=recovery.now,
        )
        recovery.world.ledger.commit(Put(job_rows.job_row(ended, 0)))
    recovery.scenario.set_job(
        recovery.job.replace(spec=recovery.job.spec.replace(checkpoint_uri="s3://checkpoints/one"))
    )
    resume_plan_of(recovery)

    facts = ResumeFacts.model_validate(resume_record(recovery).facts)

    assert facts.renting
    assert facts.renting.placement.job.run_seconds == pytest.approx(9 * HOUR, abs=60)
    stop_job(recovery)
    recovery.scenario.run_scheduling_cycle()
    placement_record = next(decision for decision in decisions_of_cycles(recovery) if decision.kind == "PLACEMENT")
    assert rent_by_pool(PlacementFacts.model_validate(placement_record.facts)) == rent_by_pool(facts.renting.placement)


def test_cycle_rents_the_pool_that_the_recovery_chose() -> None:
    def make_stop_fail(recovery: RecoveryScenario) -> None:
        """Let scheduling cycles believe that the node is back at once."""
        plan = recovery.job.resume_plan
        assert plan
        recovery.scenario.set_job(recovery.job.replace(resume_plan=plan.replace(capacity_at=None)))
        recovery.scenario.policy = recovery.policy.replace(
            jobs=recovery.policy.jobs.replace(expected_replace_seconds=1, expected_resume_seconds=1)
        )
        stop_job(recovery)
        recovery.scenario.run_scheduling_cycle()

    recovery = recovery_with_resume_plan(rental_policy())
    make_stop_fail(recovery)
    waits = recovery_with_resume_plan(rental_policy())
    waiting = waits.job.resume_plan
    assert waiting
    waits.scenario.set_job(waits.job.replace(resume_plan=waiting.replace(max_rent_parts=None)))
    make_stop_fail(waits)

    assert (recovery.job.state, recovery.job.rentals) == (JobState.PENDING, 1)
    rental = rental_of(recovery)
    assert (rental.state, rental.offer.pool) == (RentalState.OPENING, SPOT)
    assert rental.reason.startswith(f"The job's recovery chose to rent: {SPOT} costs $")
    assert waits.job.rentals == 0
    placements = [decision for decision in decisions_of_cycles(recovery) if decision.kind == "PLACEMENT"]
    assert all(replay(placement, recovery.scenario.policy).differs_from(placement) == "" for placement in placements)
    assert placements


def test_job_resumes_elsewhere_during_the_repair() -> None:
    recovery = recovery_with_resume_plan(rental_policy())
    renting = RentalScenario(policy=recovery.policy)
    recovery.world.cluster.limits = dict(renting.world.cluster.limits)
    renting.scenario, renting.world = recovery.scenario, recovery.world
    recovery.run_state("", repair_node)
    stop_job(recovery)

    recovery.scenario.run_scheduling_cycle()
    renting.advance_executions()
    renting.launch_nodes()
    renting.advance_executions()
    recovery.scenario.run_scheduling_cycle()
    recovery.scenario.run_attempt(recovery.job_id, 2)

    attempt, faulty = recovery.scenario.attempt(recovery.job_id, 2), recovery.incident.node_name
    assert (recovery.job.state, attempt.pool) == (JobState.RUNNING, SPOT)
    assert faulty not in attempt.node_names
    assert not recovery.incident.state.is_settled
    assert recovery.world.cluster.by_name[CLUSTER, faulty].is_cordoned
    assert temporary_capacity_of(rental_of(recovery))


@pytest.mark.parametrize(
    ("policy", "spec", "why_not"),
    [
        (QUICK, {}, "not available here: the policy names no pool to rent from"),
        (rental_policy(other_delay_micros_per_hour=0), {}, "the policy sets no price on the delay of its class"),
        (
            rental_policy(fleet_cap_micros_per_hour=1),
            {},
            "Renting costs $40.00 an hour, which exceeds the limit: the fleet spends $0.00 of $0.00",
        ),
        (
            rental_policy(team_caps_micros_per_hour={"default": 1}),
            {},
            "Renting costs $40.00 an hour, which exceeds the limit: team default spends $0.00",
        ),
        (
            rental_policy(),
            {"requires": Requirements(fabric="efa-of-its-own")},
            "The job needs the network efa-of-its-own",
        ),
        (
            rental_policy(pools=(a_pool(SPOT, Market.SPOT, interruptions_per_node_hour=0.5),)),
            {},
            "A checkpoint every 15 min is too infrequent",
        ),
        (rental_policy(pools=(a_pool(SPOT, Market.SPOT),)), {"checkpoint_uri": ""}, "the job keeps no checkpoints"),
    ],
)
def test_unavailable_rental_is_excluded_with_a_reason(policy: Policy, spec: dict[str, Any], why_not: str) -> None:
    recovery = recovery_with_resume_plan(policy, **spec)

    alternative = considered_option(recovery, "RENT")

    assert resume_record(recovery).action == "WAIT_FOR_REPAIR"
    assert why_not in alternative.why_not
    assert alternative.usd is None
    assert recovery.job.resume_plan
    assert recovery.job.resume_plan.max_rent_parts is None


def test_free_nodes_are_used_before_preemption() -> None:
    recovery = recovery_with_resume_plan(rental_policy(), size=3)

    assert resume_record(recovery).action == "FREE_NODE"
    for option in ("RENT", "PREEMPT"):
        assert considered_option(recovery, option).why_not == "not checked: existing nodes can run the job now"


def test_costlier_pool_is_preferred_to_frequently_interrupted_spot_pool() -> None:
    risky = a_pool(SPOT, Market.SPOT, interruptions_per_node_hour=0.5)
    recovery = recovery_with_resume_plan(rental_policy(pools=(risky, a_pool(ON_DEMAND, Market.ON_DEMAND))))

    assert resume_record(recovery).action == "RENT"
    assert ON_DEMAND in resume_record(recovery).reason


@pytest.mark.parametrize(
    ("repair_hours", "minutes", "why_not"),
    [
        (3, 150, ""),
        (1, 210, "the policy sets no price on the delay of its class, and the job meets its deadline without renting"),
        (3, 121, "after its deadline, and the policy sets no price on the delay of its class"),
        (2, 150, "after its deadline, and the policy sets no price on the delay of its class"),  # it has to move back
    ],
)
def test_class_without_a_price_rents_only_for_its_deadline(repair_hours: int, minutes: int, why_not: str) -> None:
    """Two hours of work are left: done 145 minutes from now on rented nodes, 145 minutes after the repair on others."""
    recovery = recovery_with_resume_plan(
        rental_policy(other_delay_micros_per_hour=0).replace(
            economy=EconomyPolicy(expected_reboot_seconds=repair_hours * HOUR)
        ),
        deadline_at=RecoveryScenario().now + timedelta(minutes=minutes),
    )

    reason = considered_option(recovery, "RENT").why_not

    assert (why_not in reason) if why_not else "price" not in reason
    assert replay(resume_record(recovery), recovery.policy).differs_from(resume_record(recovery)) == ""


@pytest.mark.parametrize(
    ("rented", "budgets", "why_not"),
    [
        (8, (), "Rented nodes would not help the job: "),
        (16, ({"period": "month", "gpuHours": 4},), "16 of 4 accelerator-hours of team red in 2026-11 are used"),
        (16, ({"period": "month", "usd": 60},), "but the budget of team red has"),
        (16, ({"period": "month", "usd": 200},), ""),
        (16, (), ""),
    ],
)
def test_recovery_rental_respects_team_quota_and_budget(rented: int, budgets: tuple[Any, ...], why_not: str) -> None:
    recovery = RecoveryScenario(size=2, policy=rental_policy(), with_job=False)
    team = a_team_with({"ml.p5.48xlarge": {GPU: 16}, "p5.48xlarge": {GPU: rented}})
    set_up_teams(recovery.scenario, team)
    recovery.job_id = recovery.scenario.running(nodes=2, team="red").job_id
    spent = Row(quota_rows.spent_key("red", "2026-11"), {"acceleratorSeconds": 16 * HOUR, "usdMicros": 0})
    recovery.world.ledger.commit(Put(spent))
    set_up_teams(recovery.scenario, Team.model_validate({**team.to_json(), "budgets": budgets}))
    resume_plan_of(recovery)

    assert resume_record(recovery).action == ("WAIT_FOR_REPAIR" if why_not else "RENT")
    assert why_not in considered_option(recovery, "RENT").why_not


def test_resume_record_without_preemption_facts_replays() -> None:
    decision = resume_record(recovery_with_resume_plan(QUICK))
    refused = [
        {"option": "SHRINK", "whyNot": "not available: the job is not elastic"},
        {"option": "PREEMPT", "whyNot": "not available here: no job gives way to another"},
        {"option": "RENT", "whyNot": "not available here: no nodes are rented"},
    ]
    since = ("renting", "preemptionVictims", "usdPerHourOfDelay")
    facts = {name: value for name, value in decision.facts.items() if name not in since} | {"offers": refused}
    reasons = {alternative_document["option"]: alternative_document["whyNot"] for alternative_document in refused}
    table = tuple(
        alternative.replace(why_not=reasons.get(alternative.option, alternative.why_not))
        for alternative in decision.alternatives
    )

    assert (
        replay(decision.replace(facts=facts, alternatives=table), QUICK).differs_from(
            decision.replace(alternatives=table)
        )
        == ""
    )


def test_kueue_admission_prevents_renting_and_preemption() -> None:
    recovery = RecoveryScenario(size=2, policy=rental_policy())
    recovery.scenario.set_job(recovery.job.replace(local_queue="red"))
    resume_plan_of(recovery)

    assert considered_option(recovery, "RENT").why_not.startswith("Kueue admits jobs here")
    assert considered_option(recovery, "PREEMPT").why_not.startswith("Kueue admits jobs here")


def test_only_an_approved_recovery_rents_in_recommend_mode() -> None:
    recovery = recovery_with_resume_plan(rental_policy())
    stop_job(recovery)
    recovery.scenario.run_scheduling_cycle()
    rental = rental_of(recovery)
    check = rent_capacity.RentCapacityRequest(
        step=rent_capacity.RentalStep.CHECK, job_id=rental.job_id, rental=rental.number
    )

    def asked(mode: Mode) -> rent_capacity.RentOutcome:
        return rent_capacity.run(check, recovery.world.context(policy=recovery.policy, mode=mode)).outcome

    assert asked(Mode.RECOMMEND) is rent_capacity.RentOutcome.WANTED
    assert asked(Mode.OBSERVE) is rent_capacity.RentOutcome.ENDING
    recovery.scenario.set_job(recovery.job.replace(resume_plan=None))
    assert asked(Mode.RECOMMEND) is rent_capacity.RentOutcome.ENDING


@settings(max_examples=examples(25), deadline=None)
@given(
    fleet_cap=st.integers(0, 250),
    team_cap=st.integers(0, 250),
    held=st.integers(0, 150),
    delay=st.integers(0, 900),
    repair=st.integers(60, 4 * HOUR),
)
def test_least_expected_loss_is_chosen_within_the_caps(
    fleet_cap: int, team_cap: int, held: int, delay: int, repair: int
) -> None:
    policy = rental_policy(
        fleet_cap_micros_per_hour=fleet_cap * 1_000_000,
        other_team_cap_micros_per_hour=team_cap * 1_000_000,
        other_delay_micros_per_hour=delay * 1_000_000,
    )
    recovery = RecoveryScenario(size=2, policy=policy.replace(economy=EconomyPolicy(expected_reboot_seconds=repair)))
    recovery.scenario.set_job(
        recovery.job.replace(spec=recovery.job.spec.replace(checkpoint_uri="s3://checkpoints/one"))
    )
    before = held * 1_000_000
    if held:
        hold = RentalAllocation(
            job_id="job-other",
            number=1,
            team="default",
            cluster=CLUSTER,
            pool=ON_DEMAND,
            nodes=1,
            accelerators_per_node=8,
            micros_per_hour=before,
        )
        row = Row(quota_rows.rental_allocation_key("job-other", 1), hold.to_json())
        recovery.world.ledger.commit(Put(row))
    resume_plan_of(recovery)
    stop_job(recovery)
    recovery.scenario.run_scheduling_cycle()

    decision = resume_record(recovery)
    had = [alternative.usd for alternative in decision.alternatives if alternative.usd is not None]
    assert decision.chosen
    assert decision.chosen.usd is not None
    assert all(decision.chosen.usd <= usd for usd in had)
    assert replay(decision, recovery.policy).differs_from(decision) == ""
    if recovery.job.rentals:
        rate = before + rental_of(recovery).offer.micros_per_node_hour * 2
        assert rate <= min(fleet_cap, team_cap) * 1_000_000
    if decision.action == "RENT":
        assert recovery.job.rentals == 1


# ---------------------------------------------------------------- preemption of other jobs


def recovery_with_teams(*, blue_borrows: bool, **blue: Any) -> tuple[RecoveryScenario, str]:
    """Three nodes: the interrupted job of red held two; a low job of blue runs on the third."""
    policy = QUICK.replace(economy=EconomyPolicy(expected_reboot_seconds=2 * HOUR))
    recovery = RecoveryScenario(size=3, policy=policy, with_job=False)
    set_up_teams(
        recovery.scenario,
        a_team("red", 24 if blue_borrows else 16, members=MEMBERS),
        a_team("blue", 0 if blue_borrows else 8, members=MEMBERS),
        FleetQuotas(priority_classes={"low": 1, "high": 10}),
    )
    recovery.job_id = recovery.scenario.running(nodes=2, team="red", priority_class="high").job_id
    other = recovery.scenario.running(nodes=1, team="blue", priority_class="low", checkpoint_uri="", **blue).job_id
    return resume_plan_of(recovery), other


def test_borrowing_job_is_preempted_if_its_delay_costs_less() -> None:
    recovery, other = recovery_with_teams(blue_borrows=True)

    decision = resume_record(recovery)

    assert decision.action == "PREEMPT"
    assert decision.reason == f"Evenkeel preempts {other} of team blue to run the job."
    facts = ResumeFacts.model_validate(decision.facts)
    assert [
        (preemption_victim.job_id, preemption_victim.accelerators, preemption_victim.save_seconds)
        for preemption_victim in facts.preemption_victims
    ] == [(other, 8, 30)]
    wait, delays = 2 * HOUR, facts.delays.launch.seconds + facts.delays.restore.seconds
    lost = (30 + delays + facts.lost_work_seconds) * 16 + (
        wait + delays + facts.preemption_victims[0].lost_work_seconds
    ) * 8
    assert considered_option(recovery, "PREEMPT").gpu_hours_lost == pytest.approx(lost / HOUR, abs=0.01)
    assert replay(decision, recovery.policy).differs_from(decision) == ""


def test_cycle_carries_out_the_chosen_preemption() -> None:
    recovery, other = recovery_with_teams(blue_borrows=True)
    scenario = recovery.scenario
    stop_job(recovery)

    scenario.run_scheduling_cycle()

    request = scenario.job(other).stop_of(1)
    assert request
    assert (request.by, request.grace_seconds) == (f"schedule_jobs/{recovery.job_id}", 30)
    assert recovery.job.reason.endswith(f"its recovery preempts other jobs. It waits until they stop: {other}.")
    scenario.run_scheduling_cycle()  # no other job is preempted meanwhile
    assert (recovery.job.state, len(scenario.charges())) == (JobState.PENDING, 1)
    scenario.stop(other)
    recovery.world.cluster.stop(scenario.attempt(other), 0)
    scenario.settle(other)
    scenario.run_scheduling_cycle()
    assert (recovery.job.state, scenario.job(other).state) == (JobState.STARTING, JobState.PENDING)
    admissions = [decision for decision in decisions_of_cycles(recovery) if decision.kind == "ADMISSION"]
    assert "PREEMPT" in {admission.action for admission in admissions}
    assert [
        differs for admission in admissions if (differs := replay(admission, recovery.policy).differs_from(admission))
    ] == []


def test_job_within_its_own_quota_is_not_preempted() -> None:
    recovery, other = recovery_with_teams(blue_borrows=False)
    stop_job(recovery)
    recovery.scenario.run_scheduling_cycle()

    assert resume_record(recovery).action == "WAIT_FOR_REPAIR"
    assert considered_option(recovery, "PREEMPT").why_not.startswith(
        "no job may be preempted for it: The job's quota is available."
    )
    assert recovery.scenario.job(other).stop_request is None


def test_waiting_for_the_repair_preempts_no_job() -> None:
    recovery, other = recovery_with_teams(blue_borrows=True)
    plan = recovery.job.resume_plan
    assert plan
    recovery.scenario.set_job(recovery.job.replace(resume_plan=plan.replace(option=ResumeOption.WAIT_FOR_REPAIR)))
    stop_job(recovery)

    recovery.scenario.run_scheduling_cycle()

    assert recovery.scenario.job(other).stop_request is None
    assert recovery.job.reason.startswith("The job's quota is available. The job waits for 2 nodes")


def test_job_with_a_costly_delay_is_not_preempted() -> None:
    recovery, _ = recovery_with_teams(blue_borrows=True)
    facts = ResumeFacts.model_validate(resume_record(recovery).facts)
    dear = facts.replace(
        preemption_victims=tuple(
            preemption_victim.replace(usd_per_hour_of_delay=100.0) for preemption_victim in facts.preemption_victims
        )
    )

    decided = choose(dear, recovery.policy.jobs)

    assert decided.option is ResumeOption.WAIT_FOR_REPAIR
    assert any(
        alternative.option == "PREEMPT" and "it would lose" in alternative.why_not
        for alternative in decided.alternatives
    )
