"""Rented nodes that replace failed ones use the team's quota, until the failed nodes are back or the term ends."""

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.jobs.job import Job, JobState, ResumeOption, ResumePlan
from evenkeel.domain.renting.migration import temporary_capacity_of
from evenkeel.domain.renting.rental import RentalState
from evenkeel.domain.replay import replay
from evenkeel.domain.values import rfc3339
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.jobs import read_jobs
from tests.unit.services_jobs.test_rentals import SPOT, RentalScenario, a_policy

HIGH_DELAY_PRICE = 100_000_000_000
"""Price of an hour of delay at which no migration pays, in micro-dollars."""


def scenario_with_temporary_capacity(**changes: Any) -> RentalScenario:
    return RentalScenario(
        policy=a_policy(**{"other_delay_micros_per_hour": HIGH_DELAY_PRICE, "temporary_seconds": 7200, **changes})
    )


def job_on_temporary_capacity(renting: RentalScenario) -> tuple[Job, Job]:
    """Return a job on the whole fleet, and a job that a recovery restarted on rented nodes."""
    first, second = renting.fill_fleet()
    now = renting.world.clock.now()
    plan = ResumePlan(
        incident_id="inc-1", after_attempt=0, option=ResumeOption.RENT, is_faulty_node_committed=True, planned_at=now
    )
    renting.scenario.set_job(renting.scenario.job(second.job_id).replace(resume_plan=plan))
    for _ in range(2):
        renting.scenario.run_scheduling_cycle()
        renting.advance_executions()
        renting.launch_nodes()
        renting.advance_executions()
    renting.run_attempt(second.job_id, 1)
    return first, renting.scenario.job(second.job_id)


def end_job_and_free_its_nodes(renting: RentalScenario, job: Job) -> None:
    renting.world.cluster.finish_pods(job.job_id, 1)
    renting.scenario.settle(job.job_id, 1)


def end_job_on_rental(renting: RentalScenario, job: Job) -> None:
    """Stop a job that got a stop request, and end its rental."""
    renting.scenario.stop(job.job_id, 1)
    renting.scenario.settle(job.job_id, 1)
    renting.advance_executions()
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()


def test_recovery_rental_is_temporary_capacity_on_team_quota() -> None:
    renting = scenario_with_temporary_capacity()
    _, second = job_on_temporary_capacity(renting)

    rental = renting.rental(second.job_id)
    temporary = temporary_capacity_of(rental)

    assert temporary
    assert (temporary.incident_id, temporary.due_at) == ("inc-1", rental.begun_at + timedelta(hours=2))
    rate = temporary.micros_per_node_hour * temporary.nodes
    assert rate == sum(bill.micros_per_hour for bill in rental.bills())
    shown = read_jobs.show_job(second.job_id, Reader(), renting.world.context())["rentals"][0]
    assert (shown["incidentId"], shown["dueAt"]) == ("inc-1", rfc3339(temporary.due_at))
    assert renting.scenario.usage() == 32  # both jobs, wherever they run
    texts = [row.doc["text"] for row in renting.world.ledger.rows.values() if row.key.sk.startswith("EVENT#")]
    assert [text for text in texts if "The nodes are temporary capacity for inc-1, until 03 Nov 12:" in text]


def test_rental_without_a_lost_node_is_no_temporary_capacity() -> None:
    renting = scenario_with_temporary_capacity()
    _, second = renting.run_second_job_on_rented_nodes()

    assert temporary_capacity_of(renting.rental(second.job_id)) is None


