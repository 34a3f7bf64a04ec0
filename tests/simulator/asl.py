"""Step Functions in miniature: the part of the states language that the workflows use, in virtual time.

The rows of `tests/workflow/cases.py` run on it too (`test_asl.py`), so that it agrees with the engine.
"""

import functools
import itertools
import random
import re
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsonata import Jsonata
from jsonata.jexception import JException
from jsonata.utils import Utils

from evenkeel.ports import ExecutionState
from tests.simulator.event_loop import VirtualTimeLoop
from tests.template.documents import WORKFLOWS, machines, workflow

Json = dict[str, Any]
_REMEMBERED = 10_000
"""Results that are cached for one expression."""
_PATH = re.compile(r"\$\w+(?:\.\w+)*")
_WAITS = "arn:aws:states:::lambda:invoke.waitForTaskToken"


@dataclass(frozen=True)
class Failure:
    """How a task failed."""

    error: str
    cause: str = ""


Reply = Callable[[Any], None]
"""Receives the result of a function, or a Failure."""
Invoke = Callable[[str, str, Json, Reply], None]
"""Calls the function of a state. Arguments: the state, the function's placeholder, the payload, and the reply callback.
"""


class QueryError(Exception):
    """An expression cannot be evaluated, or its result cannot be used: States.QueryEvaluationError."""


@functools.cache
def _compiled(text: str) -> Callable[[Mapping[str, Any]], Any]:
    if _PATH.fullmatch(text):
        names = text[1:].split(".")
        return lambda bindings: functools.reduce(_get_field, names, bindings)
    expression = Jsonata.jsonata(text)
    paths = [path[1:].split(".") for path in dict.fromkeys(_PATH.findall(text))]
    document: dict[Any, Any] = {}

    def evaluated(bindings: Mapping[str, Any]) -> Any:
        # The result of an expression depends only on the values of its paths, so results are cached by text and
        # values.
        values = [functools.reduce(_resolve_path, names, bindings) for names in paths]
        key = repr(values)
        if key in document:
            return document[key]
        state_input = {name: Utils.NULL_VALUE if value is None else value for name, value in bindings.items()}
        try:
            value = expression.evaluate(None, state_input)
        except JException as error:
            raise QueryError(f"{text}: {error}") from error
        value = None if value is Utils.NULL_VALUE else value
        if len(document) < _REMEMBERED and isinstance(value, bool | str | int):
            document[key] = value
        return value

    return evaluated


def _get_field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def transitions(machine: str) -> Iterator[str]:
    """Yield the name of every transition of a machine, branches included."""
    for _, part in machines(_definition(machine)):
        for name, state in part["States"].items():
            rules = [state, *state.get("Choices", ()), *state.get("Catch", ()), {"Next": state.get("Default")}]
            yield from (f"{machine}: {name} -> {rule['Next']}" for rule in rules if rule.get("Next"))


@functools.cache
def functions() -> frozenset[str]:
    """Return the placeholders of all functions that the workflows call."""
    parts = [part for machine in WORKFLOWS for _, part in machines(_definition(machine))]
    states = [state for part in parts for state in part["States"].values() if state["Type"] == "Task"]
    return frozenset(state["Arguments"]["FunctionName"] for state in states)


_MISSING = object()
"""A field that is absent. It differs from null: `$exists` tells them apart."""


