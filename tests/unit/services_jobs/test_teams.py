import random
import threading
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.decisions import Decision
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.kueue.preemption import Reason, reason_text
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.quotas.budgets import remaining_by_team
from evenkeel.domain.quotas.spending import week_of
from evenkeel.domain.quotas.teams import MAX_GPU_HOURS, MAX_USD, FleetQuotas, Period, Team, TeamSetup
from evenkeel.domain.renting.burst_policy import BurstPolicy
from evenkeel.domain.replay import replay
from evenkeel.ports import Key, Put, Row, Table, WorkflowName, row_bytes
from evenkeel.services.admin import set_quotas
from evenkeel.services.admin.remove_team import TeamInUse
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.records import explain
from evenkeel.services.scheduling import read_usage
from evenkeel.services.storage import team_setup
from evenkeel.services.tables import job_rows, quota_rows, rows
from tests.examples import examples
from tests.fakes.crashes import Crash, CrashPlan, CrashTiming
from tests.unit.scheduling.test_sharing import GPU, P5, a_team
from tests.unit.services_jobs import admission_audit
from tests.unit.services_jobs.job_scenario import JobScenario

MEMBERS = [{"principal": f"arn:aws:iam::111122223333:role/{name}"} for name in ("ana", "bo")]


def set_up_teams(scenario: JobScenario, *parts: Team | FleetQuotas) -> None:
    stored_setup = team_setup.load_setup(scenario.world.ledger)
    for part in parts:
        name = part.name if isinstance(part, Team) else team_setup.FLEET
        request = set_quotas.SetQuotasRequest(
            part=part, expected=stored_setup.version_of(name), by="role/Platform", reason="Quota."
        )
        set_quotas.run(request, scenario.world.context())


def shared_fleet(size: int = 4, red: int = 16, blue: int = 16, **more: Any) -> JobScenario:
    """A fleet of two teams; each has half of the quota."""
    scenario = JobScenario(size=size, **more)
    set_up_teams(
        scenario,
        a_team("red", red, members=MEMBERS),
        a_team("blue", blue, members=MEMBERS),
        FleetQuotas(priority_classes={"low": 1, "high": 10}),
    )
    return scenario


def setup_of(scenario: JobScenario) -> TeamSetup:
    return team_setup.load_setup(scenario.world.ledger).setup


def decision_records(scenario: JobScenario, job_id: str) -> list[Decision]:
    return [rows.decode(row, Decision) for row in scenario.world.ledger.by_state(Table.INCIDENTS, f"DEC#{job_id}").rows]


def test_job_uses_team_quota_until_it_is_settled() -> None:
    scenario = shared_fleet()
    job = scenario.submit(team="red")

    scenario.run_scheduling_cycle()

    (charge,) = scenario.world.ledger.partition(Table.QUOTAS, quota_rows.tree_key().pk, "CHARGE#")
    assert scenario.job(job.job_id).state is JobState.STARTING
    assert (charge.doc["queue"], charge.doc["use"], charge.doc["owner"]) == ("red", {P5: {GPU: 16}}, "role/ana")
    scenario.cancel(job.job_id)
    scenario.settle(job.job_id)
    assert scenario.charges() == []
    assert scenario.usage("red") == 0


def test_job_beyond_team_quota_waits_with_a_reason() -> None:
    scenario = shared_fleet(red=8, blue=8)
    job = scenario.submit(team="red", nodes=3)

    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.PENDING
    assert (
        "The job asks for 24 nvidia.com/gpu of ml.p5.48xlarge: 16 free, 16 at most." in scenario.job(job.job_id).reason
    )


def test_job_preempted_before_its_pods_start_stays_preempted() -> None:
    scenario = shared_fleet(size=2, red=16, blue=0)
    low = scenario.started(team="red", priority_class="low")
    scenario.launch(low.job_id)
    scenario.submit("high", team="red", priority_class="high")
    scenario.run_scheduling_cycle()

    scenario.run_attempt(low.job_id, 1)
    running = scenario.job(low.job_id)
    scenario.stop(low.job_id)
    scenario.world.cluster.stop(scenario.attempt(low.job_id), 0)
    scenario.settle(low.job_id)

    assert (running.state, running.is_preempted) == (JobState.RUNNING, True)
    assert running.reason.startswith("The job saves a checkpoint and stops. Preempted by ")
    assert scenario.job(low.job_id).is_preempted


