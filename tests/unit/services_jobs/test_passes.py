import threading
from typing import Any

import pytest

from evenkeel.domain.admission.decide import AdmissionFacts, decide
from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.decisions import Decision
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import Job, JobState, ResumeOption, ResumePlan
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.replay import replay
from evenkeel.domain.sources import SourceReport
from evenkeel.ports import Machine, Put, Table, TransientError, Unreachable
from evenkeel.services.attempts.launch_job import LaunchOutcome
from evenkeel.services.storage import heartbeats, rows
from tests.fakes.cluster import CLUSTER
from tests.unit.services_jobs.story import Story


def cycle_report(story: Story) -> SourceReport:
    return heartbeats.load(story.world.ledger)["scheduling-cycle"]


def test_cycle_that_succeeds_is_reported() -> None:
    story = Story()
    story.run_pass()

    assert (cycle_report(story).error, cycle_report(story).seen_at) == ("", story.world.clock.now())


def test_cycle_that_reads_no_cluster_fails_and_says_so() -> None:
    story = Story()
    job = story.submit()
    story.world.cluster.blind[CLUSTER] = {"*"}

    with pytest.raises(Unreachable):
        story.run_pass()

    assert story.job(job.job_id).reason.startswith(f"Cluster {CLUSTER} cannot be read")
    assert cycle_report(story).error.startswith("Unreachable: ")
    assert cycle_report(story).seen_at is None


def test_an_admission_is_one_commit_and_one_execution() -> None:
    story = Story()
    job = story.submit()
    commits = len(story.world.ledger.commits)

    outcome = story.run_pass()

    attempt = story.attempt(job.job_id)
    assert outcome.admitted == (f"{job.job_id}-a1",)
    assert len(story.world.ledger.commits) == commits + 2  # the admission, and the pass's heartbeat
    assert story.world.workflows.executions == {
        (Machine.RUN_JOB, f"{job.job_id}-a1"): {"schemaVersion": 1, "jobId": job.job_id, "attempt": 1}
    }
    assert (story.job(job.job_id).state, story.job(job.job_id).current_attempt) == (JobState.STARTING, 1)
    assert (attempt.state, attempt.accelerators, attempt.charge_held) == (AttemptState.STARTING, 16, True)
    assert (story.usage(), len(story.charges())) == (16, 1)


def test_a_pass_with_nothing_to_do_does_nothing() -> None:
    story = Story()
    story.started()
    before = story.world.ledger.contents()

    assert story.run_pass().admitted == ()
    assert story.world.ledger.contents() == before
    assert len(story.world.workflows.executions) == 1


def test_a_charged_node_is_not_given_twice_before_its_pods_are_there() -> None:
    story = Story(size=3)
    first, second = story.submit("a"), story.submit("b")

    story.run_pass()
    story.run_pass()

    assert story.job(first.job_id).state is JobState.STARTING
    assert story.job(second.job_id).state is JobState.PENDING
    assert "p5-workers has 1 of them (2 in use)" in story.job(second.job_id).reason


def test_why_a_job_waits_is_written_once_and_replays() -> None:
    story = Story(size=1)
    job = story.submit()
    story.run_pass()
    before = story.world.ledger.contents()

    story.run_pass()

    assert story.world.ledger.contents() == before
    (row,) = story.world.ledger.by_state(Table.INCIDENTS, f"DEC#{job.job_id}").rows
    record = rows.read(row, Decision)
    assert (record.kind, record.action) == ("ADMISSION", "NEVER_FITS")
    assert decide(AdmissionFacts.model_validate(record.facts)).reason == story.job(job.job_id).reason


def test_nobody_is_started_where_kueue_admits_until_it_no_longer_does() -> None:
    story = Story()
    job = story.submit()
    story.world.cluster.of_kueue[job.namespace] = "its LocalQueue default"

    first, commits = story.run_pass(), len(story.world.ledger.commits)
    again = story.run_pass()
    waiting = story.job(job.job_id)
    story.world.cluster.of_kueue.clear()
    then = story.run_pass()

    assert (first.admitted, first.waiting, again.admitted) == ((), 1, ())
    assert (waiting.state, waiting.current_attempt) == (JobState.PENDING, 0)
    assert waiting.reason == (
        "Kueue admits jobs in namespace evenkeel-jobs (its LocalQueue default): Evenkeel starts none beside it."
    )
    assert len(story.world.ledger.commits) == commits + 1  # what was said is not said again
    assert then.admitted == (f"{job.job_id}-a1",)


def test_who_is_held_back_beside_kueue_is_in_nobodys_way_and_its_record_replays() -> None:
    story = Story(size=4)
    held, free = story.submit("a"), story.submit("b")
    row = story.world.ledger.get(rows.job_key(held.job_id))
    assert row is not None
    story.world.ledger.commit(Put(rows.job_row(rows.read(row, Job).but(namespace="kueues"), row.version)))
    story.world.cluster.of_kueue["kueues"] = "its LocalQueue default"

    outcome = story.run_pass()

    (record,) = [
        rows.read(each, Decision) for each in story.world.ledger.by_state(Table.INCIDENTS, f"DEC#{held.job_id}").rows
    ]
    assert outcome.admitted == (f"{free.job_id}-a1",)
    assert record.action == "HELD"
    assert replay(record, story.policy).reason == story.job(held.job_id).reason


def test_in_observe_mode_the_decision_is_recorded_and_nothing_starts() -> None:
    story = Story(mode=Mode.OBSERVE)
    job = story.submit()

    outcome = story.run_pass()

    assert (outcome.admitted, story.job(job.job_id).state) == ((), JobState.PENDING)
    assert story.job(job.job_id).reason.startswith("Mode is observe: it would start, but nothing is done.")
    assert (story.world.workflows.executions, story.usage(), story.charges()) == ({}, 0, [])
    (row,) = story.world.ledger.by_state(Table.INCIDENTS, f"DEC#{job.job_id}").rows
    assert (row.doc["action"], row.doc["mode"]) == ("ADMIT", "observe")


