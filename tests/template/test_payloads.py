"""The payloads of the workflows, evaluated as Step Functions does and parsed by the services."""

import importlib
import re
from typing import Any, get_type_hints

import pytest
from jsonata import Jsonata
from jsonata.utils import Utils

from evenkeel.domain.health.incidents import IncidentState, PlanOutcome
from evenkeel.domain.jobs.settlement import SettleOutcome
from evenkeel.services.attempts.launch_job import LaunchOutcome
from evenkeel.services.attempts.mark_running import RunningOutcome
from evenkeel.services.rentals.rent_capacity import RentOutcome
from tests.template.documents import ROOT, WORKFLOWS, Json, states, workflow

ENDED = {"outcome": "ENDED", "reason": "Every pod has ended.", "facts": {"state": "SUCCEEDED"}}
BRANCH = {"outcome": "RETURNED", "reason": "It is back."}
VARIABLES: dict[str, Json] = {
    "recover_node": {
        "incidentId": "inc-7qk2",
        "run": 1,
        "plan": {"outcome": "ACT", "reason": "Xid 79", "repairsNode": True, "settleSeconds": 5, "maxRepairs": 3},
        "node": BRANCH,
        "jobs": {"outcome": "JOBS_RESUMED", "reason": "It runs again."},
        "failure": None,
    },
    "run_job": {"jobId": "job-llm", "attempt": 2, "ended": ENDED, "failure": None},
    "burst_capacity": {
        "jobId": "job-llm",
        "rental": 1,
        "currentOffer": 1,
        "why": "job-llm is SUCCEEDED.",
        "failure": None,
    },
}
BROKEN: dict[str, Json] = {
    "recover_node": {"plan": None, "node": None, "jobs": None, "failure": {"Error": "KeyError", "Cause": "a bug"}},
    "run_job": {"ended": None, "failure": {"Error": "KeyError", "Cause": "a bug"}},
    "burst_capacity": {"failure": {"Error": "KeyError", "Cause": "a bug"}},
}
SETTLING = {"recover_node": "SettleIncident", "run_job": "SettleAttempt", "burst_capacity": "SettleRental"}
RENTING_CHOICES = [name for name, state in states(workflow("burst_capacity")) if state["Type"] == "Choice"][1:]
"""All Choice states except the input check."""
CONTEXT = {"Execution": {"Id": "arn:aws:states:us-west-2:000000000000:execution:m:e"}, "Task": {"Token": "t" * 600}}
TASKS = [
    pytest.param(machine, name, state, id=f"{machine}.{name}")
    for machine in WORKFLOWS
    for name, state in states(workflow(machine))
    if state["Type"] == "Task"
]


def evaluated(template: Any, variables: Json) -> Any:
    """Evaluate the expressions of a JSONata template, as Step Functions does."""
    if isinstance(template, dict):
        return {key: evaluated(value, variables) for key, value in template.items()}
    if not isinstance(template, str) or not template.startswith("{%"):
        return template
    bindings = {name: Utils.NULL_VALUE if value is None else value for name, value in variables.items()}
    value = Jsonata.jsonata(template[2:-2].strip()).evaluate(None, bindings | {"states": {"context": CONTEXT}})
    return None if value is Utils.NULL_VALUE else value


def request_of(state: Json) -> Any:
    """Return the request class of the called service."""
    words = re.findall(r"[A-Z][a-z]+", state["Arguments"]["FunctionName"].removesuffix("Arn}"))
    (path,) = (ROOT / "shared" / "evenkeel" / "services").rglob(f"{'_'.join(words).lower()}.py")
    service = importlib.import_module(f"evenkeel.services.{path.parent.name}.{path.stem}")
    return get_type_hints(service.run)["request"]


@pytest.mark.parametrize("is_broken", [False, True], ids=["well", "broken"])
@pytest.mark.parametrize(("machine", "name", "state"), TASKS)
def test_service_reads_every_field_of_the_payload(machine: str, name: str, state: Json, is_broken: bool) -> None:
    variables = VARIABLES[machine] | (BROKEN[machine] if is_broken else {})
    payload = evaluated(state["Arguments"]["Payload"], variables)
    request = request_of(state)

    read = request.model_validate(payload).to_json()

    # The wrapper uses the ARN in its log lines. Every other key must be a field of the request.
    sent = {key: value for key, value in payload.items() if key != "executionArn"}
    assert set(sent) <= set(read), "add the field to the Request of the service, or remove it from the workflow"
    assert {key: read[key] for key in sent} == sent


@pytest.mark.parametrize("machine", WORKFLOWS)
def test_settling_step_receives_the_caught_failure(machine: str) -> None:
    settling = SETTLING[machine]
    state = dict(states(workflow(machine)))[settling]

    payload = evaluated(state["Arguments"]["Payload"], VARIABLES[machine] | BROKEN[machine])

    assert payload["failure"] == {"Error": "KeyError", "Cause": "a bug"}


def outcomes_in(machine: str, choice: str) -> set[str]:
    """Return the outcomes that a Choice names."""
    state = dict(states(workflow(machine)))[choice]
    conditions = " ".join(rule["Condition"] for rule in state["Choices"])
    return set(re.findall(r"'([A-Z][A-Z_]+)'", conditions))


def test_each_settled_incident_state_has_its_own_workflow_end() -> None:
    settled = {state.value for state in IncidentState if state.is_settled}
    # FAILED is also the outcome of a failed branch, which ends like an unknown outcome.
    assert outcomes_in("recover_node", "HowDidItEnd") == settled


def test_choice_states_match_the_outcomes_of_the_services() -> None:
    assert outcomes_in("run_job", "HowDidItEnd") == set(SettleOutcome), (
        "add the outcome to the Choice state of the workflow, or delete it"
    )
    assert outcomes_in("run_job", "HowDidLaunchGo") == set(LaunchOutcome)
    assert outcomes_in("burst_capacity", "WhichStepIsNext") == {"WANTED", "READY", "ENDING", "STALE"}
    named = [outcomes_in("burst_capacity", choice) for choice in RENTING_CHOICES]
    assert set().union(*named) - {"NODES_READY", "OVER", "DEADLINE_PASSED"} == set(RentOutcome) - {"RELEASED"}
    assert outcomes_in("run_job", "IsAttemptCurrent") <= set(RunningOutcome)
    assert outcomes_in("recover_node", "ShouldAct") <= set(PlanOutcome)
