"""The states of a workflow as a graph: the order of the states, and where an execution is."""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from evenkeel.domain.values import Instant, Value

Definition = Mapping[str, Any]


class StateProgress(StrEnum):
    """Whether an execution reached a state."""

    CURRENT = "CURRENT"
    DONE = "DONE"
    FAILED = "FAILED"
    """The execution ended in it."""
    NOT_REACHED = "NOT_REACHED"


class GraphState(Value):
    """A state of the workflow."""

    name: str
    kind: str
    """`Task`, `Choice`, `Parallel`, …"""
    comment: str = ""
    next: tuple[str, ...] = ()
    """States that may follow, without states that catch an error."""
    inside: str = ""
    """The `Parallel` or `Map` state that contains it; empty at the top."""
    branch: int = 0
    """Number of its branch there."""
    depth: int = 0
    """Steps from the start of its branch, by the shortest way."""
    progress: StateProgress = StateProgress.NOT_REACHED
    entered_at: Instant | None = None
    """Time of its last entry."""
    exited_at: Instant | None = None
    visits: int = 0


class Visit(Value):
    """An execution entered a state."""

    state: str
    entered_at: Instant
    exited_at: Instant | None = None


def graph_of(definition: Definition, visits: Iterable[Visit], *, is_running: bool) -> tuple[GraphState, ...]:
    """Return the states of a workflow with the progress of one execution: branch by branch, in the order of a run.

    Args:
        definition: The workflow, in the Amazon States Language.
        visits: The entries into states, in order. A state that the definition does not have is left out.
        is_running: Whether the execution still runs.
    """
    by_name: dict[str, list[Visit]] = {}
    for visit in visits:
        by_name.setdefault(visit.state, []).append(visit)
    states = _states(definition, "", 0)
    return tuple(_with_progress(state, by_name.get(state.name, []), is_running=is_running) for state in states)


def _with_progress(state: GraphState, visits: list[Visit], *, is_running: bool) -> GraphState:
    if not visits:
        return state
    last_visit = visits[-1]
    progress = StateProgress.DONE
    if last_visit.exited_at is None:
        progress = StateProgress.CURRENT if is_running else StateProgress.FAILED
    return state.replace(
        progress=progress, entered_at=last_visit.entered_at, exited_at=last_visit.exited_at, visits=len(visits)
    )


def _states(definition: Definition, inside: str, branch: int) -> Iterator[GraphState]:
    states: Mapping[str, Definition] = definition["States"]
    depths = _depths(definition)
    for name in _in_order(definition):
        state = states[name]
        yield GraphState(
            name=name,
            kind=state["Type"],
            comment=state.get("Comment", ""),
            next=tuple(dict.fromkeys(_next(state))),
            inside=inside,
            branch=branch,
            depth=depths[name],
        )
        for number, inner in enumerate(state.get("Branches", ())):
            yield from _states(inner, name, number)
        if "ItemProcessor" in state:
            yield from _states(state["ItemProcessor"], name, 0)


def _next(state: Definition) -> Iterator[str]:
    yield from (choice["Next"] for choice in state.get("Choices", ()))
    yield from (state[field] for field in ("Default", "Next") if field in state)


def _in_order(definition: Definition) -> list[str]:
    """Return the states: each after all states that lead to it, except in a loop. States that only catch come last."""
    states: Mapping[str, Definition] = definition["States"]
    finished_states: list[str] = []
    entered: set[str] = set()

    def enter(name: str) -> None:
        entered.add(name)
        for next_state in reversed(tuple(dict.fromkeys(_next(states[name])))):
            if next_state not in entered:
                enter(next_state)
        finished_states.append(name)

    enter(definition["StartAt"])
    return [*reversed(finished_states), *(name for name in states if name not in entered)]


def _depths(definition: Definition) -> dict[str, int]:
    """Return the number of steps from the start to each state. States that only catch errors come last."""
    states: Mapping[str, Definition] = definition["States"]
    depths, ahead = {definition["StartAt"]: 0}, [definition["StartAt"]]
    while ahead:
        name = ahead.pop(0)
        for next_state in _next(states[name]):
            if next_state not in depths:
                depths[next_state] = depths[name] + 1
                ahead.append(next_state)
    return {name: depths.get(name, len(states)) for name in states}
