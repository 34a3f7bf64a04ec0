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
from tests.crash_points import marks_at
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
    tale: Callable[[JobScenario, str, int], None]
    aborts: bool = False
    scenario: JobScenario = field(init=False)
    executions: dict[str, RunningExecution] = field(default_factory=dict)
    told_of: int = 0
    """The attempt that the tale happened to; those after it simply succeed."""
    crashes: int = 0

    def __post_init__(self) -> None:
        self.scenario = JobScenario(runs_at_once=True, policy=POLICY, plan=self.plan)

    def run(self) -> str:
        job_id = self._submit()
        for _ in range(ROUNDS):
            self._try(self.scenario.run_scheduling_cycle)
            self._take_up_executions()
            for name, execution in self.executions.items():
                self._advance(name, execution)
            self._try(lambda: self._tell(job_id))
            self.scenario.world.clock.advance(20)
            self._try(self.scenario.sweep)
            if self.scenario.job(job_id).state.has_ended and self._is_quiet():
                return job_id
        pytest.fail(f"{job_id} is {self.scenario.job(job_id).state} after {ROUNDS} rounds: {self.plan.effects[-5:]}")

    def _submit(self) -> str:
        while True:
            try:
                return self.scenario.submit().job_id
            except Crash:
                self.crashes += 1

    def _try(self, step: Callable[[], Any]) -> None:
        try:
            step()
        except Crash:
            self.crashes += 1
            # The lock of a dead sweep expires; this test does not wait for that.
            self.scenario.world.clock.advance(61)

    def _tell(self, job_id: str) -> None:
        job = self.scenario.job(job_id)
        if job.state is not JobState.RUNNING:
            return
        if not self.told_of:
            self.tale(self.scenario, job_id, job.current_attempt)
            self.told_of = job.current_attempt
        elif job.current_attempt > self.told_of:
            self.scenario.world.cluster.finish_pods(job_id, job.current_attempt)

    def _is_quiet(self) -> bool:
        workflows = self.scenario.world.workflows
        return ExecutionState.RUNNING not in [
            workflows.state(WorkflowName.RUN_JOB, name) for name in workflows.names(WorkflowName.RUN_JOB)
        ]

    def _take_up_executions(self) -> None:
        for (machine, name), document in self.scenario.world.workflows.executions.items():
            if machine is WorkflowName.RUN_JOB and name not in self.executions:
                self.executions[name] = RunningExecution(document["jobId"], document["attempt"])

    def _advance(self, name: str, execution: RunningExecution) -> None:
        """Run states until the execution waits or has ended."""
        workflows = self.scenario.world.workflows
        while workflows.state(WorkflowName.RUN_JOB, name) is ExecutionState.RUNNING:
            before = execution.state
            try:
                execution.state = self._next(execution)
            except Crash:
                self.crashes += 1
                if self.aborts:
                    workflows.finish(WorkflowName.RUN_JOB, name, ExecutionState.FAILED)
                continue  # the task is retried
            if execution.state == "Done":
                workflows.finish(WorkflowName.RUN_JOB, name)
            elif execution.state == before:
                return

    def _next(self, execution: RunningExecution) -> str:
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
        answer = self._answer(execution)
        if answer is None:
            return execution.state
        execution.ended = answer.to_json()
        if execution.state == "AwaitStopped":
            return "SettleAttempt"
        return {"RUNNING": "MarkRunning", "ENDED": "SettleAttempt", "STOP_REQUESTED": "StopAttempt"}[answer.outcome]

    def _answer(self, execution: RunningExecution) -> WaitAnswer | None:
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


# ---------------------------------------------------------------- tales: what happens once the job runs


def succeeds(scenario: JobScenario, job_id: str, attempt: int) -> None:
    scenario.save(job_id, attempt, 10)
    scenario.world.cluster.finish_pods(job_id, attempt)


def fail_once(scenario: JobScenario, job_id: str, attempt: int) -> None:
    scenario.save(job_id, attempt, 10)
    scenario.world.cluster.fail_pods(job_id, attempt, exit_code=3)


def cancel_job(scenario: JobScenario, job_id: str, _attempt: int) -> None:
    scenario.cancel(job_id)


def lose_node(scenario: JobScenario, job_id: str, attempt: int) -> None:
    """Disconnect a node. Its recovery requests the stop of the attempt, and plans where the job resumes."""
    scenario.save(job_id, attempt, 10)
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
    scenario.set_job(scenario.job(job_id).replace(stop_request=request).with_plan(plan, is_doubted=False))


TALES = {"succeeds": succeeds, "fails_once": fail_once, "is_cancelled": cancel_job, "loses_its_node": lose_node}


def comparable_end(play: CrashReplay, job_id: str) -> dict[str, Any]:
    """Return the state that must be the same after any crash, without times and numbers of requests."""
    scenario = play.scenario
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
def run_without_crash(tale: str) -> tuple[dict[str, Any], list[str]]:
    play = CrashReplay(CrashPlan(), TALES[tale])
    job_id = play.run()
    return comparable_end(play, job_id), play.plan.effects


def crash_points() -> list[Any]:
    return [
        pytest.param(tale, at, when, id=f"{tale}-{when}-{at}-{effect}", marks=marks_at(at, when))
        for tale in TALES
        for at, effect in enumerate(run_without_crash(tale)[1], 1)
        for when in CrashTiming
    ]


def test_each_scenario_without_a_crash_ends_as_expected() -> None:
    ends = {tale: run_without_crash(tale)[0] for tale in TALES}

    assert {tale: (end["job"][0], [attempt[1] for attempt in end["attempts"]]) for tale, end in ends.items()} == {
        "succeeds": (JobState.SUCCEEDED, [AttemptState.SUCCEEDED]),
        "fails_once": (JobState.SUCCEEDED, [AttemptState.FAILED, AttemptState.SUCCEEDED]),
        "is_cancelled": (JobState.CANCELLED, [AttemptState.STOPPED]),
        "loses_its_node": (JobState.SUCCEEDED, [AttemptState.LOST, AttemptState.SUCCEEDED]),
    }
    assert all((end["usage"], end["charges"], end["at work"]) == (0, [], []) for end in ends.values())


@pytest.mark.parametrize(("tale", "at", "when"), crash_points())
def test_retry_after_a_crash_has_the_same_end(tale: str, at: int, when: str) -> None:
    expected, _ = run_without_crash(tale)
    play = CrashReplay(CrashPlan(at, when), TALES[tale])

    job_id = play.run()

    assert play.crashes == 1
    assert comparable_end(play, job_id) == expected


@pytest.mark.parametrize(("tale", "at", "when"), crash_points())
def test_sweeper_repairs_a_crash_that_ended_the_workflow(tale: str, at: int, when: str) -> None:
    expected, _ = run_without_crash(tale)
    play = CrashReplay(CrashPlan(at, when), TALES[tale], aborts=True)

    end = comparable_end(play, play.run())

    assert play.crashes == 1
    assert end["job"][0] == expected["job"][0]
    assert (end["usage"], end["charges"], end["at work"]) == (0, [], [])
    assert len(end["launches"]) == len(set(end["launches"]))


def test_sweeper_lock_expires_within_the_time_of_crash_tests() -> None:
    assert sweep_fleet._LOCK_SECONDS < 61