def test_higher_class_preempts_a_lower_class_which_resumes_later() -> None:
    scenario = shared_fleet(size=2, red=16, blue=0)
    low = scenario.running(team="red", priority_class="low")
    scenario.save_checkpoint(low.job_id, 1, step=40)
    high = scenario.submit("high", team="red", priority_class="high")

    scenario.run_scheduling_cycle()

    request = scenario.job(low.job_id).stop_of(1)
    assert request
    assert (request.outcome, request.by) == (AttemptState.STOPPED, f"schedule_jobs/{high.job_id}")
    text = f"Preempted by {high.job_id} of team red: the preempting job goes first in the same queue."
    assert (request.reason, scenario.job(low.job_id).reason) == (
        text,
        f"The job saves a checkpoint and stops. {text}",
    ), "the attempt still runs"
    assert scenario.job(high.job_id).reason == f"Waits until {low.job_id} has stopped."
    assert (scenario.job(high.job_id).state, len(scenario.charges())) == (JobState.PENDING, 1)

    scenario.stop(low.job_id)
    scenario.world.cluster.stop(scenario.attempt(low.job_id), 0)
    scenario.settle(low.job_id)
    scenario.run_scheduling_cycle()

    back = scenario.job(low.job_id)
    assert (back.state, back.application_failures, back.launch_failures) == (JobState.PENDING, 0, 0)
    assert scenario.job(high.job_id).state is JobState.STARTING
    scenario.run_attempt(high.job_id, 1)
    scenario.world.cluster.finish_pods(high.job_id, 1)
    scenario.settle(high.job_id)
    scenario.run_scheduling_cycle()
    scenario.run_attempt(low.job_id, 2)
    resumed = scenario.attempt(low.job_id, 2).resume_from
    assert resumed
    assert (resumed.attempt, resumed.step) == (1, 40)


def test_raised_priority_of_a_running_job_counts_next_cycle() -> None:
    scenario = shared_fleet(size=2, red=16, blue=0)
    low = scenario.running(team="red", priority_class="low")
    row = scenario.world.ledger.get(job_rows.job_key(low.job_id))
    assert row
    raised = rows.decode(row, Job).replace(priority=20)
    scenario.world.ledger.commit(Put(job_rows.job_row(raised, row.version)))
    high = scenario.submit("high", team="red", priority_class="high")

    scenario.run_scheduling_cycle()

    assert scenario.job(low.job_id).stop_request is None
    assert scenario.job(high.job_id).state is JobState.PENDING


def test_team_in_a_kueue_namespace_starts_and_preempts_nothing() -> None:
    scenario = shared_fleet(size=2, red=8, blue=8)
    set_up_teams(scenario, a_team("red", 8, members=MEMBERS, namespace="red"), a_team("blue", 8, members=MEMBERS))
    low = scenario.submit("a", team="blue", nodes=1, priority_class="low")
    scenario.run_scheduling_cycle()
    held = scenario.submit("b", team="red", nodes=1, priority_class="high")
    other = scenario.submit("c", team="blue", nodes=1, priority_class="low")
    scenario.world.cluster.kueue_managed["red"] = "its LocalQueue default"

    scenario.run_scheduling_cycle()

    assert scenario.job(held.job_id).reason.startswith("Kueue admits jobs in namespace red (its LocalQueue default)")
    assert [record.action for record in decision_records(scenario, held.job_id)] == ["EXCLUDED"]
    assert scenario.job(low.job_id).stop_request is None
    assert scenario.job(other.job_id).state is JobState.STARTING  # it borrows the unused quota of the held team


