"""The simulated Step Functions ends the cases of the workflow tests in the same states as the engine."""

import random
from collections import deque
from collections.abc import Mapping

import pytest

from evenkeel.ports import ExecutionState
from tests.simulator.asl import Failure, Json, Reply, StateRun, WorkflowEngine, evaluate
from tests.simulator.event_loop import VirtualTimeLoop
from tests.template.documents import WORKFLOWS, machines, workflow
from tests.workflow.cases import CASES, FLAPPING, NO_POLICY, RUNS, attempt, ending_states, recovery, rental
from tests.workflow.workflow_bench import Answer, TaskError, WorkflowCase, usual_input

A_YEAR = 31_600_000


def run(case: WorkflowCase, no_policy_until: float = 0) -> tuple[WorkflowEngine, list[str]]:
    """Run a case with its prepared answers. Before this second, every task fails for want of a policy."""
    loop = VirtualTimeLoop()
    queues = {
        state: deque([answers] if isinstance(answers, Mapping | TaskError) else answers)
        for state, answers in case.answers.items()
    }

    def invoke(state: str, _placeholder: str, payload: Json, reply: Reply) -> None:
        if loop.seconds < no_policy_until:
            loop.after(0.1, lambda: reply(Failure("NoPolicyInForce")))
            return
        queue = queues[state]
        given = queue[0] if len(queue) == 1 else queue.popleft()
        if isinstance(given, TaskError):
            loop.after(0.1, lambda: reply(Failure(given.error, given.cause)))
        elif token := payload.get("token"):
            loop.after(0.1, lambda: engine.succeed(token, given))
        else:
            loop.after(0.1, lambda: reply(given))

    engine = WorkflowEngine(loop, invoke, random.Random(1))
    document = usual_input(case.machine) if case.document is None else dict(case.document)
    engine.start(case.machine, case.name, document)
    loop.run(A_YEAR)
    return engine, engine.executions[case.machine, case.name].entered


@pytest.mark.parametrize("case", CASES, ids=str)
def test_simulated_workflow_ends_in_the_same_state_as_the_engine(case: WorkflowCase) -> None:
    engine, entered = run(case)

    execution = engine.executions[case.machine, case.name]
    status, error = ending_states(case.machine)[case.ends]
    assert (execution.ended_in, execution.status, execution.error) == (case.ends, ExecutionState[status], error)
    assert set(case.visits) <= set(entered)
    assert not set(case.never) & set(entered)


def test_retries_are_counted_for_each_retrier() -> None:
    failures: list[Answer] = [*[FLAPPING] * 12, *[NO_POLICY] * 20, RUNS["AwaitEnd"]]

    engine, _ = run(attempt("fails-in-two-ways", "JobSucceeded", {"AwaitEnd": failures}))

    assert engine.executions["run_job", "run-fails-in-two-ways"].ended_in == "JobSucceeded"


@pytest.mark.parametrize(
    "case", [recovery("late", "Recovered"), attempt("late", "JobSucceeded"), rental("late")], ids=str
)
def test_execution_continues_after_hours_without_policy(case: WorkflowCase) -> None:
    engine, _ = run(case, no_policy_until=12 * 3600)

    assert engine.executions[case.machine, case.name].ended_in == case.ends


def test_execution_name_starts_one_execution() -> None:
    case = CASES[0]
    engine, _ = run(case)

    assert not engine.start(case.machine, case.name, usual_input(case.machine))


def test_input_and_output_paths_follow_the_states_language() -> None:
    known = {"states": {"result": {"Payload": {"outcome": "ACT"}}}, "plan": None}

    assert evaluate("{% $states.result.Payload %}", known) == {"outcome": "ACT"}
    assert evaluate("{% ($states.result.Payload) %}", known) == {"outcome": "ACT"}
    assert evaluate("{% $states.result.None.at.all %}", known) is None
    assert evaluate("{% $plan = null %}", known) is True
    assert evaluate("{% $plan.outcome = 'ACT' %}", known) is False


def test_cached_expression_distinguishes_values_and_types() -> None:
    known: list[tuple[dict[str, object], list[object]]] = [
        ({"a": 1}, [True, True, "number"]),
        ({"a": True}, [False, True, "boolean"]),
        ({"a": "1"}, [False, True, "string"]),
        ({"a": None}, [False, True, "null"]),
        ({}, [False, False, None]),
        ({"a": [1]}, [False, True, "array"]),
    ]

    for _ in range(2):
        for bindings, answers in known:
            assert [evaluate(f"{{% {text} %}}", bindings) for text in ("$a = 1", "$exists($a)", "$type($a)")] == answers


def test_simulator_runs_every_kind_of_state() -> None:
    kinds = {
        state["Type"].lower()
        for machine in WORKFLOWS
        for _, part in machines(workflow(machine))
        for state in part["States"].values()
    }

    assert [kind for kind in kinds if not hasattr(StateRun, f"_{kind}")] == []
