import random
import threading
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.decisions import Decision
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.policy import JobPolicy
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.quotas.budgets import left_by_team
from evenkeel.domain.quotas.spending import week_of
from evenkeel.domain.quotas.teams import MOST_GPU_HOURS, MOST_USD, FleetQuotas, Period, SetUp, Team
from evenkeel.domain.renting.policy import BurstPolicy
from evenkeel.domain.replay import replay
from evenkeel.ports import Key, Machine, Put, Row, Table, row_bytes
from evenkeel.services.admin import set_quotas
from evenkeel.services.admin.remove_team import TeamInUse
from evenkeel.services.queries import explain
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.scheduling import read_use
from evenkeel.services.storage import read_setup, rows
from tests.fakes.crashes import Crash, CrashPlan, When
from tests.unit.scheduling.test_sharing import GPU, P5, a_team
from tests.unit.services_jobs import audit
from tests.unit.services_jobs.story import Story

MEMBERS = [{"principal": f"arn:aws:iam::111122223333:role/{name}"} for name in ("ana", "bo")]


def set_up(story: Story, *parts: Team | FleetQuotas) -> None:
    found = read_setup.run(story.world.ledger)
    for part in parts:
        name = part.name if isinstance(part, Team) else read_setup.FLEET
        request = set_quotas.Request(part=part, expected=found.version_of(name), by="role/Platform", reason="Quota.")
        set_quotas.run(request, story.world.ledger, story.world.passes, now=story.world.clock.now())


def shared(size: int = 4, red: int = 16, blue: int = 16, **more: Any) -> Story:
    """A fleet of two teams, half of it each."""
    story = Story(size=size, **more)
    set_up(
        story,
        a_team("red", red, members=MEMBERS),
        a_team("blue", blue, members=MEMBERS),
        FleetQuotas(priority_classes={"low": 1, "high": 10}),
    )
    return story


def setup_of(story: Story) -> SetUp:
    return read_setup.run(story.world.ledger).setup


def records(story: Story, job_id: str) -> list[Decision]:
    return [rows.read(row, Decision) for row in story.world.ledger.by_state(Table.INCIDENTS, f"DEC#{job_id}").rows]


def test_a_job_takes_its_teams_quota_until_it_is_settled() -> None:
    story = shared()
    job = story.submit(team="red")

    story.run_pass()

    (charge,) = story.world.ledger.partition(Table.QUOTAS, rows.tree_key().pk, "CHARGE#")
    assert story.job(job.job_id).state is JobState.STARTING
    assert (charge.doc["queue"], charge.doc["use"], charge.doc["owner"]) == ("red", {P5: {GPU: 16}}, "role/ana")
    story.cancel(job.job_id)
    story.settle(job.job_id)
    assert story.charges() == []
    assert story.usage("red") == 0


def test_a_job_beyond_what_its_team_can_have_waits_and_says_why() -> None:
    story = shared(red=8, blue=8)
    job = story.submit(team="red", nodes=3)

    story.run_pass()

    assert story.job(job.job_id).state is JobState.PENDING
    assert "It asks for 24 nvidia.com/gpu of ml.p5.48xlarge: 16 free, 16 at most." in story.job(job.job_id).reason


def test_a_higher_class_has_a_lower_one_of_its_team_stopped_and_that_one_comes_back_later() -> None:
    story = shared(size=2, red=16, blue=0)
    low = story.running(team="red", priority_class="low")
    story.save(low.job_id, 1, step=40)
    high = story.submit("high", team="red", priority_class="high")

    story.run_pass()

    asked = story.job(low.job_id).stop_of(1)
    assert asked
    assert (asked.outcome, asked.by) == (AttemptState.STOPPED, f"schedule_jobs/{high.job_id}")
    assert story.job(low.job_id).reason == f"Preempted by {high.job_id} of team red (InClusterQueue)."
    assert story.job(high.job_id).reason == f"Waits until {low.job_id} has stopped."
    assert (story.job(high.job_id).state, len(story.charges())) == (JobState.PENDING, 1)

    story.stop(low.job_id)
    story.world.cluster.stop(story.attempt(low.job_id), 0)
    story.settle(low.job_id)
    story.run_pass()

    back = story.job(low.job_id)
    assert (back.state, back.application_failures, back.launch_failures) == (JobState.PENDING, 0, 0)
    assert story.job(high.job_id).state is JobState.STARTING
    story.run_attempt(high.job_id, 1)
    story.world.cluster.finish_pods(high.job_id, 1)
    story.settle(high.job_id)
    story.run_pass()
    story.run_attempt(low.job_id, 2)
    resumed = story.attempt(low.job_id, 2).resume_from
    assert resumed
    assert (resumed.attempt, resumed.step) == (1, 40)