def test_a_job_that_a_recovery_brings_back_takes_the_spare_and_goes_first() -> None:
    story = Story(size=3, policy=Policy(scheduling=SchedulingPolicy(spare_nodes={"p5-workers": 1})))
    hurt = story.running()
    waiting = story.submit("later", nodes=1)
    story.run_pass()
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=1,
        option=ResumeOption.SPARE,
        avoid=(story.attempt(hurt.job_id).nodes[0].key,),
        planned_at=story.world.clock.now(),
    )
    story.world.cluster.stop(story.attempt(hurt.job_id), 0)
    story.settle(hurt.job_id)
    story.set_job(story.job(hurt.job_id).with_plan(plan, is_doubted=False))

    outcome = story.run_pass()

    assert outcome.admitted == (f"{hurt.job_id}-a2",)
    assert story.attempt(hurt.job_id).nodes[0] not in story.attempt(hurt.job_id, 2).nodes
    assert story.job(waiting.job_id).state is JobState.PENDING


def test_concurrent_passes_admit_each_job_once_and_overcommit_nothing() -> None:
    story = Story(size=4)
    jobs = [story.submit(f"key-{number}", nodes=1) for number in range(7)]
    story.world.ids = _locked(story.world.ids)

    threads = [threading.Thread(target=story.run_pass) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    story.run_pass()

    started = [job.job_id for job in jobs if story.job(job.job_id).state is JobState.STARTING]
    assert started == [job.job_id for job in jobs[:4]]
    nodes = [name for job in started for name in story.attempt(job).node_names]
    assert (len(set(nodes)), story.usage(), len(story.charges())) == (4, 32, 4)
    assert len(story.world.workflows.executions) == 4


def test_a_second_pass_on_an_old_look_commits_nothing() -> None:
    story = Story(size=2)
    first, second = story.submit("a"), story.submit("b")
    inner = story.world.provider.nodes

    def meanwhile() -> Any:
        story.world.provider.nodes = inner  # type: ignore[method-assign]  # only the first look is overtaken
        other.run_pass()
        return inner()

    other = Story(size=2)
    other.world, other.ledger, other.cluster, other.workflows = (
        story.world,
        story.ledger,
        story.cluster,
        story.workflows,
    )
    story.world.provider.nodes = meanwhile  # type: ignore[method-assign]

    outcome = story.run_pass()

    assert outcome.admitted == ()
    assert (story.job(first.job_id).state, story.job(second.job_id).state) == (JobState.STARTING, JobState.PENDING)
    assert story.usage() == 16


def test_a_workflow_that_cannot_be_started_leaves_the_rest_of_the_pass_alone() -> None:
    story = Story()
    first, second = story.submit("a"), story.submit("b")
    start = story.world.workflows.start

    def refuse(machine: Machine, name: str, document: Any) -> bool:
        if name.startswith(first.job_id):
            raise Unreachable("no answer")
        return start(machine, name, document)

    story.world.workflows.start = refuse  # type: ignore[method-assign]

    story.run_pass()

    assert [story.job(job.job_id).state for job in (first, second)] == [JobState.STARTING, JobState.STARTING]
    assert story.world.workflows.names(Machine.RUN_JOB) == [f"{second.job_id}-a1"]


def test_a_pass_that_cannot_see_the_fleet_fails_and_is_repeated() -> None:
    story = Story()
    job = story.submit()

    def away() -> Any:
        raise Unreachable("no answer")

    story.world.provider.nodes = away  # type: ignore[method-assign]

    with pytest.raises(TransientError):
        story.run_pass()
    assert story.job(job.job_id).state is JobState.PENDING


def test_a_full_head_of_the_queue_is_followed_by_the_rest() -> None:
    story = Story(policy=Policy(scheduling=SchedulingPolicy(heads_per_pass=2)))
    jobs = [story.submit(f"key-{number}", nodes=1) for number in range(4)]

    story.run_pass()

    assert [story.job(job.job_id).state for job in jobs] == [JobState.STARTING] * 4


def _locked(ids: Any) -> Any:
    """One count for several threads."""
    lock = threading.Lock()
    new = ids.new

    def next_one(prefix: str) -> str:
        with lock:
            return str(new(prefix))

    ids.new = next_one
    return ids


@pytest.mark.parametrize(("mode", "is_back"), [(Mode.RECOMMEND, True), (Mode.OBSERVE, False)])
def test_what_an_approved_recovery_stopped_comes_back_and_nothing_else_starts(mode: Mode, is_back: bool) -> None:
    story = Story(size=4)
    hurt = story.running()
    waiting = story.submit("later", nodes=1)
    plan = ResumePlan(
        incident_id="inc-1", after_attempt=1, option=ResumeOption.FREE_NODE, planned_at=story.world.clock.now()
    )
    story.world.cluster.stop(story.attempt(hurt.job_id), 0)
    story.settle(hurt.job_id)
    story.set_job(story.job(hurt.job_id).with_plan(plan, is_doubted=False))
    story.mode = mode

    outcome = story.run_pass()

    assert outcome.admitted == ((f"{hurt.job_id}-a2",) if is_back else ())
    assert story.job(waiting.job_id).state is JobState.PENDING
    if is_back:
        assert story.launch(hurt.job_id, 2).outcome is LaunchOutcome.LAUNCHED


def test_an_attempt_without_a_plan_is_not_launched_where_the_mode_was_set_back() -> None:
    story = Story()
    job = story.started()
    story.mode = Mode.RECOMMEND

    assert story.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP
