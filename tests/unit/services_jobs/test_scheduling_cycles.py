import threading
from typing import Any

import pytest

from evenkeel.domain.admission.decide_job import AdmissionFacts, decide
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.decisions import Decision
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import Job, JobState, ResumeOption, ResumePlan
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.replay import replay
from evenkeel.domain.sources import SourceReport
from evenkeel.ports import Put, Table, TransientError, Unreachable, WorkflowName
from evenkeel.services.attempts.launch_job import LaunchOutcome
from evenkeel.services.storage import heartbeats
from evenkeel.services.tables import job_rows, rows
from tests.fakes.cluster import CLUSTER
from tests.unit.services_jobs.job_scenario import JobScenario


def cycle_report(scenario: JobScenario) -> SourceReport:
    return heartbeats.load_source_reports(scenario.world.ledger)["scheduling-cycle"]


def test_cycle_that_succeeds_is_reported() -> None:
    scenario = JobScenario()
    scenario.run_scheduling_cycle()

    assert (cycle_report(scenario).error, cycle_report(scenario).seen_at) == ("", scenario.world.clock.now())


def test_cycle_without_a_readable_cluster_fails_and_is_reported() -> None:
    scenario = JobScenario()
    job = scenario.submit()
    scenario.world.cluster.unreadable_lists[CLUSTER] = {"*"}

    with pytest.raises(Unreachable):
        scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).reason.startswith(f"Cluster {CLUSTER} cannot be read")
    assert cycle_report(scenario).error.startswith("Unreachable: ")
    assert cycle_report(scenario).seen_at is None


def test_admission_is_one_commit_and_one_execution() -> None:
    scenario = JobScenario()
    job = scenario.submit()
    commits = len(scenario.world.ledger.commits)

    outcome = scenario.run_scheduling_cycle()

    attempt = scenario.attempt(job.job_id)
    assert outcome.admitted == (f"{job.job_id}-a1",)
    assert len(scenario.world.ledger.commits) == commits + 2  # the admission, and the cycle's heartbeat
    assert scenario.world.workflows.executions == {
        (WorkflowName.RUN_JOB, f"{job.job_id}-a1"): {"schemaVersion": 1, "jobId": job.job_id, "attempt": 1}
    }
    assert (scenario.job(job.job_id).state, scenario.job(job.job_id).current_attempt) == (JobState.STARTING, 1)
    assert (attempt.state, attempt.accelerators, attempt.charge_held) == (AttemptState.STARTING, 16, True)
    assert (scenario.usage(), len(scenario.charges())) == (16, 1)


def test_cycle_without_work_writes_nothing() -> None:
    scenario = JobScenario()
    scenario.started()
    before = scenario.world.ledger.contents()

    assert scenario.run_scheduling_cycle().admitted == ()
    assert scenario.world.ledger.contents() == before
    assert len(scenario.world.workflows.executions) == 1


def test_charged_node_is_not_assigned_twice_before_its_pods_exist() -> None:
    scenario = JobScenario(size=3)
    first, second = scenario.submit("a"), scenario.submit("b")

    scenario.run_scheduling_cycle()
    scenario.run_scheduling_cycle()

    assert scenario.job(first.job_id).state is JobState.STARTING
    assert scenario.job(second.job_id).state is JobState.PENDING
    assert "p5-workers has 1 of them (2 in use)" in scenario.job(second.job_id).reason


def test_pending_reason_is_written_once_and_replays() -> None:
    scenario = JobScenario(size=1)
    job = scenario.submit()
    scenario.run_scheduling_cycle()
    before = scenario.world.ledger.contents()

    scenario.run_scheduling_cycle()

    assert scenario.world.ledger.contents() == before
    (row,) = scenario.world.ledger.by_state(Table.INCIDENTS, f"DEC#{job.job_id}").rows
    record = rows.decode(row, Decision)
    assert (record.kind, record.action) == ("ADMISSION", "NEVER_FITS")
    assert decide(AdmissionFacts.model_validate(record.facts)).reason == scenario.job(job.job_id).reason