def test_a_running_job_that_was_ranked_higher_is_worth_more_from_the_next_pass_on() -> None:
    story = shared(size=2, red=16, blue=0)
    low = story.running(team="red", priority_class="low")
    found = story.world.ledger.get(rows.job_key(low.job_id))
    assert found
    raised = rows.read(found, Job).but(priority=20)
    story.world.ledger.commit(Put(rows.job_row(raised, found.version)))
    high = story.submit("high", team="red", priority_class="high")

    story.run_pass()

    assert story.job(low.job_id).stop_request is None
    assert story.job(high.job_id).state is JobState.PENDING


def test_a_team_whose_namespace_is_kueues_starts_nobody_and_nobody_has_to_stop_for_it() -> None:
    story = shared(size=2, red=8, blue=8)
    set_up(story, a_team("red", 8, members=MEMBERS, namespace="red"), a_team("blue", 8, members=MEMBERS))
    low = story.submit("a", team="blue", nodes=1, priority_class="low")
    story.run_pass()
    held = story.submit("b", team="red", nodes=1, priority_class="high")
    other = story.submit("c", team="blue", nodes=1, priority_class="low")
    story.world.cluster.of_kueue["red"] = "its LocalQueue default"

    story.run_pass()

    assert story.job(held.job_id).reason.startswith("Kueue admits jobs in namespace red (its LocalQueue default)")
    assert [record.action for record in records(story, held.job_id)] == ["HELD"]
    assert story.job(low.job_id).stop_request is None
    assert story.job(other.job_id).state is JobState.STARTING  # it borrows what the held team does not use


def test_only_classes_of_the_policy_reach_kubernetes() -> None:
    allowed = Policy(jobs=JobPolicy(priority_classes=("high",)))
    priced = Policy(burst=BurstPolicy(delay_micros_per_hour={"high": 1}))
    stories = [shared(), Story(policy=allowed), Story(policy=priced)]
    jobs = [stories[0].running(team="red", priority_class="high")]
    jobs += [story.running(priority_class="high") for story in stories[1:]]

    classes = [
        story.world.cluster.launched(job.job_id, 1).spec.job.priority_class
        for story, job in zip(stories, jobs, strict=True)
    ]
    assert classes == ["", "high", ""]


def test_a_class_that_the_policy_took_away_reaches_nothing() -> None:
    story = Story(policy=Policy(jobs=JobPolicy(priority_classes=("high",))))
    job = story.started(priority_class="high")
    story.policy = Policy()

    story.run_attempt(job.job_id, 1)

    assert story.world.cluster.launched(job.job_id, 1).spec.job.priority_class == ""


def test_a_job_waits_whose_namespace_became_another_teams() -> None:
    story = shared()
    job = story.submit(team="red")
    # An older release let a team leave its namespace while it had jobs there.
    for name, namespace in (("red", "rouge"), ("blue", "red")):
        row = story.world.ledger.get(rows.team_key(name))
        assert row
        team = Team.model_validate_json(row.doc["document"])
        story.put(rows.setup_row(row.key, team.but(namespace=namespace), row.version))

    story.run_pass()

    assert story.job(job.job_id).state is JobState.PENDING
    assert story.job(job.job_id).reason.startswith("Namespace red is team blue's by now")
    assert replay(records(story, job.job_id)[-1], story.policy).action == "HELD"


def test_a_team_keeps_its_namespace_while_it_has_jobs() -> None:
    story = shared()
    waiting = story.submit(team="red")
    moved = setup_of(story).by_name["red"].but(namespace="rouge")

    for _ in range(2):
        with pytest.raises(TeamInUse):
            set_up(story, moved)
        story.run_pass()
    story.cancel(waiting.job_id)
    story.launch(waiting.job_id)
    story.stop(waiting.job_id)
    story.settle(waiting.job_id)
    set_up(story, moved)

    assert setup_of(story).by_name["red"].namespace == "rouge"


def test_who_has_to_stop_is_asked_once() -> None:
    story = shared(size=2, red=16, blue=0)
    low = story.running(team="red", priority_class="low")
    story.submit("high", team="red", priority_class="high")
    story.run_pass()
    before = story.world.ledger.contents()

    story.run_pass()
    story.run_pass()

    assert story.world.ledger.contents() == before
    assert story.timeline(low.job_id).count("preempted") == 1


def test_a_preemption_is_one_commit() -> None:
    story = shared(size=2, red=16, blue=0)
    low = story.running(team="red", priority_class="low")
    high = story.submit("high", team="red", priority_class="high")
    story.run_pass()

    touched = [{write.row.key for write in writes if isinstance(write, Put)} for writes in story.world.ledger.commits]
    together = {rows.tree_key(), rows.job_key(low.job_id), rows.job_key(high.job_id)}
    assert [together <= keys for keys in touched].count(True) == 1


def test_a_job_that_is_being_cancelled_is_not_asked_again_and_counts_as_leaving() -> None:
    story = shared(size=2, red=16, blue=0)
    low = story.running(team="red", priority_class="low", nodes=1)
    other = story.running(team="red", priority_class="low", nodes=1)
    story.cancel(low.job_id)
    high = story.submit("high", team="red", priority_class="high", nodes=1)

    story.run_pass()

    assert story.job(other.job_id).stop_request is None
    assert story.job(high.job_id).reason == f"Waits until {low.job_id} has stopped."


def test_in_observe_mode_nobody_is_asked_to_stop() -> None:
    story = shared(size=2, red=16, blue=0)
    low = story.running(team="red", priority_class="low")
    high = story.submit("high", team="red", priority_class="high")
    story.mode = Mode.OBSERVE

    story.run_pass()

    assert story.job(low.job_id).stop_request is None
    assert story.job(high.job_id).reason == (
        f"Mode is observe: others would be asked to stop, but nothing is done. Waits until {low.job_id} has stopped."
    )


def test_every_record_replays() -> None:
    story = shared(size=3, red=16, blue=8)
    story.running(team="red", priority_class="low")
    jobs = [
        story.submit(f"own-{number}", team=team, nodes=nodes, priority_class=name)
        for number, (team, nodes, name) in enumerate(
            [("blue", 1, "low"), ("red", 2, "high"), ("blue", 2, ""), ("blue", 2, ""), ("red", 4, "")]
        )
    ]
    for _ in range(3):
        story.run_pass()

    found = [record for job in jobs for record in records(story, job.job_id)]
    assert {record.action for record in found} >= {"ADMIT", "PREEMPT", "ALIKE", "NEVER_FITS"}
    for record in found:
        assert replay(record, story.policy).differs_from(record) == ""


def test_why_names_the_smallest_changes_that_would_let_a_job_in_and_they_do() -> None:
    story = shared(red=8, blue=8)
    waiting = story.submit("a", team="red", nodes=3)
    behind = story.submit("b", team="red", nodes=3)
    story.run_pass()

    for job in (waiting, behind):
        found = explain.why_job(story.world.ledger, job.job_id, Reader(), now=story.world.clock.now())
        by_kind = {each["kind"]: each for each in found["changes"]}
        assert (by_kind["quota"]["amounts"], by_kind["size"]["counts"]) == ({GPU: "8"}, [2])
    set_up(story, a_team("red", 16, members=MEMBERS))
    story.run_pass()
    assert story.job(waiting.job_id).state is JobState.STARTING


