"""The workflow execution of an incident for the API: its states, the current one, and a link to the AWS console."""

from typing import Any

from evenkeel.domain.values import rfc3339
from evenkeel.domain.workflow_graph import Visit, graph_of
from evenkeel.ports import ExecutionState, WorkflowName
from evenkeel.services.context import Context
from evenkeel.services.storage import incident_store

Json = dict[str, Any]

_CONSOLES = {"aws-cn": "console.amazonaws.cn", "aws-us-gov": "console.amazonaws-us-gov.com"}
"""Hosts of the AWS console in the partitions other than `aws`."""


def show_execution(incident_id: str, context: Context) -> Json:
    """Return the execution of the last run of an incident. Null: it did not start yet, or Step Functions dropped it.

    Step Functions keeps an ended execution for 90 days.

    Raises:
        NotFound: there is no such incident.
    """
    incident, _ = incident_store.load_incident(context.ledger, incident_id)
    name = incident.execution_name
    trace = context.workflows.trace(WorkflowName.RECOVER_NODE, name)
    head: Json = {"incidentId": incident_id, "run": incident.run, "name": name}
    if trace is None:
        return head | {"execution": None}
    visits = [
        Visit(state=state_visit.state, entered_at=state_visit.entered_at, exited_at=state_visit.exited_at)
        for state_visit in trace.visits
    ]
    states = graph_of(trace.definition, visits, is_running=trace.state is ExecutionState.RUNNING)
    return head | {
        "execution": {
            "arn": trace.arn,
            "state": trace.state,
            "startedAt": rfc3339(trace.started_at),
            "stoppedAt": rfc3339(trace.stopped_at) if trace.stopped_at else None,
            "link": _console_link(trace.arn),
            "isCut": trace.is_cut,
            "states": [state.to_json() for state in states],
        }
    }


def _console_link(arn: str) -> str:
    """Return the address of an execution in the AWS console."""
    _, partition, _, region, *_ = arn.split(":")
    host = _CONSOLES.get(partition, "console.aws.amazon.com")
    return f"https://{region}.{host}/states/home?region={region}#/v2/executions/details/{arn}"
