"""The ports Workflows and TaskTokens on Step Functions."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Any

from botocore.exceptions import ClientError

from evenkeel.adapters import aws
from evenkeel.ports import (
    EvenkeelError,
    ExecutionState,
    ExecutionTrace,
    NotFound,
    Refused,
    StateVisit,
    Throttled,
    WorkflowName,
)

_ERRORS_BY_CODE: Mapping[str, type[EvenkeelError]] = {
    "StateMachineDoesNotExist": NotFound,
    "StateMachineDeleting": NotFound,
    "ExecutionLimitExceeded": Throttled,
    "InvalidName": Refused,
    "InvalidToken": Refused,
    "InvalidArn": Refused,
    "InvalidExecutionInput": Refused,
    "InvalidOutput": Refused,
}
_TASK_ENDED_CODES = ("TaskTimedOut", "TaskDoesNotExist", "InvalidToken")
"""Codes for a task that was answered, timed out or was stopped, so it needs no answer."""
_LISTED_AT_ONCE = 1000
_LONGEST_ERROR = 256
_LONGEST_CAUSE = 32_000


class StepFunctionsWorkflows:
    """Workflow executions, by name.

    An execution starts through the alias `live`, so it runs the version of the present release. It is found by the ARN
    of its workflow, whatever version it runs.
    """

    def __init__(self, arns: Mapping[WorkflowName, str], client: Any = None) -> None:
        """Connect to Step Functions.

        Args:
            arns: ARN of each workflow's alias, or of the workflow itself.
            client: A client of Step Functions; None makes one.
        """
        self._arns = arns
        self._client = client or aws.client("stepfunctions")

    def start(self, workflow: WorkflowName, name: str, document: Mapping[str, Any]) -> bool:
        with aws.translate_errors(f"start {workflow} {name}", _ERRORS_BY_CODE):
            try:
                self._client.start_execution(
                    stateMachineArn=self._alias_arn(workflow), name=name, input=json.dumps(dict(document))
                )
            except ClientError as error:
                if aws.code_of(error) == "ExecutionAlreadyExists":
                    return False
                raise
        return True

    def trace(self, workflow: WorkflowName, name: str) -> ExecutionTrace | None:
        arn = self._execution_arn(workflow, name)
        with aws.translate_errors(f"read the execution {workflow} {name}", _ERRORS_BY_CODE):
            try:
                execution = self._client.describe_execution(executionArn=arn)
            except ClientError as error:
                if aws.code_of(error) == "ExecutionDoesNotExist":
                    return None
                raise
            machine = self._client.describe_state_machine_for_execution(executionArn=arn)
            history = self._client.get_execution_history(
                executionArn=arn, reverseOrder=True, maxResults=_LISTED_AT_ONCE, includeExecutionData=False
            )
        return ExecutionTrace(
            arn=arn,
            state=_state_of(execution["status"]),
            started_at=execution["startDate"].astimezone(UTC),
            stopped_at=execution["stopDate"].astimezone(UTC) if execution.get("stopDate") else None,
            definition=json.loads(machine["definition"]),
            visits=_visits(history["events"]),
            is_cut=bool(history.get("nextToken")),
        )

    def _execution_arn(self, workflow: WorkflowName, name: str) -> str:
        return f"{self._workflow_arn(workflow).replace(':stateMachine:', ':execution:')}:{name}"

    def state(self, workflow: WorkflowName, name: str) -> ExecutionState:
        arn = self._execution_arn(workflow, name)
        with aws.translate_errors(f"look up {workflow} {name}", _ERRORS_BY_CODE):
            try:
                status = self._client.describe_execution(executionArn=arn)["status"]
            except ClientError as error:
                if aws.code_of(error) == "ExecutionDoesNotExist":
                    return ExecutionState.NONE
                raise
        return _state_of(status)

    def running(self, workflow: WorkflowName) -> frozenset[str]:
        query = {
            "stateMachineArn": self._workflow_arn(workflow),
            "statusFilter": "RUNNING",
            "maxResults": _LISTED_AT_ONCE,
        }
        with aws.translate_errors(f"list running executions of {workflow}", _ERRORS_BY_CODE):
            pages = self._client.get_paginator("list_executions").paginate(**query)
            return frozenset(execution["name"] for page in pages for execution in page["executions"])

    def _workflow_arn(self, workflow: WorkflowName) -> str:
        """Return the ARN of a workflow without its alias: `arn:aws:states:REGION:ACCOUNT:stateMachine:NAME`."""
        return ":".join(self._alias_arn(workflow).split(":")[:7])

    def _alias_arn(self, workflow: WorkflowName) -> str:
        try:
            return self._arns[workflow]
        except KeyError:
            raise Refused(f"this function has no ARN of the workflow {workflow}") from None


def _state_of(status: str) -> ExecutionState:
    match status:
        case "RUNNING" | "PENDING_REDRIVE":
            return ExecutionState.RUNNING
        case "SUCCEEDED":
            return ExecutionState.SUCCEEDED
        case _:
            return ExecutionState.FAILED


def _visits(newest_first: Sequence[Mapping[str, Any]]) -> tuple[StateVisit, ...]:
    """Pair the events that enter and leave a state. Names are unique in a workflow, also in its branches."""
    visits: list[StateVisit] = []
    open_by_name: dict[str, list[int]] = {}
    for event in sorted(newest_first, key=lambda execution_history: execution_history["id"]):
        at = event["timestamp"].astimezone(UTC)
        if entered_details := event.get("stateEnteredEventDetails"):
            open_by_name.setdefault(entered_details["name"], []).append(len(visits))
            visits.append(StateVisit(entered_details["name"], at, None))
        elif (exited_details := event.get("stateExitedEventDetails")) and open_by_name.get(exited_details["name"]):
            index = open_by_name[exited_details["name"]].pop(0)
            visits[index] = visits[index]._replace(exited_at=at)
    return tuple(visits)


class StepFunctionsTaskTokens:
    """Answers to task tokens. A token is a secret, so it appears in no message and no log line."""

    def __init__(self, client: Any = None) -> None:
        self._client = client or aws.client("stepfunctions")

    def succeed(self, token: str, output: Mapping[str, Any]) -> bool:
        return self._answer(
            "answer a task", lambda: self._client.send_task_success(taskToken=token, output=json.dumps(dict(output)))
        )

    def fail(self, token: str, error: str, cause: str) -> bool:
        """End a task with an error. Return False if the task is already over.

        Only the wrapper of a failed function calls it.
        """
        message = aws.escape_surrogates(cause)[:_LONGEST_CAUSE]
        return self._answer(
            "fail a task",
            lambda: self._client.send_task_failure(taskToken=token, error=error[:_LONGEST_ERROR], cause=message),
        )

    def _answer(self, attempt: str, call: Callable[[], Any]) -> bool:
        with aws.translate_errors(attempt, _ERRORS_BY_CODE):
            try:
                call()
            except ClientError as error:
                if aws.code_of(error) in _TASK_ENDED_CODES:
                    return False
                raise
        return True