def test_only_classes_of_the_policy_reach_kubernetes() -> None:
    allowed = Policy(jobs=JobPolicy(priority_classes=("high",)))
    priced = Policy(burst=BurstPolicy(delay_micros_per_hour={"high": 1}))
    stories = [shared_fleet(), JobScenario(policy=allowed), JobScenario(policy=priced)]
    jobs = [stories[0].running(team="red", priority_class="high")]
    jobs += [scenario.running(priority_class="high") for scenario in stories[1:]]

    classes = [
        scenario.world.cluster.launched(job.job_id, 1).spec.job_spec.priority_class
        for scenario, job in zip(stories, jobs, strict=True)
    ]
    assert classes == ["", "high", ""]


def test_removed_priority_class_is_not_sent_to_kubernetes() -> None:
    scenario = JobScenario(policy=Policy(jobs=JobPolicy(priority_classes=("high",))))
    job = scenario.started(priority_class="high")
    scenario.policy = Policy()

    scenario.run_attempt(job.job_id, 1)

    assert scenario.world.cluster.launched(job.job_id, 1).spec.job_spec.priority_class == ""


def test_job_waits_if_its_namespace_belongs_to_another_team() -> None:
    scenario = shared_fleet()
    job = scenario.submit(team="red")
    # An older release let a team leave its namespace while it had jobs there.
    for name, namespace in (("red", "rouge"), ("blue", "red")):
        row = scenario.world.ledger.get(quota_rows.team_key(name))
        assert row
        team = Team.model_validate_json(row.doc["document"])
        scenario.store_row(quota_rows.setup_row(row.key, team.replace(namespace=namespace), row.version))

    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.PENDING
    assert scenario.job(job.job_id).reason.startswith("Namespace red now belongs to team blue.")
    assert replay(decision_records(scenario, job.job_id)[-1], scenario.policy).action == "EXCLUDED"


def test_team_keeps_its_namespace_while_it_has_jobs() -> None:
    scenario = shared_fleet()
    waiting = scenario.submit(team="red")
    moved = setup_of(scenario).by_name["red"].replace(namespace="rouge")

    for _ in range(2):
        with pytest.raises(TeamInUse):
            set_up_teams(scenario, moved)
        scenario.run_scheduling_cycle()
    scenario.cancel(waiting.job_id)
    scenario.launch(waiting.job_id)
    scenario.stop(waiting.job_id)
    scenario.settle(waiting.job_id)
    set_up_teams(scenario, moved)

    assert setup_of(scenario).by_name["red"].namespace == "rouge"


def test_preempted_job_gets_one_stop_request() -> None:
    scenario = shared_fleet(size=2, red=16, blue=0)
    low = scenario.running(team="red", priority_class="low")
    scenario.submit("high", team="red", priority_class="high")
    scenario.run_scheduling_cycle()
    before = scenario.world.ledger.contents()

    scenario.run_scheduling_cycle()
    scenario.run_scheduling_cycle()

    assert scenario.world.ledger.contents() == before
    assert scenario.timeline(low.job_id).count("preempted") == 1


def test_preemption_is_one_commit() -> None:
    scenario = shared_fleet(size=2, red=16, blue=0)
    low = scenario.running(team="red", priority_class="low")
    high = scenario.submit("high", team="red", priority_class="high")
    scenario.run_scheduling_cycle()

    touched = [
        {write.row.key for write in writes if isinstance(write, Put)} for writes in scenario.world.ledger.commits
    ]
    together = {quota_rows.tree_key(), job_rows.job_key(low.job_id), job_rows.job_key(high.job_id)}
    assert [together <= keys for keys in touched].count(True) == 1


def test_nothing_is_preempted_for_quota_of_job_being_cancelled() -> None:
    scenario = shared_fleet(size=2, red=16, blue=0)
    low = scenario.running(team="red", priority_class="low", nodes=1)
    other = scenario.running(team="red", priority_class="low", nodes=1)
    scenario.cancel(low.job_id)
    high = scenario.submit("high", team="red", priority_class="high", nodes=1)

    scenario.run_scheduling_cycle()

    assert scenario.job(other.job_id).stop_request is None
    assert scenario.job(high.job_id).reason == f"Waits until {low.job_id} has stopped."