def test_a_drained_queue_has_its_jobs_stopped_once() -> None:
    story = shared()
    job = story.running(team="red")
    set_up(story, a_team("red", members=MEMBERS, queue={"stop": "HoldAndDrain"}))

    story.run_pass()
    story.run_pass()

    asked = story.job(job.job_id).stop_of(1)
    assert asked
    assert asked.reason == "The queue of team red is drained."
    assert story.timeline(job.job_id).count("preempted") == 1


def test_jobs_older_than_the_teams_move_into_their_queues() -> None:
    story = Story(size=2)
    running, waiting = story.running(team="red"), story.submit("later", team="red", priority_class="")
    lost = story.submit("lost", team="green")
    set_up(story, a_team("red", members=MEMBERS), FleetQuotas(priority_classes={"low": 1}))

    story.run_pass()

    assert story.job(waiting.job_id).queue == "red"
    assert story.job(waiting.job_id).reason.endswith(
        "It asks for 16 nvidia.com/gpu of ml.p5.48xlarge: 0 free, 16 at most."
    )
    assert story.job(lost.job_id).reason == "There is no team green any more."
    assert story.job(running.job_id).state is JobState.RUNNING


def test_one_that_fits_behind_many_that_do_not_is_found() -> None:
    story = shared(policy=Policy(scheduling=SchedulingPolicy(heads_per_pass=2)))
    large = [
        story.submit(f"key-{number}", team="red", nodes=3 + number % 2, priority_class="high") for number in range(5)
    ]
    small = story.submit("small", team="red", nodes=1, priority_class="low")
    set_up(story, a_team("red", 16, cohort="", members=MEMBERS))

    story.run_pass()

    assert story.job(small.job_id).state is JobState.STARTING
    assert {story.job(job.job_id).state for job in large} == {JobState.PENDING}


def test_a_team_that_has_spent_its_budget_starts_nobody() -> None:
    story = shared()
    set_up(story, a_team("red", members=MEMBERS, budgets=[{"period": "month", "gpuHours": 4}]))
    first = story.running(team="red")
    story.world.clock.advance(3600)
    story.world.cluster.finish_pods(first.job_id, 1)
    story.settle(first.job_id)
    second = story.submit("second", team="red")

    story.run_pass()

    row = story.world.ledger.get(rows.spent_key("red", "2026-11"))
    assert row
    assert row.doc == {"acceleratorSeconds": 16 * 3600, "usdMicros": 16 * 5_000_000}
    assert story.job(second.job_id).reason == (
        "Waits, whatever is free: 16 of 4 accelerator-hours of team red in 2026-11 are used."
    )


def worked_off(story: Story, job_id: str, seconds: float) -> None:
    """Let a job run so long, and end; its workflow may say so twice."""
    story.run_attempt(job_id, 1)
    story.world.clock.advance(seconds)
    story.world.cluster.finish_pods(job_id, 1)
    story.settle(job_id)
    story.settle(job_id)


def test_in_a_queue_that_goes_by_use_who_used_least_of_late_goes_first() -> None:
    story = shared(size=2, red=16, blue=0)
    set_up(story, a_team("red", members=MEMBERS, queue={"byUse": True}))
    first = story.started(team="red")
    worked_off(story, first.job_id, 3600)
    of_ana = story.submit("again", team="red")
    story.world.clock.advance(60)
    of_bo = story.submission("bo's", principal="role/bo", team="red").job

    story.run_pass()

    assert story.job(of_bo.job_id).state is JobState.STARTING
    assert story.job(of_ana.job_id).state is JobState.PENDING


def test_what_was_used_of_late_is_counted_once_and_fades() -> None:
    story = shared()
    set_up(story, a_team("red", members=MEMBERS, queue={"byUse": True}))
    first = story.started(team="red")
    worked_off(story, first.job_id, 7 * 24 * 3600)

    used = read_use.run(setup_of(story), story.world.ledger, story.world.clock.now())
    week_later = read_use.run(setup_of(story), story.world.ledger, story.world.clock.now() + timedelta(weeks=1))

    assert used["red"]["role/ana"] == pytest.approx(8)  # half of the 16 that it held for one half-life
    assert week_later["red"]["role/ana"] == pytest.approx(4)


