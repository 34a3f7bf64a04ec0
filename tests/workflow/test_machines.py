"""The workflows on the engine: every branch, every Catch, and every end."""

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.template.documents import WORKFLOWS, Json, machines, states, transitions, workflow
from tests.workflow.cases import CASES, IN_BRANCHES, NODE_TASKS, ending_states, recovery
from tests.workflow.workflow_bench import ExecutionResult, TaskError, WorkflowBench, WorkflowCase

DATA_LIMIT = 64 * 1024
EVENTS_AT_THE_CAPS = 5_000
EVENTS_THAT_AWS_TAKES = 25_000


@pytest.fixture(scope="module")
def endings(bench: WorkflowBench) -> Iterator[dict[str, ExecutionResult]]:
    """Results of all cases, which run once and concurrently."""
    for machine in WORKFLOWS:
        tasks = {name for name, state in states(workflow(machine)) if state["Type"] == "Task"}
        unanswered = tasks - {name for case in CASES if case.machine == machine for name in case.answers}
        assert not unanswered, f"add an answer of {', '.join(sorted(unanswered))} to tests/workflow/cases.py"
    yield bench.run_all(CASES)
    bench.engine.mock_workflows({})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_execution_ends_in_the_expected_state(case: WorkflowCase, endings: dict[str, ExecutionResult]) -> None:
    ending = endings[case.name]
    status, error = ending_states(case.machine)[case.ends]

    assert (ending.entered[-1], ending.status, ending.error) == (case.ends, status, error)
    assert set(case.visits) <= set(ending.entered)
    assert not set(case.never) & set(ending.entered)


@pytest.mark.parametrize("machine", WORKFLOWS)
def test_every_transition_is_covered_by_a_case(machine: str, endings: dict[str, ExecutionResult]) -> None:
    drawn = {arrow for _, part in machines(workflow(machine)) for arrow in transitions(part)}
    taken = {arrow for case in CASES if case.machine == machine for arrow in endings[case.name].transitions(machine)}

    assert sorted(drawn - taken) == []
    assert sorted(taken - drawn) == []


def test_case_names_are_unique() -> None:
    assert [name for name, count in Counter(case.name for case in CASES).items() if count > 1] == []


@pytest.mark.parametrize("state", IN_BRANCHES)
def test_failed_branch_does_not_cancel_the_other(state: str, endings: dict[str, ExecutionResult]) -> None:
    ending = endings[f"recover-breaks-in-{state}"]
    node, jobs = ending.inputs_of("JoinBranches")[0]
    broken, whole = (node, jobs) if state in NODE_TASKS else (jobs, node)

    assert broken == {"outcome": "FAILED", "reason": "KeyError: a bug"}
    assert whole["outcome"] in ("RETURNED", "JOBS_RESUMED")


def test_loop_limit_ends_the_loop_with_the_last_answer(endings: dict[str, ExecutionResult]) -> None:
    ending = endings["recover-provider-busy-for-ever"]
    node, _ = ending.inputs_of("JoinBranches")[0]

    assert ending.entered.count("RepairNode") == 160
    assert node["outcome"] == "WAITING_FOR_PERSON"
    assert node["reason"] == "After 160 tries the node is still out of service. Last result: It is retry."


def test_repair_waits_for_a_hold(endings: dict[str, ExecutionResult]) -> None:
    ending = endings["recover-held"]
    node_branch = [name for name in ending.entered if name in NODE_TASKS]

    assert node_branch[:3] == ["RepairNode", "AwaitGuardrails", "RepairNode"]
    assert (node_branch[3], node_branch[-1]) == ("AwaitNode", "ReturnNode")


def test_unanswered_approval_changes_nothing(endings: dict[str, ExecutionResult]) -> None:
    ending = endings["recover-nobody-approves"]

    assert ending.entered[-4:] == ("IsApproved", "SettleIncident", "HowDidItEnd", "Observed")


def test_number_of_replans_is_bounded(endings: dict[str, ExecutionResult]) -> None:
    assert endings["recover-superseded-for-ever"].entered.count("AwaitApproval") == 12


def test_second_start_of_the_same_name_starts_nothing(
    bench: WorkflowBench, endings: dict[str, ExecutionResult]
) -> None:
    case = CASES[0]
    already = bench.steps.exceptions.ExecutionAlreadyExists

    with pytest.raises(already):
        bench.start(case)

    executions = bench.steps.list_executions(stateMachineArn=bench.arns[case.machine], maxResults=1000)["executions"]
    assert [execution["name"] for execution in executions].count(case.name) == 1


def history_size(machine: str, entered: tuple[str, ...], *, tries: int, tries_without_policy: int = 0) -> int:
    """Return how many events AWS would write for a path.

    A state has an event for its start and its end. Each try of a task has events for its schedule, start and answer,
    and for its submission if it waits. Source: the event types of GetExecutionHistory. Both branches of a recovery may
    wait for a policy at the same time.
    """
    kinds = dict(states(workflow(machine)))
    size = 2 + 2 * 4 * tries_without_policy  # 2: ExecutionStarted, and the last event
    for name in entered:
        state = kinds[name]
        size += 2
        if state["Type"] == "Task":
            size += tries * (4 if state["Resource"].endswith(".waitForTaskToken") else 3)
        elif state["Type"] == "Parallel":
            size += 2
    return size


@pytest.mark.parametrize("case", CASES, ids=str)
def test_history_stays_below_event_limits_with_every_retry(
    case: WorkflowCase, endings: dict[str, ExecutionResult]
) -> None:
    entered = endings[case.name].entered
    retriers = [state["Retry"] for _, state in states(workflow(case.machine)) if "Retry" in state]
    tries, tries_without_policy = (max(rules[index]["MaxAttempts"] for rules in retriers) for index in (0, 1))
    most = history_size(case.machine, entered, tries=1 + tries, tries_without_policy=tries_without_policy)

    assert history_size(case.machine, entered, tries=1) < EVENTS_AT_THE_CAPS
    assert most < EVENTS_THAT_AWS_TAKES


def documents_of(event: Json) -> Iterator[str]:
    for details in event.values():
        if isinstance(details, dict):
            yield from (value for key, value in details.items() if key in ("input", "output"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_workflow_data_stays_below_the_limit_of_step_functions(
    case: WorkflowCase, endings: dict[str, ExecutionResult]
) -> None:
    largest = max(len(text.encode()) for event in endings[case.name].events for text in documents_of(event))
    assert largest < DATA_LIMIT


def test_long_cause_is_shortened_before_the_next_state(
    bench: WorkflowBench, endings: dict[str, ExecutionResult]
) -> None:
    long = recovery("long-cause", "RecoveryFailed", {"ReturnNode": TaskError("Broken", "x" * 200_000)})

    ending = bench.run_all([long])[long.name]

    (branches,) = ending.inputs_of("JoinBranches")
    assert len(json.dumps(branches)) < 2_000