def test_no_job_starts_in_a_namespace_that_kueue_admits() -> None:
    scenario = JobScenario()
    job = scenario.submit()
    scenario.world.cluster.kueue_managed[job.namespace] = "its LocalQueue default"

    first, commits = scenario.run_scheduling_cycle(), len(scenario.world.ledger.commits)
    again = scenario.run_scheduling_cycle()
    waiting = scenario.job(job.job_id)
    scenario.world.cluster.kueue_managed.clear()
    result = scenario.run_scheduling_cycle()

    assert (first.admitted, first.waiting, again.admitted) == ((), 1, ())
    assert (waiting.state, waiting.current_attempt) == (JobState.PENDING, 0)
    assert waiting.reason == (
        "Kueue admits jobs in namespace evenkeel-jobs (its LocalQueue default), so Evenkeel starts no jobs there."
    )
    assert len(scenario.world.ledger.commits) == commits + 1  # an unchanged reason is not written again
    assert result.admitted == (f"{job.job_id}-a1",)


def test_job_held_in_a_kueue_namespace_blocks_no_other_job() -> None:
    scenario = JobScenario(size=4)
    held, free = scenario.submit("a"), scenario.submit("b")
    row = scenario.world.ledger.get(job_rows.job_key(held.job_id))
    assert row is not None
    scenario.world.ledger.commit(Put(job_rows.job_row(rows.decode(row, Job).replace(namespace="kueues"), row.version)))
    scenario.world.cluster.kueue_managed["kueues"] = "its LocalQueue default"

    outcome = scenario.run_scheduling_cycle()

    (record,) = [
        rows.decode(row, Decision) for row in scenario.world.ledger.by_state(Table.INCIDENTS, f"DEC#{held.job_id}").rows
    ]
    assert outcome.admitted == (f"{free.job_id}-a1",)
    assert record.action == "EXCLUDED"
    assert replay(record, scenario.policy).reason == scenario.job(held.job_id).reason


def test_observe_mode_records_the_admission_and_starts_nothing() -> None:
    scenario = JobScenario(mode=Mode.OBSERVE)
    job = scenario.submit()

    outcome = scenario.run_scheduling_cycle()

    assert (outcome.admitted, scenario.job(job.job_id).state) == ((), JobState.PENDING)
    assert scenario.job(job.job_id).reason.startswith(
        "Mode is observe: the job would start, but Evenkeel takes no action."
    )
    assert (scenario.world.workflows.executions, scenario.usage(), scenario.charges()) == ({}, 0, [])
    (row,) = scenario.world.ledger.by_state(Table.INCIDENTS, f"DEC#{job.job_id}").rows
    assert (row.doc["action"], row.doc["mode"]) == ("ADMIT", "observe")


def test_interrupted_job_takes_the_spare_before_other_jobs() -> None:
    scenario = JobScenario(size=3, policy=Policy(scheduling=SchedulingPolicy(spare_nodes={"p5-workers": 1})))
    affected = scenario.running()
    waiting = scenario.submit("later", nodes=1)
    scenario.run_scheduling_cycle()
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=1,
        option=ResumeOption.SPARE,
        avoid=(scenario.attempt(affected.job_id).nodes[0].key,),
        planned_at=scenario.world.clock.now(),
    )
    scenario.world.cluster.stop(scenario.attempt(affected.job_id), 0)
    scenario.settle(affected.job_id)
    scenario.set_job(scenario.job(affected.job_id).with_plan(plan, is_still_distrusted=False))

    outcome = scenario.run_scheduling_cycle()

    assert outcome.admitted == (f"{affected.job_id}-a2",)
    assert scenario.attempt(affected.job_id).nodes[0] not in scenario.attempt(affected.job_id, 2).nodes
    assert scenario.job(waiting.job_id).state is JobState.PENDING