def test_observe_mode_preempts_no_job() -> None:
    scenario = shared_fleet(size=2, red=16, blue=0)
    low = scenario.running(team="red", priority_class="low")
    high = scenario.submit("high", team="red", priority_class="high")
    scenario.mode = Mode.OBSERVE

    scenario.run_scheduling_cycle()

    assert scenario.job(low.job_id).stop_request is None
    assert scenario.job(high.job_id).reason == (
        "Mode is observe: Evenkeel would ask other jobs to stop, but takes no action. "
        f"Waits until {low.job_id} has stopped."
    )


def test_every_decision_of_teams_replays_from_its_record() -> None:
    scenario = shared_fleet(size=3, red=16, blue=8)
    scenario.running(team="red", priority_class="low")
    jobs = [
        scenario.submit(f"own-{number}", team=team, nodes=nodes, priority_class=name)
        for number, (team, nodes, name) in enumerate(
            [("blue", 1, "low"), ("red", 2, "high"), ("blue", 2, ""), ("blue", 2, ""), ("red", 4, "")]
        )
    ]
    for _ in range(3):
        scenario.run_scheduling_cycle()

    decisions = [record for job in jobs for record in decision_records(scenario, job.job_id)]
    assert {record.action for record in decisions} >= {"ADMIT", "PREEMPT", "SAME_SHAPE", "NEVER_FITS"}
    for record in decisions:
        assert replay(record, scenario.policy).differs_from(record) == ""


def test_why_names_the_smallest_changes_that_admit_a_job() -> None:
    scenario = shared_fleet(red=8, blue=8)
    waiting = scenario.submit("a", team="red", nodes=3)
    behind = scenario.submit("b", team="red", nodes=3)
    scenario.run_scheduling_cycle()

    for job in (waiting, behind):
        document = explain.why_job(job.job_id, Reader(), scenario.world.context())
        by_kind = {change["kind"]: change for change in document["changes"]}
        assert (by_kind["quota"]["amounts"], by_kind["size"]["counts"]) == ({GPU: "8"}, [2])
    set_up_teams(scenario, a_team("red", 16, members=MEMBERS))
    scenario.run_scheduling_cycle()
    assert scenario.job(waiting.job_id).state is JobState.STARTING


def test_why_does_not_name_a_sum_of_jobs() -> None:
    scenario = shared_fleet(size=2, red=16, blue=0)
    scenario.running(team="red", priority_class="high")
    job = scenario.submit("next", team="red", priority_class="low")
    scenario.run_scheduling_cycle()

    document = explain.why_job(job.job_id, Reader(), scenario.world.context())

    assert [change["message"] for change in document["changes"]] == [f"16 more of {GPU} on {P5} for red."]


def test_every_preemption_reason_has_a_description() -> None:
    assert [reason_text(reason) for reason in Reason if reason_text(reason) == reason] == []
    assert reason_text("INTERRUPTED") == "INTERRUPTED"


def test_drained_queue_stops_its_jobs_once() -> None:
    scenario = shared_fleet()
    job = scenario.running(team="red")
    set_up_teams(scenario, a_team("red", members=MEMBERS, queue={"stop": "HoldAndDrain"}))

    scenario.run_scheduling_cycle()
    scenario.run_scheduling_cycle()

    request = scenario.job(job.job_id).stop_of(1)
    assert request
    assert request.reason == "The queue of team red is drained."
    assert scenario.timeline(job.job_id).count("drained") == 1


def test_jobs_older_than_the_teams_move_into_their_queues() -> None:
    scenario = JobScenario(size=2)
    running, waiting = scenario.running(team="red"), scenario.submit("later", team="red", priority_class="")
    lost = scenario.submit("lost", team="green")
    set_up_teams(scenario, a_team("red", members=MEMBERS), FleetQuotas(priority_classes={"low": 1}))

    scenario.run_scheduling_cycle()

    assert scenario.job(waiting.job_id).queue == "red"
    assert scenario.job(waiting.job_id).reason.endswith(
        "The job asks for 16 nvidia.com/gpu of ml.p5.48xlarge: 0 free, 16 at most."
    )
    assert scenario.job(lost.job_id).reason == "Team green no longer exists."
    assert scenario.job(running.job_id).state is JobState.RUNNING


