"""A job that keeps checkpoints moves to rented nodes, so that a job without checkpoints starts on committed nodes."""

from typing import Any

import pytest

from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.renting.rental import RentalState
from evenkeel.domain.replay import replay
from evenkeel.ports import Ledger
from tests.unit.services_jobs.test_rentals import SPOT, RentalScenario, a_policy

NO_CHECKPOINTS: dict[str, Any] = {"checkpoint_uri": ""}


def waiting(**changes: Any) -> tuple[RentalScenario, Job, Job]:
    """Return a job that holds both nodes and keeps checkpoints, and a pending job without checkpoints."""
    mode = changes.pop("mode", Mode.ACT)
    market = RentalScenario(policy=a_policy(**{"max_moves": 3, **changes}))
    first = market.scenario.submit("first")
    market.scenario.run_scheduling_cycle()
    market.run(first.job_id, 1)
    market.world.clock.advance(60)
    second = market.scenario.submit("second", **NO_CHECKPOINTS)
    market.scenario.mode = mode
    return market, first, second


def commits(ledger: Ledger) -> int:
    return len(ledger.commits)  # type: ignore[attr-defined]


def test_job_with_checkpoints_moves_and_waiting_job_takes_nodes() -> None:
    market, first, second = waiting()

    market.scenario.run_scheduling_cycle()
    moving, waits = market.scenario.job(first.job_id), market.scenario.job(second.job_id)
    market.scenario.stop(first.job_id, 1)
    market.scenario.settle(first.job_id, 1)
    market.scenario.run_scheduling_cycle()
    market.advance()
    market.karpenter()
    market.advance()
    market.scenario.run_scheduling_cycle()

    assert moving.stop_request is not None
    assert moving.stop_request.by == f"schedule_jobs/displace/{second.job_id}"
    assert waits.reason.startswith("1 job moves to rented nodes, so that the job starts in ")
    assert market.scenario.attempt(second.job_id, 1).pool == "p5-workers"
    assert market.scenario.attempt(first.job_id, 2).pool == SPOT
    moved = market.scenario.job(first.job_id)
    assert (moved.moves, moved.displaced_at) == (1, None)
    assert market.scenario.job(second.job_id).displacing_since is None


def test_no_nodes_are_rented_for_job_during_a_displacement() -> None:
    market, first, second = waiting()
    market.scenario.run_scheduling_cycle()
    before = commits(market.world.ledger)

    market.scenario.run_scheduling_cycle()

    assert market.scenario.job(second.job_id).rentals == 0
    assert len(market.records("DISPLACEMENT")) == 1
    assert market.scenario.job(first.job_id).moves == 1
    market.scenario.run_scheduling_cycle()
    assert commits(market.world.ledger) - before <= 2  # at most its reason is new


def test_displacement_decision_replays_and_names_the_rejected_option() -> None:
    market, _, _ = waiting()
    market.scenario.run_scheduling_cycle()

    (record,) = market.records("DISPLACEMENT")

    assert replay(record, market.policy).differs_from(record) == ""
    assert [option.option for option in record.alternatives] == ["burst-on-demand"]


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.RECOMMEND])
def test_jobs_move_only_in_mode_act(mode: Mode) -> None:
    market, first, _ = waiting(mode=mode)

    market.scenario.run_scheduling_cycle()

    assert market.scenario.job(first.job_id).stop_request is None
    assert market.records("DISPLACEMENT") == []


def test_shipped_policy_moves_no_job_off_committed_nodes() -> None:
    market, first, second = waiting(max_moves=0)

    market.scenario.run_scheduling_cycle()

    assert market.scenario.job(first.job_id).stop_request is None
    assert market.scenario.job(second.job_id).rentals == 1


def test_job_that_moved_as_often_as_the_policy_allows_stays() -> None:
    market, first, second = waiting(max_moves=1)
    market.scenario.run_scheduling_cycle()
    market.scenario.stop(first.job_id, 1)
    market.scenario.settle(first.job_id, 1)
    market.scenario.run_scheduling_cycle()
    market.advance()
    market.karpenter()
    market.advance()
    market.scenario.run_scheduling_cycle()
    market.run(first.job_id, 2)
    market.run(second.job_id, 1)
    market.world.cluster.finish_pods(second.job_id, 1)
    market.scenario.settle(second.job_id, 1)

    market.scenario.run_scheduling_cycle()

    assert market.scenario.job(first.job_id).stop_of(2) is None
    assert market.rental(first.job_id).state is RentalState.READY
    assert market.scenario.job(first.job_id).state is JobState.RUNNING