def test_concurrent_cycles_admit_each_job_once_without_overcommit() -> None:
    scenario = JobScenario(size=4)
    jobs = [scenario.submit(f"key-{number}", nodes=1) for number in range(7)]
    scenario.world.ids = _locked_counter(scenario.world.ids)

    threads = [threading.Thread(target=scenario.run_scheduling_cycle) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    scenario.run_scheduling_cycle()

    started = [job.job_id for job in jobs if scenario.job(job.job_id).state is JobState.STARTING]
    assert started == [job.job_id for job in jobs[:4]]
    nodes = [name for job in started for name in scenario.attempt(job).node_names]
    assert (len(set(nodes)), scenario.usage(), len(scenario.charges())) == (4, 32, 4)
    assert len(scenario.world.workflows.executions) == 4


def test_cycle_on_an_old_snapshot_commits_nothing() -> None:
    scenario = JobScenario(size=2)
    first, second = scenario.submit("a"), scenario.submit("b")
    inner = scenario.world.provider.nodes

    def meanwhile() -> Any:
        scenario.world.provider.nodes = inner  # type: ignore[method-assign]  # only the first look is overtaken
        other.run_scheduling_cycle()
        return inner()

    other = JobScenario(size=2)
    other.world, other.ledger, other.cluster, other.workflows = (
        scenario.world,
        scenario.ledger,
        scenario.cluster,
        scenario.workflows,
    )
    scenario.world.provider.nodes = meanwhile  # type: ignore[method-assign]

    outcome = scenario.run_scheduling_cycle()

    assert outcome.admitted == ()
    assert (scenario.job(first.job_id).state, scenario.job(second.job_id).state) == (
        JobState.STARTING,
        JobState.PENDING,
    )
    assert scenario.usage() == 16


def test_failed_workflow_start_does_not_stop_the_cycle() -> None:
    scenario = JobScenario()
    first, second = scenario.submit("a"), scenario.submit("b")
    start = scenario.world.workflows.start

    def refuse(machine: WorkflowName, name: str, document: Any) -> bool:
        if name.startswith(first.job_id):
            raise Unreachable("no answer")
        return start(machine, name, document)

    scenario.world.workflows.start = refuse  # type: ignore[method-assign]

    scenario.run_scheduling_cycle()

    assert [scenario.job(job.job_id).state for job in (first, second)] == [JobState.STARTING, JobState.STARTING]
    assert scenario.world.workflows.names(WorkflowName.RUN_JOB) == [f"{second.job_id}-a1"]


def test_cycle_that_cannot_read_the_fleet_is_retried() -> None:
    scenario = JobScenario()
    job = scenario.submit()

    def raise_unreachable() -> Any:
        raise Unreachable("no answer")

    scenario.world.provider.nodes = raise_unreachable  # type: ignore[method-assign]

    with pytest.raises(TransientError):
        scenario.run_scheduling_cycle()
    assert scenario.job(job.job_id).state is JobState.PENDING


def test_job_behind_a_blocked_head_is_examined() -> None:
    scenario = JobScenario(policy=Policy(scheduling=SchedulingPolicy(jobs_per_page=2)))
    jobs = [scenario.submit(f"key-{number}", nodes=1) for number in range(4)]

    scenario.run_scheduling_cycle()

    assert [scenario.job(job.job_id).state for job in jobs] == [JobState.STARTING] * 4


def _locked_counter(ids: Any) -> Any:
    """A counter for several threads."""
    lock = threading.Lock()
    new = ids.new

    def next_id(prefix: str) -> str:
        with lock:
            return str(new(prefix))

    ids.new = next_id
    return ids


@pytest.mark.parametrize(("mode", "is_back"), [(Mode.RECOMMEND, True), (Mode.OBSERVE, False)])
def test_only_jobs_of_an_approved_recovery_resume_in_recommend_mode(mode: Mode, is_back: bool) -> None:
    scenario = JobScenario(size=4)
    affected = scenario.running()
    waiting = scenario.submit("later", nodes=1)
    plan = ResumePlan(
        incident_id="inc-1", after_attempt=1, option=ResumeOption.FREE_NODE, planned_at=scenario.world.clock.now()
    )
    scenario.world.cluster.stop(scenario.attempt(affected.job_id), 0)
    scenario.settle(affected.job_id)
    scenario.set_job(scenario.job(affected.job_id).with_plan(plan, is_still_distrusted=False))
    scenario.mode = mode

    outcome = scenario.run_scheduling_cycle()

    assert outcome.admitted == ((f"{affected.job_id}-a2",) if is_back else ())
    assert scenario.job(waiting.job_id).state is JobState.PENDING
    if is_back:
        assert scenario.launch(affected.job_id, 2).outcome is LaunchOutcome.LAUNCHED


def test_attempt_without_a_plan_is_not_launched_after_mode_change() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.mode = Mode.RECOMMEND

    assert scenario.launch(job.job_id).outcome is LaunchOutcome.GIVE_UP