def _resolve_path(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(name, _MISSING)
    return value if isinstance(value, list) else _MISSING  # a path leads into each item of a list


def evaluate(template: Any, bindings: Mapping[str, Any]) -> Any:
    """Evaluate the expressions of a template."""
    if isinstance(template, str) and template.startswith("{%"):
        return _compiled(template[2:-2].strip())(bindings)
    if isinstance(template, dict):
        return {key: evaluate(value, bindings) for key, value in template.items()}
    return template


@functools.cache
def _definition(machine: str) -> Json:
    return workflow(machine)


@dataclass
class Execution:
    """A run of a machine."""

    machine: str
    name: str
    document: Json
    status: ExecutionState = ExecutionState.RUNNING
    ended_in: str = ""
    error: str = ""
    entered: list[str] = field(default_factory=list)


class WorkflowEngine:
    """All executions. Functions are called through `invoke`; `succeed` and `fail` answer a token."""

    def __init__(self, loop: VirtualTimeLoop, invoke: Invoke, rng: random.Random) -> None:
        self.loop = loop
        self.invoke = invoke
        self.rng = rng
        self.executions: dict[tuple[str, str], Execution] = {}
        self.on_end: Callable[[Execution], None] = lambda _: None
        self.transition_counts: Counter[str] = Counter()
        """Transitions that were taken: `<machine>: <state> -> <state>`."""
        self._waiting: dict[str, Reply] = {}
        self._numbers = itertools.count(1)

    def start(self, machine: str, name: str, document: Mapping[str, Any]) -> bool:
        """Start an execution; return False if the name was used before."""
        if (machine, name) in self.executions:
            return False
        execution = self.executions[machine, name] = Execution(machine, name, dict(document))
        track = StateRun(self, execution, _definition(machine), ChainMap(), self._ended(execution))
        self.loop.after(0.05, lambda: track.enter(_definition(machine)["StartAt"], execution.document))
        return True

    def abort(self, execution: Execution) -> None:
        """End an execution, as a stop by a person or a limit that no Catch handles."""
        execution.status = ExecutionState.FAILED
        execution.error = "ABORTED"
        self.on_end(execution)

    def succeed(self, token: str, output: Any) -> bool:
        """Act as SendTaskSuccess; return False if no task waits for the token."""
        return self._complete(token, output)

    def fail(self, token: str, failure: Failure) -> bool:
        """Act as SendTaskFailure; return False if no task waits for the token."""
        return self._complete(token, failure)

    def is_waiting(self, token: str) -> bool:
        return token in self._waiting

    def _complete(self, token: str, result: Any) -> bool:
        reply = self._waiting.pop(token, None)
        if reply is None:
            return False
        self.loop.after(0.05, lambda: reply(result))
        return True

    def new_token(self, reply: Reply) -> str:
        token = f"token-{next(self._numbers)}"
        self._waiting[token] = reply
        return token

    def forget(self, token: str) -> None:
        self._waiting.pop(token, None)

    def _ended(self, execution: Execution) -> Callable[[str, Any], None]:
        def ended(state: str, result: Any) -> None:
            execution.ended_in = state
            is_failure = isinstance(result, Failure)
            execution.error = result.error if is_failure else ""
            execution.status = ExecutionState.FAILED if is_failure else ExecutionState.SUCCEEDED
            self.on_end(execution)

        return ended


class StateRun:
    """A running machine or branch, with its own variables and access to those of its parent."""

    def __init__(
        self,
        engine: WorkflowEngine,
        execution: Execution,
        definition: Json,
        variables: ChainMap[str, Any],
        ended: Callable[[str, Any], None],
    ) -> None:
        self.engine = engine
        self.execution = execution
        self.states: dict[str, Json] = definition["States"]
        self.variables = variables
        self.ended = ended
        self.is_over = False

    def enter(self, name: str, state_input: Any) -> None:
        if self.is_over or self.execution.status is not ExecutionState.RUNNING:
            return
        self.execution.entered.append(name)
        state = self.states[name]
        try:
            getattr(self, f"_{state['Type'].lower()}")(name, state, state_input)
        except QueryError as error:
            self._failed(name, state, Failure("States.QueryEvaluationError", str(error)))

    # ------------------------------------------------------------ the kinds of states

    def _choice(self, name: str, state: Json, state_input: Any) -> None:
        for rule in state["Choices"]:
            if self._evaluate(rule["Condition"], {"input": state_input}) is True:
                self._follow_transition(name, rule, state_input, state_input)
                return
        self._follow_transition(name, {**state, "Next": state["Default"]}, state_input, state_input)

    def _pass(self, name: str, state: Json, state_input: Any) -> None:
        self._follow_transition(name, state, state_input, state_input)

    def _wait(self, name: str, state: Json, state_input: Any) -> None:
        seconds = self._evaluate(state["Seconds"], {"input": state_input})
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
            raise QueryError(f"{name}: {seconds!r} is not a number of seconds")
        self.engine.loop.after(seconds, lambda: self._follow_transition(name, state, state_input, state_input))

    def _succeed(self, name: str, state: Json, state_input: Any) -> None:
        self._end(name, self._evaluate(state.get("Output", state_input), {"input": state_input}))

    def _fail(self, name: str, state: Json, state_input: Any) -> None:
        self._end(name, Failure(state["Error"], str(self._evaluate(state.get("Cause", ""), {"input": state_input}))))

    def _parallel(self, name: str, state: Json, state_input: Any) -> None:
        results: list[Any] = [None] * len(state["Branches"])
        left = set(range(len(results)))
        branches: list[StateRun] = []

        def ended(index: int) -> Callable[[str, Any], None]:
            def branch_ended(_: str, result: Any) -> None:
                if not left:
                    return
                if isinstance(result, Failure):
                    left.clear()
                    for branch in branches:
                        branch.is_over = True
                    self._failed(name, state, result)
                    return
                results[index] = result
                left.discard(index)
                if not left:
                    self._follow_transition(name, state, state_input, results)

            return branch_ended

        for index, definition in enumerate(state["Branches"]):
            branches.append(StateRun(self.engine, self.execution, definition, self.variables.new_child(), ended(index)))
        for branch, definition in zip(branches, state["Branches"], strict=True):
            branch.enter(definition["StartAt"], state_input)

    def _task(self, name: str, state: Json, state_input: Any, retries: Counter[int] | None = None) -> None:
        """Call the function once. The first of these counts: its result or failure, the answer to its token, or the
        timeout.

        Args:
            name: The state.
            state: Its definition.
            state_input: Its input.
            retries: Retries of this entry so far, by the index of their retrier.
        """
        is_open = True
        token = ""

        def complete(result: Any) -> None:
            nonlocal is_open
            if not is_open or self.is_over or self.execution.status is not ExecutionState.RUNNING:
                return
            is_open = False
            self.engine.forget(token)
            if isinstance(result, Failure):
                self._task_failed(name, state, state_input, result, retries or Counter())
                return
            try:
                self._follow_transition(name, state, state_input, result)
            except QueryError as error:
                self._failed(name, state, Failure("States.QueryEvaluationError", str(error)))

        def answered(result: Any) -> None:
            if isinstance(result, Failure) or not waits:
                complete(result if isinstance(result, Failure) else {"Payload": result, "StatusCode": 200})

        waits = state["Resource"] == _WAITS
        if waits:
            token = self.engine.new_token(complete)
        arguments = self._evaluate(state["Arguments"], {"input": state_input, "context": self._context(token)})
        self.engine.loop.after(state["TimeoutSeconds"], lambda: complete(Failure("States.Timeout")))
        self.engine.invoke(name, state["Arguments"]["FunctionName"], arguments["Payload"], answered)

    # ------------------------------------------------------------ what comes next

    def _task_failed(self, name: str, state: Json, state_input: Any, failure: Failure, retries: Counter[int]) -> None:
        """Repeat the task, unless the first retrier that matches the failure has no attempt left."""
        rules = state.get("Retry", ())
        index = next((index for index, rule in enumerate(rules) if _matches(failure, rule)), None)
        if index is None or retries[index] >= rules[index]["MaxAttempts"]:
            self._failed(name, state, failure)
            return
        rule = rules[index]
        most = min(rule["IntervalSeconds"] * rule["BackoffRate"] ** min(retries[index], 60), rule["MaxDelaySeconds"])
        pause = self.engine.rng.uniform(0, most)  # JitterStrategy FULL
        self.engine.loop.after(pause, lambda: self._retry(name, state, state_input, retries + Counter({index: 1})))

    def _retry(self, name: str, state: Json, state_input: Any, retries: Counter[int]) -> None:
        if not self.is_over and self.execution.status is ExecutionState.RUNNING:
            self._task(name, state, state_input, retries)

    def _failed(self, name: str, state: Json, failure: Failure) -> None:
        catcher = next((rule for rule in state.get("Catch", ()) if _matches(failure, rule)), None)
        if catcher is None:
            self._end(name, failure)
            return
        variables = {"errorOutput": {"Error": failure.error, "Cause": failure.cause}}
        self._follow_transition(name, catcher, variables["errorOutput"], variables["errorOutput"], variables)

    def _follow_transition(
        self, name: str, rule: Json, state_input: Any, result: Any, extra: Json | None = None
    ) -> None:
        document = {"input": state_input, "result": result, **(extra or {})}
        output = self._evaluate(rule["Output"], document) if "Output" in rule else result
        assigned = {key: self._evaluate(value, document) for key, value in rule.get("Assign", {}).items()}
        self.variables.update(assigned)
        self.engine.transition_counts[f"{self.execution.machine}: {name} -> {rule.get('Next', 'end')}"] += 1
        if rule.get("End"):
            self._end(name, output)
        else:
            self.enter(rule["Next"], output)

    def _end(self, name: str, result: Any) -> None:
        if not self.is_over and self.execution.status is ExecutionState.RUNNING:
            self.is_over = True
            self.ended(name, result)

    def _evaluate(self, template: Any, known: Json) -> Any:
        if not isinstance(template, str | dict):
            return template
        return evaluate(template, ChainMap({"states": {"context": self._context(""), **known}}, *self.variables.maps))

    def _context(self, token: str) -> Json:
        return {"Execution": {"Id": f"arn:{self.execution.machine}:{self.execution.name}"}, "Task": {"Token": token}}


def _matches(failure: Failure, rule: Json) -> bool:
    names = rule["ErrorEquals"]
    return failure.error in names or "States.ALL" in names