def test_temporary_capacity_is_returned_once_the_lost_node_is_back() -> None:
    borrowed, rented = scenario_with_temporary_capacity(), scenario_with_temporary_capacity()
    first, second = job_on_temporary_capacity(borrowed)
    end_job_and_free_its_nodes(borrowed, first)
    first, candidate = rented.run_second_job_on_rented_nodes()
    end_job_and_free_its_nodes(rented, first)

    borrowed.scenario.run_scheduling_cycle()
    rented.scenario.run_scheduling_cycle()

    job = borrowed.scenario.job(second.job_id)
    assert job.stop_request
    assert job.stop_request.reason.startswith("The job's nodes were temporary capacity. The lost capacity is back")
    assert rented.scenario.job(candidate.job_id).stop_request is None
    end_job_on_rental(borrowed, second)
    assert borrowed.scenario.attempt(second.job_id, 2).pool == "p5-workers"
    assert borrowed.leftovers() == []


def test_temporary_capacity_is_kept_until_the_lost_node_is_back() -> None:
    renting = scenario_with_temporary_capacity()
    _, second = job_on_temporary_capacity(renting)
    renting.world.clock.advance(3600)

    renting.scenario.run_scheduling_cycle()

    assert renting.scenario.job(second.job_id).stop_request is None


def test_temporary_capacity_always_ends_at_its_time_limit() -> None:
    renting = scenario_with_temporary_capacity(rentals_per_cycle=1)
    _, second = job_on_temporary_capacity(renting)
    due_at = renting.rental(second.job_id).due_at
    assert due_at
    renting.world.clock.advance((due_at - renting.world.clock.now()).total_seconds() - second.spec.grace_seconds)

    renting.scenario.run_scheduling_cycle()
    renting.scenario.run_scheduling_cycle()  # asked once

    job = renting.scenario.job(second.job_id)
    assert job.stop_request
    assert job.stop_request.reason.startswith("The job's nodes were temporary capacity. The time limit is 03 Nov 12:")
    end_job_on_rental(renting, second)
    assert renting.rental(second.job_id).state is RentalState.ENDED
    assert renting.scenario.job(second.job_id).state is JobState.PENDING


def test_temporary_capacity_decisions_replay() -> None:
    renting = scenario_with_temporary_capacity()
    first, _ = job_on_temporary_capacity(renting)
    end_job_and_free_its_nodes(renting, first)
    renting.scenario.run_scheduling_cycle()

    records = renting.decision_records("TEMPORARY_CAPACITY")

    assert [record.action for record in records] == ["RETURN"]
    assert [replay(record, renting.policy).differs_from(record) for record in records] == [""]


@settings(max_examples=20, deadline=None)
@given(temporary_seconds=st.integers(120, 20_000), looks=st.lists(st.integers(1, 4000), min_size=1, max_size=8))
def test_expired_temporary_capacity_is_always_reported(temporary_seconds: int, looks: list[int]) -> None:
    renting = scenario_with_temporary_capacity(temporary_seconds=temporary_seconds)
    _, second = job_on_temporary_capacity(renting)
    due_at = renting.rental(second.job_id).due_at
    assert due_at
    for seconds in looks:
        renting.world.clock.advance(seconds)
        renting.scenario.run_scheduling_cycle()
        is_due = renting.world.clock.now() + timedelta(seconds=second.spec.grace_seconds) >= due_at
        assert (renting.scenario.job(second.job_id).stop_request is not None) == is_due
        if is_due:
            break


@pytest.mark.parametrize("hours", [1, 2])
def test_temporary_capacity_is_billed_like_any_rental(hours: int) -> None:
    renting = scenario_with_temporary_capacity()
    first, second = job_on_temporary_capacity(renting)
    renting.world.clock.advance(hours * 1800)
    end_job_and_free_its_nodes(renting, first)
    renting.scenario.run_scheduling_cycle()
    end_job_on_rental(renting, second)

    rental = renting.rental(second.job_id)
    temporary = temporary_capacity_of(rental)

    assert temporary
    assert rental.ended_at
    seconds = math.ceil((rental.ended_at - temporary.begun_at).total_seconds())
    assert rental.cost_parts == temporary.micros_per_node_hour * temporary.nodes * seconds
    assert temporary.team == second.spec.team
    assert rental.offers[0].pool == SPOT
