"""All decisions of one scheduling cycle, from a snapshot."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.admission.decide_job import AdmissionAction
from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.capacity_policy import ReservedPool
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.renting.migration import MigrationAction
from evenkeel.domain.scheduling.cycle_plan import AdmissionStep, CyclePlan, MissingFacts, PendingStep, PreemptionStep
from evenkeel.domain.scheduling.cycle_snapshot import CycleSnapshot
from evenkeel.domain.scheduling.decide_cycle import decide_cycle
from evenkeel.domain.scheduling.queue_cursors import ALL_JOBS, QueueCursors
from tests.unit.scheduling.builders import CLUSTER, a_job, a_node_capacity, a_spec, at
from tests.unit.scheduling.test_sharing import a_charge, a_setup, a_team

NOW = at(1000)


def a_waiting_job(number: int, **changes: Any) -> Job:
    spec = a_spec(**{"name": f"job-{number}", "nodes": 1, **changes.pop("spec", {})})
    facts = {
        "job_id": f"job-{number}",
        "spec": spec,
        "state": JobState.PENDING,
        "submitted_at": at(number),
        "current_attempt": 0,
        "queue": spec.team if spec.team in ("red", "blue") else "",
    }
    return a_job(**{**facts, **changes})


def a_running_job(number: int, **changes: Any) -> Job:
    return a_waiting_job(number, **{"state": JobState.RUNNING, "current_attempt": 1, **changes})


def a_snapshot(*pending: Job, nodes: int = 2, **more: Any) -> CycleSnapshot:
    facts = {"capacities": tuple(a_node_capacity(number) for number in range(1, nodes + 1)), **more}
    return CycleSnapshot(pending={job.job_id: job for job in pending}, **facts)


def decide_snapshot(snapshot: CycleSnapshot, policy: Policy | None = None, mode: Mode = Mode.ACT) -> CyclePlan:
    plan = decide_cycle(snapshot, policy or Policy(), mode, NOW)
    assert not plan.is_incomplete
    return plan


def steps_by_job(plan: CyclePlan) -> dict[str, str]:
    return {step.decision.job_id: f"{type(step).__name__} {step.decision.action}" for step in plan.steps}


# ---------------------------------------------------------------- admissions and waits


def test_jobs_that_fit_start_and_the_next_one_waits() -> None:
    plan = decide_snapshot(a_snapshot(a_waiting_job(1), a_waiting_job(2), a_waiting_job(3)))

    assert steps_by_job(plan) == {
        "job-1": "AdmissionStep ADMIT",
        "job-2": "AdmissionStep ADMIT",
        "job-3": "PendingStep WAIT",
    }
    assert plan.pending_count == 1


def with_backfill(seconds: int) -> Policy:
    policy = Policy()
    return policy.replace(
        scheduling=policy.scheduling.replace(backfill_seconds=seconds),
        burst=policy.burst.replace(delay_micros_per_hour={"high": 20_000_000, "low": 1_000_000}),
    )


def a_classed_job(number: int, priority_class: str, nodes: int = 1, **changes: Any) -> Job:
    return a_waiting_job(number, spec={"priority_class": priority_class, "nodes": nodes}, **changes)


def test_backfill_starts_later_jobs_by_price_of_delay() -> None:
    jobs = (a_classed_job(1, "low", nodes=3), a_classed_job(2, "low"), a_classed_job(3, "high"))

    assert steps_by_job(decide_snapshot(a_snapshot(*jobs, nodes=1))) == {
        "job-1": "PendingStep NEVER_FITS",
        "job-2": "AdmissionStep ADMIT",
        "job-3": "PendingStep WAIT",
    }
    assert steps_by_job(decide_snapshot(a_snapshot(*jobs, nodes=1), with_backfill(1000))) == {
        "job-3": "AdmissionStep ADMIT",
        "job-1": "PendingStep NEVER_FITS",
        "job-2": "PendingStep WAIT",
    }


def test_job_older_than_the_backfill_limit_blocks_younger_jobs() -> None:
    # Both jobs could use the one free node. The older job needs a second one.
    taken = a_node_capacity(2).replace(free=a_node_capacity(2).free.minus(a_node_capacity(2).free))
    jobs = (a_classed_job(1, "low", nodes=2), a_classed_job(990, "high"))
    snapshot = a_snapshot(*jobs)._replace(capacities=(a_node_capacity(1), taken))

    younger = steps_by_job(decide_snapshot(snapshot, with_backfill(1000)))
    older = steps_by_job(decide_snapshot(snapshot, with_backfill(999)))

    assert younger == {"job-990": "AdmissionStep ADMIT", "job-1": "PendingStep WAIT"}
    assert older == {"job-1": "PendingStep WAIT", "job-990": "PendingStep BLOCKED"}


def test_displaced_job_is_overtaken_only_until_the_backfill_limit() -> None:
    displaced = a_classed_job(1, "low", displaced_at=at(100), queued_at=at(100), current_attempt=1)
    snapshot = a_snapshot(displaced, a_classed_job(950, "high"), nodes=1)

    assert steps_by_job(decide_snapshot(snapshot, with_backfill(901)))["job-950"] == "AdmissionStep ADMIT"
    assert steps_by_job(decide_snapshot(snapshot, with_backfill(900)))["job-1"] == "AdmissionStep ADMIT"


@settings(max_examples=200, deadline=None)
@given(displaced=st.integers(1, 999), submitted=st.lists(st.integers(1, 999), max_size=8, unique=True))
def test_displaced_job_goes_before_jobs_submitted_after_its_displacement(displaced: int, submitted: list[int]) -> None:
    other_jobs = [a_waiting_job(1000 + second, submitted_at=at(second)) for second in submitted]
    facts = {"submitted_at": at(0), "displaced_at": at(displaced), "queued_at": at(displaced), "current_attempt": 1}

    requests = a_snapshot(a_waiting_job(1, **facts), *other_jobs).requests(Policy(), NOW)

    order = [request.job_id for request in sorted(requests, key=lambda request: request.queue_order_key)]
    assert order.index("job-1") == sum(second < displaced for second in submitted)


@pytest.mark.parametrize(
    ("seconds", "rank"),
    [(1000, {}), (0, {"displacing_since": at(950)}), (1000, {"displacing_since": at(950)})],
    ids=["may be overtaken", "displacers", "displacers with backfill"],
)
def test_displaced_jobs_of_one_rank_go_by_their_submission(seconds: int, rank: dict[str, Any]) -> None:
    displacements = {1: at(900), 100: at(800)}
    jobs = (
        a_classed_job(number, "low", displaced_at=moment, queued_at=moment, current_attempt=1, **rank)
        for number, moment in displacements.items()
    )

    requests = a_snapshot(*jobs).requests(with_backfill(seconds), NOW)

    order = sorted(requests, key=lambda request: request.queue_order_key)
    assert [request.job_id for request in order] == ["job-1", "job-100"]


def test_backfill_does_not_apply_to_jobs_of_teams() -> None:
    jobs = (a_classed_job(1, "low"), a_classed_job(2, "high"))
    snapshot = a_snapshot(*jobs, nodes=1)._replace(setup=a_setup(a_team("red", 8)))

    requests = snapshot.requests(with_backfill(1000), NOW)

    assert [request.may_be_overtaken for request in requests] == [False, False]


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.RECOMMEND])
def test_no_job_starts_unless_the_mode_is_act(mode: Mode) -> None:
    plan = decide_snapshot(a_snapshot(a_waiting_job(1)), mode=mode)

    (step,) = plan.steps
    assert isinstance(step, PendingStep)
    assert (step.decision.action, step.mode, plan.admissions) == (AdmissionAction.ADMIT, mode, ())


def test_cycle_makes_no_decision_about_an_excluded_job() -> None:
    plan = decide_snapshot(a_snapshot(a_waiting_job(1), a_waiting_job(2), nodes=1).without_jobs(["job-1"]))

    assert steps_by_job(plan) == {"job-2": "AdmissionStep ADMIT"}


def test_same_snapshot_gives_the_same_plan() -> None:
    snapshot = a_snapshot(a_waiting_job(1), a_waiting_job(2), a_waiting_job(3))

    assert decide_snapshot(snapshot) == decide_snapshot(snapshot)


def test_job_on_an_unreadable_cluster_is_held() -> None:
    plan = decide_snapshot(a_snapshot(a_waiting_job(1), unreadable_clusters=frozenset({CLUSTER}), capacities=()))

    assert steps_by_job(plan) == {"job-1": "PendingStep EXCLUDED"}


def test_job_in_a_kueue_namespace_is_held() -> None:
    job = a_waiting_job(1)
    plan = decide_snapshot(a_snapshot(job, kueue_namespaces={(CLUSTER, job.namespace): "its label"}))

    assert steps_by_job(plan) == {"job-1": "PendingStep EXCLUDED"}
    assert "its label" in plan.decisions[0].reason


def test_job_in_the_namespace_of_another_team_is_held() -> None:
    setup = a_setup(a_team("red"), a_team("blue"))
    plan = decide_snapshot(a_snapshot(a_waiting_job(1, spec={"team": "red"}, namespace="blue"), setup=setup))

    assert steps_by_job(plan) == {"job-1": "PendingStep EXCLUDED"}
    assert "team blue" in plan.decisions[0].reason


def test_every_job_is_handed_to_kueue_if_kueue_admits() -> None:
    plan = decide_snapshot(a_snapshot(a_waiting_job(2), a_waiting_job(1), nodes=0, authority=AdmissionAuthority.KUEUE))

    assert [step.decision.job_id for step in plan.admissions] == ["job-1", "job-2"]
    assert all(step.decision.facts.local_queue for step in plan.admissions)


# ---------------------------------------------------------------- preemption


def snapshot_with_urgent_job(**more: Any) -> CycleSnapshot:
    """Return a snapshot with an urgent pending job, and a running job of lower priority on the only node."""
    urgent = a_waiting_job(2, spec={"team": "red"}, priority=100, namespace="red")
    return a_snapshot(
        urgent,
        capacities=(a_node_capacity(1, free=0),),
        setup=a_setup(a_team("red", 8)),
        live_charges=(a_charge(1, "red", 1),),
        jobs_with_charge={"job-1": a_running_job(1, spec={"team": "red"}, **more)},
    )


def test_urgent_job_preempts_a_job_of_lower_priority() -> None:
    (step,) = decide_snapshot(snapshot_with_urgent_job()).steps

    assert isinstance(step, PreemptionStep)
    assert step.victims == {"job-1": "InClusterQueue"}


def test_victim_gets_only_one_stop_request() -> None:
    job = snapshot_with_urgent_job().jobs_with_charge["job-1"]
    stopping = job.replace(stop_request=job.stop_request_now("It is cancelled.", "ana", NOW))
    snapshot = snapshot_with_urgent_job()._replace(jobs_with_charge={"job-1": stopping})

    assert steps_by_job(decide_snapshot(snapshot)) == {"job-2": "PendingStep PREEMPT"}


def test_victim_with_a_newer_attempt_gets_no_stop_request() -> None:
    assert steps_by_job(decide_snapshot(snapshot_with_urgent_job(current_attempt=2))) == {
        "job-2": "PendingStep PREEMPT"
    }


# ---------------------------------------------------------------- long queues


def a_long_queue(*pending: Job, nodes: int = 1) -> CycleSnapshot:
    cursors = {ALL_JOBS: "after-head"}
    return a_snapshot(
        *pending,
        nodes=nodes,
        cursor_after_read=cursors,
        cursor_after_first_page=cursors,
        cursors_of_next_cycle=QueueCursors({ALL_JOBS: "after-page"}),
    )


def test_cycle_requests_more_jobs_once_if_whole_queue_is_parked() -> None:
    snapshot = a_long_queue(a_waiting_job(1, spec={"nodes": 5}))

    incomplete_plan = decide_cycle(snapshot, Policy(), Mode.ACT, NOW)
    assert (incomplete_plan.missing, incomplete_plan.steps) == (MissingFacts(queues=(ALL_JOBS,)), ())
    more = {**snapshot.pending, "job-2": a_waiting_job(2)}
    plan = decide_cycle(snapshot._replace(pending=more), Policy(), Mode.ACT, NOW, incomplete_plan=incomplete_plan)

    assert not plan.is_incomplete
    assert steps_by_job(plan) == {"job-1": "PendingStep NEVER_FITS", "job-2": "AdmissionStep ADMIT"}


def test_cycle_requests_no_more_jobs_if_one_starts() -> None:
    plan = decide_snapshot(a_long_queue(a_waiting_job(1)))

    assert steps_by_job(plan) == {"job-1": "AdmissionStep ADMIT"}


def test_next_cycle_reads_jobs_behind_an_unblocked_barrier_first() -> None:
    snapshot = a_long_queue(a_waiting_job(1), a_waiting_job(9), nodes=2)
    cursors = QueueCursors({ALL_JOBS: "later"}, frozenset({"job-9"}), "page", (("job-1", "behind-job-1"),))

    plan = decide_snapshot(snapshot._replace(cursors_of_next_cycle=cursors))

    assert steps_by_job(plan) == {"job-1": "AdmissionStep ADMIT"}
    assert plan.queue_plan.cursors_of_next_cycle == cursors._replace(
        page_starts={ALL_JOBS: "behind-job-1"}, barriers=()
    )


def test_waiting_job_is_stored_as_barrier_with_next_cursor() -> None:
    before = QueueCursors({ALL_JOBS: "later"}, frozenset({"job-2"}), "page")
    plan = decide_snapshot(
        a_snapshot(a_waiting_job(1, spec={"nodes": 2}, current_attempt=1), a_waiting_job(2, spec={"nodes": 2}), nodes=1)
    )

    after = before.with_barriers(plan.decisions, "behind-head")

    assert after.barriers == (("job-1", "behind-head"),)


def test_barriers_are_dropped_once_whole_queue_was_read() -> None:
    cursors = QueueCursors({}, barriers=(("job-1", "cursor"),))

    assert cursors.with_barriers((), "behind-head").barriers == ()


# ---------------------------------------------------------------- missing facts


def a_job_with_deadline(number: int, **changes: Any) -> Job:
    return a_waiting_job(number, spec={"nodes": 2, "deadline_at": NOW + timedelta(hours=1)}, **changes)


def test_incomplete_plan_lists_missing_facts_that_placement_needs() -> None:
    snapshot = a_snapshot(a_job_with_deadline(2, current_attempt=1), nodes=1, live_charges=(a_charge(1, "", 1),))

    incomplete_plan = decide_cycle(snapshot, Policy(), Mode.ACT, NOW)

    assert incomplete_plan.missing == MissingFacts(
        jobs=("job-1",), attempts_of=("job-2",), needs_shortages=True, needs_past_jobs=True
    )
    assert incomplete_plan.steps == ()


def test_first_attempt_has_no_earlier_attempts_to_read() -> None:
    incomplete_plan = decide_cycle(a_snapshot(a_job_with_deadline(2), nodes=1), Policy(), Mode.ACT, NOW)

    assert incomplete_plan.missing == MissingFacts(needs_shortages=True, needs_past_jobs=True)


def test_queue_plan_does_not_depend_on_the_incomplete_plan() -> None:
    snapshot = a_snapshot(
        a_job_with_deadline(2, current_attempt=1), a_waiting_job(3), nodes=1, live_charges=(a_charge(1, "", 1),)
    )
    incomplete_plan = decide_cycle(snapshot, Policy(), Mode.ACT, NOW)
    cycle_snapshot = snapshot._replace(jobs_with_charge={"job-1": a_running_job(1)})

    plan = decide_cycle(cycle_snapshot, Policy(), Mode.ACT, NOW, incomplete_plan=incomplete_plan)

    assert not plan.is_incomplete
    assert plan.queue_plan == decide_cycle(cycle_snapshot, Policy(), Mode.ACT, NOW).queue_plan


def test_cycle_does_not_request_a_missing_job_row_again() -> None:
    snapshot = a_snapshot(a_job_with_deadline(2), nodes=1, live_charges=(a_charge(1, "", 1),))
    incomplete_plan = decide_cycle(snapshot, Policy(), Mode.ACT, NOW)

    assert not decide_cycle(snapshot, Policy(), Mode.ACT, NOW, incomplete_plan=incomplete_plan).is_incomplete


# ---------------------------------------------------------------- jobs that leave their nodes


def snapshot_with_drained_queue(**more: Any) -> CycleSnapshot:
    setup = a_setup(a_team("red", 8, queue={"stop": "HoldAndDrain"}))
    facts = {
        "jobs_with_charge": {"job-1": a_running_job(1, spec={"team": "red"})},
        "live_charges": (a_charge(1, "red", 1),),
        **more,
    }
    return a_snapshot(setup=setup, **facts)


def test_jobs_of_a_drained_queue_stop() -> None:
    assert decide_snapshot(snapshot_with_drained_queue()).queue_stops == ("job-1",)
    assert decide_snapshot(snapshot_with_drained_queue(), mode=Mode.OBSERVE).queue_stops == ()


def test_jobs_of_a_drained_queue_get_one_stop_request() -> None:
    job = a_running_job(1, spec={"team": "red"})
    stopped = job.replace(stop_request=job.stop_request_now("It is drained.", "schedule_jobs/drain", NOW))

    assert decide_snapshot(snapshot_with_drained_queue(jobs_with_charge={"job-1": stopped})).queue_stops == ()
    assert (
        decide_snapshot(snapshot_with_drained_queue(scheduler_state=SchedulerState(stopping={"job-1": ""}))).queue_stops
        == ()
    )
    assert (
        decide_snapshot(
            snapshot_with_drained_queue(jobs_with_charge={"job-1": a_running_job(1, current_attempt=2)})
        ).queue_stops
        == ()
    )


def policy_with_reservation(seconds: float) -> Policy:
    ends_at = NOW + timedelta(seconds=seconds)
    policy_with_reservation = ReservedPool(
        cluster=CLUSTER, pool="workers", starts_at=at(0), ends_at=ends_at, closing_seconds=0
    )
    return Policy(scheduling=SchedulingPolicy(reservations=(policy_with_reservation,)))


def snapshot_on_reservation(**more: Any) -> CycleSnapshot:
    charge = a_charge(1, "", 1, pool="workers")
    return a_snapshot(live_charges=(charge,), **{"jobs_with_charge": {"job-1": a_running_job(1)}, **more})


def test_job_is_requeued_before_its_reservation_ends() -> None:
    (stop,) = decide_snapshot(snapshot_on_reservation(), policy_with_reservation(60)).reservation_stops

    assert (stop.action, stop.facts.candidate.job_id) == (MigrationAction.REQUEUE, "job-1")


def test_job_stays_on_a_reservation_that_lasts() -> None:
    assert decide_snapshot(snapshot_on_reservation(), policy_with_reservation(86_400)).reservation_stops == ()


def test_job_on_an_ending_reservation_is_read_first() -> None:
    incomplete_plan = decide_cycle(
        snapshot_on_reservation(jobs_with_charge={}), policy_with_reservation(60), Mode.ACT, NOW
    )

    assert incomplete_plan.missing == MissingFacts(jobs=("job-1",))


def test_every_cycle_decision_contains_its_facts() -> None:
    plan = decide_snapshot(a_snapshot(a_waiting_job(1), a_waiting_job(2), a_waiting_job(3)))

    assert all(isinstance(step, AdmissionStep | PendingStep) and step.decision.facts.request for step in plan.steps)
    assert all(step.decision.reason for step in plan.steps)
