"""A crash between any two writes of a job does not change its end.

Each scenario first runs without a crash, which counts its effects (commits, fences, calls to the cluster, starts and
requests). It then runs again for every effect, and the process dies right before it, or right after it.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.attempt_end import lost_nodes
from evenkeel.domain.jobs.attempt_waits import evaluate_attempt_wait
from evenkeel.domain.jobs.job import JobState, ResumeOption, ResumePlan, StopRequest
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.policy import Policy
from evenkeel.domain.waiting import ConditionKind, WaitAnswer
from evenkeel.ports import ExecutionState, WorkflowName
from evenkeel.services.attempts.launch_job import LaunchOutcome
from evenkeel.services.attempts.mark_running import RunningOutcome
from evenkeel.services.sweep import sweep_fleet
from tests.crash_points import crash_mark
from tests.fakes import Crash, CrashPlan
from tests.fakes.crashes import CrashTiming
from tests.unit.services_jobs.job_scenario import JobScenario

POLICY = Policy(jobs=JobPolicy(restart_backoff_seconds=1))
ROUNDS = 60


@dataclass
class RunningExecution:
    """A run of run_job: its state, and the answer to its last wait."""

    job_id: str
    attempt: int
    state: str = "LaunchJob"
    ended: dict[str, Any] | None = None


@dataclass
class CrashReplay:
    """Runs cycles, workflows and sweeps alternately until the job has ended. The workflow retries a crashed task. With
    `aborts` the whole execution ends instead, and only the sweep is left. A crashed cycle or sweep is not repeated: the
    next run follows on schedule.
    """

    plan: CrashPlan
    job_event: Callable[[JobScenario, str, int], None]
    aborts: bool = False
    scenario: JobScenario = field(init=False)
    executions: dict[str, RunningExecution] = field(default_factory=dict)
    event_attempt: int = 0
    """Attempt during which the job event occurred. Later attempts succeed."""
    crashes: int = 0

    def __post_init__(self) -> None:
        self.scenario = JobScenario(runs_at_once=True, policy=POLICY, plan=self.plan)

    def run(self) -> str:
        job_id = self._submit()
        for _ in range(ROUNDS):
            self._call_ignoring_crash(self.scenario.run_scheduling_cycle)
            self._add_started_executions()
            for name, execution in self.executions.items():
                self._advance(name, execution)
            self._call_ignoring_crash(lambda: self._cause_event(job_id))
            self.scenario.world.clock.advance(20)
            self._call_ignoring_crash(self.scenario.sweep)
            if self.scenario.job(job_id).state.has_ended and self._is_quiet():
                return job_id
        pytest.fail(f"{job_id} is {self.scenario.job(job_id).state} after {ROUNDS} rounds: {self.plan.effects[-5:]}")

    def _submit(self) -> str:
        while True:
            try:
                return self.scenario.submit().job_id
            except Crash:
                self.crashes += 1

    def _call_ignoring_crash(self, step: Callable[[], Any]) -> None:
        try:
            step()
        except Crash:
            self.crashes += 1
            # The lock of a dead sweep expires; this test does not wait for that.
            self.scenario.world.clock.advance(61)

    def _cause_event(self, job_id: str) -> None:
        job = self.scenario.job(job_id)
        if job.state is not JobState.RUNNING:
            return
        if not self.event_attempt:
            self.job_event(self.scenario, job_id, job.current_attempt)
            self.event_attempt = job.current_attempt
        elif job.current_attempt > self.event_attempt:
            self.scenario.world.cluster.finish_pods(job_id, job.current_attempt)

    def _is_quiet(self) -> bool:
        workflows = self.scenario.world.workflows
        return ExecutionState.RUNNING not in [
            workflows.state(WorkflowName.RUN_JOB, name) for name in workflows.names(WorkflowName.RUN_JOB)
        ]

    def _add_started_executions(self) -> None:
        for (machine, name), document in self.scenario.world.workflows.executions.items():
            if machine is WorkflowName.RUN_JOB and name not in self.executions:
                self.executions[name] = RunningExecution(document["jobId"], document["attempt"])

    def _advance(self, name: str, execution: RunningExecution) -> None:
        """Run states until the execution waits or has ended."""
        workflows = self.scenario.world.workflows
        while workflows.state(WorkflowName.RUN_JOB, name) is ExecutionState.RUNNING:
            before = execution.state
            try:
                execution.state = self._next_state(execution)
            except Crash:
                self.crashes += 1
                if self.aborts:
                    workflows.finish(WorkflowName.RUN_JOB, name, ExecutionState.FAILED)
                continue  # the task is retried
            if execution.state == "Done":
                workflows.finish(WorkflowName.RUN_JOB, name)
            elif execution.state == before:
                return

    def _next_state(self, execution: RunningExecution) -> str:
        scenario, job_id, number = self.scenario, execution.job_id, execution.attempt
        match execution.state:
            case "LaunchJob":
                outcome = scenario.launch(job_id, number).outcome
                return {
                    LaunchOutcome.LAUNCHED: "AwaitRunning",
                    LaunchOutcome.NOT_YET: "LaunchJob",
                    LaunchOutcome.STALE: "Done",
                    LaunchOutcome.GIVE_UP: "SettleAttempt",
                }[outcome]
            case "MarkRunning":
                return "Done" if scenario.mark_running(job_id, number).outcome is RunningOutcome.STALE else "AwaitEnd"
            case "StopAttempt":
                scenario.stop(job_id, number)
                return "AwaitStopped"
            case "SettleAttempt":
                scenario.settle(job_id, number, ended=execution.ended)
                return "Done"
        answer = self._wait_answer(execution)
        if answer is None:
            return execution.state
        execution.ended = answer.to_json()
        if execution.state == "AwaitStopped":
            return "SettleAttempt"
        return {"RUNNING": "MarkRunning", "ENDED": "SettleAttempt", "STOP_REQUESTED": "StopAttempt"}[answer.outcome]

    def _wait_answer(self, execution: RunningExecution) -> WaitAnswer | None:
        kinds = {
            "AwaitRunning": ConditionKind.ATTEMPT_RUNNING,
            "AwaitEnd": ConditionKind.ATTEMPT_ENDED,
            "AwaitStopped": ConditionKind.ATTEMPT_STOPPED,
        }
        world = self.scenario.world
        job, attempt = self.scenario.job(execution.job_id), self.scenario.attempt(execution.job_id, execution.attempt)
        nodes = {node.name: node for node in world.cluster.nodes(attempt.cluster)}
        lost = lost_nodes(nodes, attempt.node_names, world.clock.now(), POLICY.jobs.lost_node_seconds)
        workload = world.cluster.workload(attempt)
        return evaluate_attempt_wait(kinds[execution.state], workload, job, attempt, lost)


# ---------------------------------------------------------------- events of a running job


def succeeds(scenario: JobScenario, job_id: str, attempt: int) -> None:
    scenario.save_checkpoint(job_id, attempt, 10)
    scenario.world.cluster.finish_pods(job_id, attempt)


def fail_once(scenario: JobScenario, job_id: str, attempt: int) -> None:
    scenario.save_checkpoint(job_id, attempt, 10)
    scenario.world.cluster.fail_pods(job_id, attempt, exit_code=3)


def cancel_job(scenario: JobScenario, job_id: str, _attempt: int) -> None:
    scenario.cancel(job_id)


def lose_node(scenario: JobScenario, job_id: str, attempt: int) -> None:
    """Disconnect a node. Its recovery requests the stop of the attempt, and plans where the job resumes."""
    scenario.save_checkpoint(job_id, attempt, 10)
    affected = scenario.attempt(job_id, attempt)
    scenario.world.cluster.lose_node(affected.node_names[0])
    now = scenario.world.clock.now()
    request = StopRequest(
        attempt=attempt,
        reason="Its node is sick.",
        by="recover_node/inc-1",
        outcome=AttemptState.LOST,
        grace_seconds=5,
        requested_at=now,
    )
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=attempt,
        option=ResumeOption.FREE_NODE,
        avoid=(affected.nodes[0].key,),
        planned_at=now,
    )
    scenario.set_job(scenario.job(job_id).replace(stop_request=request).with_plan(plan, is_still_distrusted=False))


JOB_EVENTS = {"succeeds": succeeds, "fails_once": fail_once, "is_cancelled": cancel_job, "loses_its_node": lose_node}


def comparable_end(replay: CrashReplay, job_id: str) -> dict[str, Any]:
    """Return the state that must be the same after any crash, without times and numbers of requests."""
    scenario = replay.scenario
    job = scenario.job(job_id)
    attempts = [scenario.attempt(job_id, number) for number in range(1, job.current_attempt + 1)]
    fence, _ = scenario.world.checkpoints.fence(job.spec.checkpoint_uri)
    return {
        "job": (job.state, job.reason.replace(job_id, "job"), job.application_failures, job.stop_request),
        "attempts": [
            (
                attempt.attempt,
                attempt.state,
                attempt.reason.replace(job_id, "job"),
                attempt.charge_held,
                attempt.resume_from,
                attempt.node_names,
            )
            for attempt in attempts
        ],
        "fence": (fence or {}).get("attempt"),
        "usage": scenario.usage(),
        "charges": scenario.charges(),
        # A request that crashed before its commit used up an id.
        "launches": [call[1].removeprefix(job_id) for call in scenario.world.cluster.calls if call[0] == "launch"],
        "executions": [name.removeprefix(job_id) for name in scenario.world.workflows.names(WorkflowName.RUN_JOB)],
        "at work": [
            workload for workload in scenario.world.cluster.workloads(job.cluster) if workload.has_runnable_pods
        ],
    }


@functools.cache
def run_without_crash(job_event: str) -> tuple[dict[str, Any], list[str]]:
    replay = CrashReplay(CrashPlan(), JOB_EVENTS[job_event])
    job_id = replay.run()
    return comparable_end(replay, job_id), replay.plan.effects


def crash_points() -> list[Any]:
    return [
        pytest.param(job_event, at, when, id=f"{job_event}-{when}-{at}-{effect}", marks=crash_mark(at, when))
        for job_event in JOB_EVENTS
        for at, effect in enumerate(run_without_crash(job_event)[1], 1)
        for when in CrashTiming
    ]


def test_each_scenario_without_a_crash_ends_as_expected() -> None:
    ends = {job_event: run_without_crash(job_event)[0] for job_event in JOB_EVENTS}

    assert {
        job_event: (end["job"][0], [attempt[1] for attempt in end["attempts"]]) for job_event, end in ends.items()
    } == {
        "succeeds": (JobState.SUCCEEDED, [AttemptState.SUCCEEDED]),
        "fails_once": (JobState.SUCCEEDED, [AttemptState.FAILED, AttemptState.SUCCEEDED]),
        "is_cancelled": (JobState.CANCELLED, [AttemptState.STOPPED]),
        "loses_its_node": (JobState.SUCCEEDED, [AttemptState.LOST, AttemptState.SUCCEEDED]),
    }
    assert all((end["usage"], end["charges"], end["at work"]) == (0, [], []) for end in ends.values())


@pytest.mark.parametrize(("job_event", "at", "when"), crash_points())
def test_retry_after_a_crash_ends_like_a_run_without_crash(job_event: str, at: int, when: str) -> None:
    expected, _ = run_without_crash(job_event)
    replay = CrashReplay(CrashPlan(at, when), JOB_EVENTS[job_event])

    job_id = replay.run()

    assert replay.crashes == 1
    assert comparable_end(replay, job_id) == expected


@pytest.mark.parametrize(("job_event", "at", "when"), crash_points())
def test_sweeper_completes_work_of_a_workflow_that_crashed(job_event: str, at: int, when: str) -> None:
    expected, _ = run_without_crash(job_event)
    replay = CrashReplay(CrashPlan(at, when), JOB_EVENTS[job_event], aborts=True)

    end = comparable_end(replay, replay.run())

    assert replay.crashes == 1
    assert end["job"][0] == expected["job"][0]
    assert (end["usage"], end["charges"], end["at work"]) == (0, [], [])
    assert len(end["launches"]) == len(set(end["launches"]))


def test_sweeper_lock_expires_before_the_crash_tests_sweep_again() -> None:
    assert sweep_fleet._LOCK_SECONDS < 61