def test_any_number_of_submitters_leave_use_behind() -> None:
    story = shared()
    set_up(story, a_team("red", members=MEMBERS, queue={"byUse": True}))
    first = story.started(team="red")
    now = story.world.clock.now()
    begin = week_of(now)
    many = {f"role/{'s' * 100}{n:05d}": 10 ** (10 if n < 55 else 9) for n in range(3_225)}
    older_release = Row(Key(Table.QUOTAS, "TEAM#red", f"USED#{Period.WEEK.key_at(begin)}"), many)
    story.put(older_release)

    worked_off(story, first.job_id, 3600)

    used = read_use.run(setup_of(story), story.world.ledger, story.world.clock.now())["red"]
    assert row_bytes(older_release) > 399_900
    assert len(used) == 3_226
    assert used["role/ana"] > 0


def test_of_equals_who_loses_less_work_has_to_go_though_it_came_first() -> None:
    story = shared(size=4, red=32, blue=0)
    saves = story.running(team="red", nodes=2, priority_class="low")
    story.world.clock.advance(60)
    loses_all = story.running(team="red", nodes=2, priority_class="low", checkpoint_uri="")
    story.world.clock.advance(24 * 3600)
    high = story.submit("high", team="red", nodes=2, priority_class="high")

    story.run_pass()

    assert story.job(saves.job_id).stop_of(1)
    assert story.job(loses_all.job_id).stop_of(1) is None
    (record,) = records(story, high.job_id)
    assert replay(record, story.policy).differs_from(record) == ""


# ---------------------------------------------------------------- crashes and races


def crowd(story: Story, name: str, count: int = 6) -> list[str]:
    draw = random.Random(7)
    return [
        story.submit(
            f"{name}-{number}", team=draw.choice(("red", "blue")), nodes=draw.choice((1, 1, 2)), priority_class=name
        ).job_id
        for number in range(count)
    ]


def work_off(story: Story) -> None:
    """Let everything run to its end: whoever is asked to stop stops, whoever runs ends."""
    for _ in range(200):
        story.run_pass()
        live = story.world.ledger.by_state(Table.JOBS, "ATTEMPT#LIVE", limit=1000).rows
        if not live:
            return
        for row in live:
            job, number = row.doc["jobId"], row.doc["attempt"]
            if story.job(job).stop_of(number):
                story.stop(job, number)
            else:
                story.run_attempt(job, number)
                story.world.cluster.finish_pods(job, number)
            story.settle(job, number)
    raise AssertionError("it never comes to rest")


def two_passes(story: Story) -> None:
    story.run_pass()
    story.run_pass()


def busy(plan: CrashPlan) -> tuple[Story, list[str]]:
    """Low classes run, on more than is their own; higher ones wait for their room."""
    story = shared(plan=plan)
    jobs = crowd(story, "low")
    story.run_pass()
    return story, [*jobs, *crowd(story, "high")]


@pytest.mark.parametrize("when", list(When))
def test_a_pass_that_dies_at_any_effect_breaks_no_limit_and_loses_nobody(when: When) -> None:
    plan = CrashPlan()
    story, jobs = busy(plan)
    began = len(plan.effects)
    two_passes(story)
    assert any(story.job(job).stop_request for job in jobs)
    effects = len(plan.effects) - began

    for at in range(began + 1, began + effects + 1):
        story, jobs = busy(CrashPlan(at, when))
        with pytest.raises(Crash):
            two_passes(story)
        story.sweep()
        work_off(story)
        assert {story.job(job).state for job in jobs} == {JobState.SUCCEEDED}
        assert list(audit.faults(story.world.ledger.commits, setup_of(story), 8)) == []