def test_fitting_job_behind_unfit_jobs_is_admitted() -> None:
    scenario = shared_fleet(policy=Policy(scheduling=SchedulingPolicy(jobs_per_page=2)))
    large = [
        scenario.submit(f"key-{number}", team="red", nodes=3 + number % 2, priority_class="high") for number in range(5)
    ]
    small = scenario.submit("small", team="red", nodes=1, priority_class="low")
    set_up_teams(scenario, a_team("red", 16, cohort="", members=MEMBERS))

    scenario.run_scheduling_cycle()

    assert scenario.job(small.job_id).state is JobState.STARTING
    assert {scenario.job(job.job_id).state for job in large} == {JobState.PENDING}


def test_team_without_budget_starts_no_job() -> None:
    scenario = shared_fleet()
    set_up_teams(scenario, a_team("red", members=MEMBERS, budgets=[{"period": "month", "gpuHours": 4}]))
    first = scenario.running(team="red")
    scenario.world.clock.advance(3600)
    scenario.world.cluster.finish_pods(first.job_id, 1)
    scenario.settle(first.job_id)
    second = scenario.submit("second", team="red")

    scenario.run_scheduling_cycle()

    row = scenario.world.ledger.get(quota_rows.spent_key("red", "2026-11"))
    assert row
    assert row.doc == {"acceleratorSeconds": 16 * 3600, "usdMicros": 16 * 8_256_000, "unpricedSeconds": 0}
    assert scenario.job(second.job_id).reason == (
        "The job waits because a limit is reached: 16 of 4 accelerator-hours of team red in 2026-11 are used."
    )


def run_and_settle(scenario: JobScenario, job_id: str, seconds: float) -> None:
    """Run a job for `seconds`, and settle it. The settlement is delivered twice."""
    scenario.run_attempt(job_id, 1)
    scenario.world.clock.advance(seconds)
    scenario.world.cluster.finish_pods(job_id, 1)
    scenario.settle(job_id)
    scenario.settle(job_id)


def test_job_of_submitter_with_least_recent_use_starts_first() -> None:
    scenario = shared_fleet(size=2, red=16, blue=0)
    set_up_teams(scenario, a_team("red", members=MEMBERS, queue={"byUse": True}))
    first = scenario.started(team="red")
    run_and_settle(scenario, first.job_id, 3600)
    of_ana = scenario.submit("again", team="red")
    scenario.world.clock.advance(60)
    of_bo = scenario.submission("bo's", principal="role/bo", team="red").job

    scenario.run_scheduling_cycle()

    assert scenario.job(of_bo.job_id).state is JobState.STARTING
    assert scenario.job(of_ana.job_id).state is JobState.PENDING


def test_recent_use_is_counted_once_and_decays() -> None:
    scenario = shared_fleet()
    set_up_teams(scenario, a_team("red", members=MEMBERS, queue={"byUse": True}))
    first = scenario.started(team="red")
    run_and_settle(scenario, first.job_id, 7 * 24 * 3600)

    used = read_usage.run(setup_of(scenario), scenario.world.context())
    week_later = read_usage.run(
        setup_of(scenario), scenario.world.context(now=scenario.world.clock.now() + timedelta(weeks=1))
    )

    assert used["red"]["role/ana"] == pytest.approx(8)  # half of the 16 GPUs that it held for one half-life
    assert week_later["red"]["role/ana"] == pytest.approx(4)


def test_recent_use_of_thousands_of_submitters_is_kept() -> None:
    scenario = shared_fleet()
    set_up_teams(scenario, a_team("red", members=MEMBERS, queue={"byUse": True}))
    first = scenario.started(team="red")
    now = scenario.world.clock.now()
    begin = week_of(now)
    many = {f"role/{'s' * 100}{n:05d}": 10 ** (10 if n < 55 else 9) for n in range(3_225)}
    older_release = Row(Key(Table.QUOTAS, "TEAM#red", f"USED#{Period.WEEK.key_at(begin)}"), many)
    scenario.store_row(older_release)

    run_and_settle(scenario, first.job_id, 3600)

    used = read_usage.run(setup_of(scenario), scenario.world.context())["red"]
    assert row_bytes(older_release) > 399_900
    assert len(used) == 3_226
    assert used["role/ana"] > 0


