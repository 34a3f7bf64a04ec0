"""Deadlines in scheduling cycles: rentals within the caps, and the reason of a job that misses its deadline."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.renting.migration import MigrationFacts
from evenkeel.domain.renting.placement import PlacementFacts
from evenkeel.domain.replay import replay
from evenkeel.ports import Invalid
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.records import explain
from tests.unit.services_jobs.test_rentals import ON_DEMAND, SPOT, RentalScenario, a_policy

HOUR = 3600
FIRST_JOB = "job-0000000001"
"""The job that holds every node."""
RUN_SECONDS = 2 * HOUR
"""Expected run time of a job."""


def market_without_delay_price(**changes: Any) -> RentalScenario:
    return RentalScenario(policy=a_policy(other_delay_micros_per_hour=0, **changes))


def hours_from_now(renting: RentalScenario, hours: float) -> datetime:
    return renting.world.clock.now() + timedelta(hours=hours)


def waiting_job(renting: RentalScenario, hours: float | None, *, unseen_hours: float = 0, **changes: Any) -> Job:
    """Return a job that waits about two hours for a full fleet, after the first cycle that examined it."""
    first = renting.scenario.submit("first")
    renting.scenario.run_scheduling_cycle()
    renting.run_attempt(first.job_id, 1)
    renting.world.clock.advance(60)
    deadline = {} if hours is None else {"deadline_at": hours_from_now(renting, hours)}
    job = renting.scenario.submit("second", **deadline, **changes)
    renting.world.clock.advance(unseen_hours * HOUR)
    renting.scenario.run_scheduling_cycle()
    return renting.scenario.job(job.job_id)


@pytest.mark.parametrize(("hours", "rentals"), [(None, 0), (3, 1), (6, 0), (1, 0)])
def test_class_without_delay_price_rents_only_for_a_deadline(hours: float | None, rentals: int) -> None:
    renting = market_without_delay_price()

    job = waiting_job(renting, hours)

    assert (job.rentals, renting.allocation_count()) == (rentals, rentals)
    records = renting.decision_records("PLACEMENT")
    assert [replay(record, renting.policy).differs_from(record) for record in records] == [""] * len(records)


def test_deadline_exceeds_no_cap_and_job_shows_missed_deadline() -> None:
    renting = market_without_delay_price(fleet_cap_micros_per_hour=1)

    job = waiting_job(renting, 3)

    assert renting.allocation_count() == 0
    document = explain.why_job(job.job_id, Reader(), renting.world.context())
    assert "an hour, which exceeds the limit: the fleet spends $0.00" in document["sentence"]
    assert "No usable pool meets the job's deadline" in document["sentence"]


def test_unreachable_deadline_is_reported_once_without_pools() -> None:
    renting = market_without_delay_price(pools=())
    job = waiting_job(renting, 4.5)
    assert "deadline" not in job.reason

    jobs = [job]
    for _ in range(3):
        renting.world.clock.advance(HOUR)
        renting.scenario.run_scheduling_cycle()
        jobs.append(renting.scenario.job(job.job_id))

    assert "No usable pool meets the job's deadline" in jobs[-1].reason
    assert len(renting.decision_records("PLACEMENT")) == 2


def test_missed_deadline_is_shown_until_the_job_ends() -> None:
    renting = market_without_delay_price()
    job = waiting_job(renting, 1)
    renting.world.clock.advance(2 * HOUR)

    def miss_text() -> str:
        return str(explain.why_job(job.job_id, Reader(), renting.world.context())["sentence"])

    assert miss_text().endswith("Its deadline passed 1h ago.")
    renting.scenario.set_job(renting.scenario.job(job.job_id).replace(state=JobState.CANCELLED))
    assert "deadline passed" not in miss_text()


def test_job_behind_its_deadline_rents_on_demand_until_well_ahead() -> None:
    renting = RentalScenario()
    # One hour of four has passed, and none of its work is done.
    job = waiting_job(renting, 4, unseen_hours=1)

    assert renting.rental(job.job_id).offer.pool == ON_DEMAND
    assert job.avoids_spot
    facts = PlacementFacts.model_validate(renting.decision_records("PLACEMENT")[0].facts)
    assert (facts.job.deadline_at, facts.job.avoids_spot) == (job.spec.deadline_at, False)
    on_its_line = RentalScenario()
    assert not waiting_job(on_its_line, 4).avoids_spot
    assert on_its_line.rental(job.job_id).offer.pool == SPOT


def test_job_does_not_migrate_if_that_misses_its_deadline() -> None:
    went = {}
    # The migration takes longer than the two minutes that the first job can lose when nodes become free.
    for hours in (RUN_SECONDS / HOUR + 0.05, 9):
        renting = RentalScenario()
        job = waiting_job(renting, hours)
        renting.advance_executions()
        renting.launch_nodes()
        renting.world.clock.advance(60)
        renting.advance_executions()
        renting.scenario.run_scheduling_cycle()
        renting.run_attempt(job.job_id, 1)
        renting.world.cluster.finish_pods(FIRST_JOB, 1)
        renting.scenario.settle(FIRST_JOB, 1)
        renting.scenario.run_scheduling_cycle()
        went[hours] = renting.scenario.job(job.job_id).is_migrating_back
        for record in renting.decision_records("MIGRATION"):
            assert MigrationFacts.model_validate(record.facts).candidate.deadline_at == job.spec.deadline_at
    assert list(went.values()) == [False, True]


def test_past_deadline_is_refused_except_for_a_repeated_request() -> None:
    renting = RentalScenario()
    deadline_at = hours_from_now(renting, 1)
    first = renting.scenario.submission("one", deadline_at=deadline_at)
    renting.world.clock.advance(2 * HOUR)

    with pytest.raises(Invalid) as refused:
        renting.scenario.submit("two", deadline_at=deadline_at)

    assert [field for field, _ in refused.value.faults] == ["deadline"]
    again = renting.scenario.submission("one", deadline_at=deadline_at)
    assert (again.job.job_id, again.is_repeat) == (first.job.job_id, True)