def test_four_passes_and_fifty_submitters_at_once_break_no_limit_and_lose_nobody() -> None:
    story = shared(size=8, red=32, blue=24)
    story.world.ids = _Locked(story.world.ids)  # type: ignore[assignment]  # the same, for several threads
    jobs: list[str] = []
    lock = threading.Lock()
    errors: list[BaseException] = []

    def guarded(work: Any, *args: Any) -> None:
        try:
            work(*args)
        except BaseException as error:  # noqa: BLE001 - told to the test
            errors.append(error)

    def submit(number: int) -> None:
        draw = random.Random(number)
        for turn in range(2):
            job = story.submit(
                f"key-{number}-{turn}",
                team=draw.choice(("red", "blue")),
                nodes=draw.choice((1, 2, 3)),
                priority_class=draw.choice(("low", "high", "")),
            )
            with lock:
                jobs.append(job.job_id)

    def schedule() -> None:
        for _ in range(6):
            story.run_pass()

    threads = [threading.Thread(target=guarded, args=(submit, number)) for number in range(50)]
    threads += [threading.Thread(target=guarded, args=(schedule,)) for _ in range(4)]
    random.Random(3).shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    work_off(story)

    assert errors == []
    assert len(jobs) == 100
    assert {story.job(job).state for job in jobs} == {JobState.SUCCEEDED}
    assert list(audit.faults(story.world.ledger.commits, setup_of(story), 8)) == []
    started = [name for machine, name in story.world.workflows.executions if machine is Machine.RUN_JOB]
    assert len(started) == len(set(started))


class _Locked:
    def __init__(self, inner: Any) -> None:
        self._inner, self._lock = inner, threading.Lock()

    def new(self, kind: str) -> str:
        with self._lock:
            return str(self._inner.new(kind))


def test_largest_budgets_leave_admission_at_work() -> None:
    story = shared(red=16)
    budgets = [{"usd": MOST_USD, "gpuHours": MOST_GPU_HOURS, "period": period} for period in ("day", "week", "month")]
    team = a_team("red", 16, members=MEMBERS)
    set_up(story, Team.model_validate({**team.model_dump(by_alias=True), "budgets": budgets}))
    job = story.submit(team="red")

    story.run_pass()

    assert story.job(job.job_id).state is JobState.STARTING
    left = left_by_team(setup_of(story), {}, (), (), story.policy.economy, story.world.clock.now())
    assert left["red"] > 0


def test_job_keeps_its_place_where_the_next_node_is_lost_too() -> None:
    story = Story(size=4)
    set_up(story, a_team("red", 16, members=MEMBERS, queue={"cohort": ""}))
    older = story.running(team="red", nodes=1)
    story.world.clock.advance(1)
    younger = story.submit("younger", team="red", nodes=2)
    story.world.cluster.remove_node(story.attempt(older.job_id).node_names[0])
    story.settle(older.job_id)
    story.run_pass()
    story.world.cluster.remove_node(story.attempt(older.job_id, 2).node_names[0])
    story.launch(older.job_id, 2)

    story.settle(older.job_id, 2)
    story.run_pass()

    assert story.attempt(older.job_id, 2).state is AttemptState.LOST
    assert (story.job(older.job_id).current_attempt, story.job(older.job_id).state) == (3, JobState.STARTING)
    assert story.job(younger.job_id).state is JobState.PENDING


def test_younger_job_takes_no_nodes_from_interrupted_job() -> None:
    story = Story(size=4)
    set_up(story, a_team("red", 32, members=MEMBERS), a_team("blue", 16, members=MEMBERS))
    older = story.running(team="red", nodes=2)
    for _ in range(2):
        story.running(team="blue", nodes=1)
    story.world.clock.advance(1)
    younger = story.submit("younger", team="red", nodes=1)
    story.world.cluster.remove_node(story.attempt(older.job_id).node_names[0])
    story.world.cluster.stop(story.attempt(older.job_id), 0)
    story.settle(older.job_id)

    story.run_pass()

    assert story.job(older.job_id).resume_plan is None
    assert story.job(older.job_id).reason.startswith("Its quota is there. Waits for 2 nodes")
    assert story.job(younger.job_id).state is JobState.PENDING

    story.world.clock.advance(story.policy.repair.replace_deadline_seconds)  # nobody knows when a replacement comes
    story.run_pass()

    assert story.job(younger.job_id).state is JobState.STARTING