def test_job_of_equal_priority_that_loses_least_is_preempted() -> None:
    scenario = shared_fleet(size=4, red=32, blue=0)
    saves = scenario.running(team="red", nodes=2, priority_class="low")
    scenario.world.clock.advance(60)
    loses_all = scenario.running(team="red", nodes=2, priority_class="low", checkpoint_uri="")
    scenario.world.clock.advance(24 * 3600)
    high = scenario.submit("high", team="red", nodes=2, priority_class="high")

    scenario.run_scheduling_cycle()

    assert scenario.job(saves.job_id).stop_of(1)
    assert scenario.job(loses_all.job_id).stop_of(1) is None
    (record,) = decision_records(scenario, high.job_id)
    assert replay(record, scenario.policy).differs_from(record) == ""


# ---------------------------------------------------------------- crashes and races


def submit_jobs(scenario: JobScenario, name: str, count: int = 6) -> list[str]:
    draw = random.Random(7)
    return [
        scenario.submit(
            f"{name}-{number}", team=draw.choice(("red", "blue")), nodes=draw.choice((1, 1, 2)), priority_class=name
        ).job_id
        for number in range(count)
    ]


def end_all_jobs(scenario: JobScenario) -> None:
    """End the pods of all stopping and running jobs, and settle them."""
    for _ in range(200):
        scenario.run_scheduling_cycle()
        live = scenario.world.ledger.by_state(Table.JOBS, "ATTEMPT#LIVE", limit=1000).rows
        if not live:
            return
        for row in live:
            job, number = row.doc["jobId"], row.doc["attempt"]
            if scenario.job(job).stop_of(number):
                scenario.stop(job, number)
            else:
                scenario.run_attempt(job, number)
                scenario.world.cluster.finish_pods(job, number)
            scenario.settle(job, number)
    raise AssertionError("it never comes to rest")


def run_two_concurrent_cycles(scenario: JobScenario) -> None:
    scenario.run_scheduling_cycle()
    scenario.run_scheduling_cycle()


def busy_shared_fleet(plan: CrashPlan) -> tuple[JobScenario, list[str]]:
    """Jobs of low classes run and borrow quota; jobs of higher classes wait."""
    scenario = shared_fleet(plan=plan)
    jobs = submit_jobs(scenario, "low")
    scenario.run_scheduling_cycle()
    return scenario, [*jobs, *submit_jobs(scenario, "high")]


@pytest.mark.parametrize("when", list(CrashTiming))
def test_crash_in_a_cycle_breaks_no_limit_and_keeps_jobs(when: CrashTiming) -> None:
    plan = CrashPlan()
    scenario, jobs = busy_shared_fleet(plan)
    began = len(plan.effects)
    run_two_concurrent_cycles(scenario)
    assert any(scenario.job(job).stop_request for job in jobs)
    effects = len(plan.effects) - began

    for at in range(began + 1, began + effects + 1):
        scenario, jobs = busy_shared_fleet(CrashPlan(at, when))
        with pytest.raises(Crash):
            run_two_concurrent_cycles(scenario)
        scenario.sweep()
        end_all_jobs(scenario)
        assert {scenario.job(job).state for job in jobs} == {JobState.SUCCEEDED}
        assert list(admission_audit.broken_limits(scenario.world.ledger.commits, setup_of(scenario), 8)) == []


