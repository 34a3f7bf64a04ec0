"""The part of Step Functions that services use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenkeel.ports import ExecutionState, ExecutionTrace, WorkflowName


@dataclass
class RecordingWorkflows:
    """Executions by machine and name. A name is never reused; AWS allows that after 90 days."""

    executions: dict[tuple[WorkflowName, str], dict[str, Any]] = field(default_factory=dict)
    """The input of each execution."""
    states: dict[tuple[WorkflowName, str], ExecutionState] = field(default_factory=dict)
    traces: dict[tuple[WorkflowName, str], ExecutionTrace] = field(default_factory=dict)
    """The states of an execution that a test sets."""

    def start(self, machine: WorkflowName, name: str, document: Mapping[str, Any]) -> bool:
        if (machine, name) in self.executions:
            return False
        self.executions[machine, name] = dict(document)
        self.states[machine, name] = ExecutionState.RUNNING
        return True

    def state(self, machine: WorkflowName, name: str) -> ExecutionState:
        return self.states.get((machine, name), ExecutionState.NONE)

    def trace(self, machine: WorkflowName, name: str) -> ExecutionTrace | None:
        return self.traces.get((machine, name))

    def running(self, machine: WorkflowName) -> frozenset[str]:
        under_way = (execution_arn for execution_arn, state in self.states.items() if state is ExecutionState.RUNNING)
        return frozenset(name for kind, name in under_way if kind is machine)

    # ------------------------------------------------------------ for tests

    def finish(self, machine: WorkflowName, name: str, state: ExecutionState = ExecutionState.SUCCEEDED) -> None:
        """End an execution."""
        self.states[machine, name] = state

    def names(self, machine: WorkflowName) -> list[str]:
        """Names of one machine's executions, in the order of their start."""
        return [name for kind, name in self.executions if kind is machine]


@dataclass
class RecordingTaskTokens:
    """Task tokens. Each accepts one answer; a token in `over` accepts none (timed out or stopped)."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Error name and cause of each token that was failed."""

    def succeed(self, token: str, output: Mapping[str, Any]) -> bool:
        if token in self.over or token in self.answers or token in self.failures:
            return False
        self.answers[token] = dict(output)
        return True

    def fail(self, token: str, error: str, cause: str) -> bool:
        if token in self.over or token in self.answers or token in self.failures:
            return False
        self.failures[token] = (error, cause)
        return True
