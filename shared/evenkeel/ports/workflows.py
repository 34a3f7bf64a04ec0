"""Workflows of Step Functions, their waits, and requests for scheduling cycles."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class ExecutionState(StrEnum):
    """State of a workflow execution."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    """Failed, timed out or aborted."""
    NONE = "NONE"
    """There is no execution of this name."""


class WorkflowName(StrEnum):
    """The workflows that services start."""

    RECOVER_NODE = "recover_node"
    RUN_JOB = "run_job"
    BURST_CAPACITY = "burst_capacity"


class StateVisit(NamedTuple):
    """An execution entered a state."""

    state: str
    entered_at: datetime
    exited_at: datetime | None
    """None while it is in the state, and if it ended there."""


class ExecutionTrace(NamedTuple):
    """The states that an execution entered so far, and its workflow as it was at the start."""

    arn: str
    state: ExecutionState
    started_at: datetime
    stopped_at: datetime | None
    definition: Mapping[str, Any]
    """In the Amazon States Language."""
    visits: tuple[StateVisit, ...]
    """In the order of entry."""
    is_cut: bool
    """Whether earlier visits are left out."""


class Workflows(Protocol):
    """Step Functions."""

    def start(self, workflow: WorkflowName, name: str, document: Mapping[str, Any]) -> bool:
        """Start an execution. Return False if an execution of this name exists. Idempotent: yes, by name."""
        ...

    def state(self, workflow: WorkflowName, name: str) -> ExecutionState:
        """Return the state of an execution."""
        ...

    def trace(self, workflow: WorkflowName, name: str) -> ExecutionTrace | None:
        """Return the states of an execution, without its data; None if there is no execution of this name."""
        ...

    def running(self, workflow: WorkflowName) -> frozenset[str]:
        """Return the names of running executions, with one call per thousand. Eventually consistent on AWS.

        An execution that is missing here may still run: check with `state`.
        """
        ...


class TaskTokens(Protocol):
    """Task tokens. Only `resolve_wait` answers them."""

    def succeed(self, token: str, output: Mapping[str, Any]) -> bool:
        """Send success. Return False if the task is already over (timed out, answered or unknown)."""
        ...


class WaitAnswerRequests(Protocol):
    """Requests to answer a wait."""

    def request(self, subject: str, name: str, generation: int, answer: Mapping[str, Any]) -> None:
        """Make `resolve_wait` answer a wait. Idempotent: yes, by the row's change from OPEN to ANSWERED."""
        ...


class CycleRequests(Protocol):
    """Requests for scheduling cycles."""

    def request(self, reason: str) -> None:
        """Request a scheduling cycle. Idempotent: yes, an extra cycle does nothing. A schedule covers lost requests."""
        ...