def test_concurrent_cycles_and_submissions_exceed_no_quota() -> None:
    scenario = shared_fleet(size=8, red=32, blue=24)
    scenario.world.ids = _LockedIds(scenario.world.ids)  # type: ignore[assignment]  # the same, for several threads
    jobs: list[str] = []
    lock = threading.Lock()
    errors: list[BaseException] = []

    def collect_error(work: Any, *args: Any) -> None:
        try:
            work(*args)
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    def submit(number: int) -> None:
        draw = random.Random(number)
        for turn in range(2):
            job = scenario.submit(
                f"key-{number}-{turn}",
                team=draw.choice(("red", "blue")),
                nodes=draw.choice((1, 2, 3)),
                priority_class=draw.choice(("low", "high", "")),
            )
            with lock:
                jobs.append(job.job_id)

    def schedule() -> None:
        for _ in range(6):
            scenario.run_scheduling_cycle()

    threads = [threading.Thread(target=collect_error, args=(submit, number)) for number in range(examples(50))]
    threads += [threading.Thread(target=collect_error, args=(schedule,)) for _ in range(4)]
    random.Random(3).shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    end_all_jobs(scenario)

    assert errors == []
    assert len(jobs) == 2 * examples(50)
    assert {scenario.job(job).state for job in jobs} == {JobState.SUCCEEDED}
    assert list(admission_audit.broken_limits(scenario.world.ledger.commits, setup_of(scenario), 8)) == []
    started = [name for machine, name in scenario.world.workflows.executions if machine is WorkflowName.RUN_JOB]
    assert len(started) == len(set(started))


class _LockedIds:
    def __init__(self, inner: Any) -> None:
        self._inner, self._lock = inner, threading.Lock()

    def new(self, kind: str) -> str:
        with self._lock:
            return str(self._inner.new(kind))


def test_job_is_admitted_under_the_largest_budgets() -> None:
    scenario = shared_fleet(red=16)
    budgets = [{"usd": MAX_USD, "gpuHours": MAX_GPU_HOURS, "period": period} for period in ("day", "week", "month")]
    team = a_team("red", 16, members=MEMBERS)
    set_up_teams(scenario, Team.model_validate({**team.model_dump(by_alias=True), "budgets": budgets}))
    job = scenario.submit(team="red")

    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.STARTING
    left = remaining_by_team(setup_of(scenario), {}, (), (), scenario.policy.economy, scenario.world.clock.now())
    assert left["red"] > 0


def test_job_keeps_its_queue_position_after_another_node_loss() -> None:
    scenario = JobScenario(size=4)
    set_up_teams(scenario, a_team("red", 16, members=MEMBERS, queue={"cohort": ""}))
    older = scenario.running(team="red", nodes=1)
    scenario.world.clock.advance(1)
    younger = scenario.submit("younger", team="red", nodes=2)
    scenario.world.cluster.remove_node(scenario.attempt(older.job_id).node_names[0])
    scenario.settle(older.job_id)
    scenario.run_scheduling_cycle()
    scenario.world.cluster.remove_node(scenario.attempt(older.job_id, 2).node_names[0])
    scenario.launch(older.job_id, 2)

    scenario.settle(older.job_id, 2)
    scenario.run_scheduling_cycle()

    assert scenario.attempt(older.job_id, 2).state is AttemptState.LOST
    assert (scenario.job(older.job_id).current_attempt, scenario.job(older.job_id).state) == (3, JobState.STARTING)
    assert scenario.job(younger.job_id).state is JobState.PENDING


def test_younger_job_takes_no_nodes_from_interrupted_job() -> None:
    scenario = JobScenario(size=4)
    set_up_teams(scenario, a_team("red", 32, members=MEMBERS), a_team("blue", 16, members=MEMBERS))
    older = scenario.running(team="red", nodes=2)
    for _ in range(2):
        scenario.running(team="blue", nodes=1)
    scenario.world.clock.advance(1)
    younger = scenario.submit("younger", team="red", nodes=1)
    scenario.world.cluster.remove_node(scenario.attempt(older.job_id).node_names[0])
    scenario.world.cluster.stop(scenario.attempt(older.job_id), 0)
    scenario.settle(older.job_id)

    scenario.run_scheduling_cycle()

    assert scenario.job(older.job_id).resume_plan is None
    assert scenario.job(older.job_id).reason.startswith("The job's quota is available. The job waits for 2 nodes")
    assert scenario.job(younger.job_id).state is JobState.PENDING

    scenario.world.clock.advance(
        scenario.policy.repair.replace_deadline_seconds
    )  # the time of a replacement is unknown
    scenario.run_scheduling_cycle()

    assert scenario.job(younger.job_id).state is JobState.STARTING
