"""The graph of a workflow with the progress of an execution, on the real workflows."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from evenkeel.domain.workflow_graph import GraphState, StateProgress, Visit, graph_of
from tests.fakes.system import A_MOMENT

MACHINES = Path(__file__).parents[2] / "statemachines"
RECOVER: dict[str, Any] = json.loads((MACHINES / "recover_node.asl.json").read_text(encoding="utf-8"))


def state_visits(*names: str, ended: int) -> list[Visit]:
    """Return visits of states, a second apart. The first `ended` of them have ended."""
    at = [A_MOMENT + timedelta(seconds=second) for second in range(len(names) + 1)]
    return [
        Visit(state=name, entered_at=at[index], exited_at=at[index + 1] if index < ended else None)
        for index, name in enumerate(names)
    ]


def progress_by_state(visits: list[Visit], *, is_running: bool) -> dict[str, GraphState]:
    return {state.name: state for state in graph_of(RECOVER, visits, is_running=is_running)}


@pytest.mark.parametrize("path", sorted(MACHINES.glob("*.asl.json")), ids=lambda path: path.stem)
def test_graph_has_every_state_once_and_no_dangling_arrow(path: Path) -> None:
    definition = json.loads(path.read_text(encoding="utf-8"))

    def names(part: Any) -> list[str]:
        states = part["States"]
        inner = [
            inner_machine
            for state in states.values()
            for inner_machine in (*state.get("Branches", ()), state.get("ItemProcessor"))
        ]
        return [*states, *(name for inner_machine in inner if inner_machine for name in names(inner_machine))]

    graph = graph_of(definition, (), is_running=True)

    assert sorted(state.name for state in graph) == sorted(names(definition))
    branches = {state.name: (state.inside, state.branch) for state in graph}
    assert all(branches[name] == branches[state.name] for state in graph for name in state.next), (
        "let each next state be in the branch of its state"
    )
    assert graph[0].name == definition["StartAt"]
    assert {state.progress for state in graph} == {StateProgress.NOT_REACHED}


def test_graph_lists_states_in_the_order_of_a_recovery() -> None:
    names = [state.name for state in graph_of(RECOVER, (), is_running=True)]

    main_path = ["CordonNode", "DrainNode", "Recover", "RepairNode", "AwaitNode", "AwaitValidation", "ReturnNode"]
    main_path += ["PlanResume", "AwaitResume", "JoinBranches", "SettleIncident", "Recovered"]
    assert sorted(main_path, key=names.index) == main_path


def test_state_that_was_entered_but_not_left_is_current() -> None:
    states = progress_by_state(state_visits("PlanRecovery", "AwaitApproval", ended=1), is_running=True)

    assert states["PlanRecovery"].progress is StateProgress.DONE
    assert states["AwaitApproval"].progress is StateProgress.CURRENT
    assert states["CordonNode"].progress is StateProgress.NOT_REACHED


def test_both_parallel_branches_of_a_workflow_can_be_current() -> None:
    states = progress_by_state(
        state_visits("PlanRecovery", "Recover", "RepairNode", "PlanResume", ended=1), is_running=True
    )

    current = {name for name, state in states.items() if state.progress is StateProgress.CURRENT}
    assert current == {"Recover", "RepairNode", "PlanResume"}
    assert states["RepairNode"].inside == states["PlanResume"].inside == "Recover"
    assert states["RepairNode"].branch != states["PlanResume"].branch


def test_last_state_of_an_ended_unfinished_execution_is_failed() -> None:
    states = progress_by_state(state_visits("PlanRecovery", "CordonNode", ended=1), is_running=False)

    assert states["CordonNode"].progress is StateProgress.FAILED


def test_state_that_is_entered_again_shows_its_last_visit() -> None:
    states = progress_by_state(state_visits("PlanRecovery", "AwaitProvider", "PlanRecovery", ended=2), is_running=True)

    assert (states["PlanRecovery"].visits, states["PlanRecovery"].progress) == (2, StateProgress.CURRENT)
    assert states["AwaitProvider"].progress is StateProgress.DONE
