"""Checks of the state machines beyond the linters."""

import builtins
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonata import Jsonata

from evenkeel import ports
from tests.template.documents import (
    WORKFLOWS,
    Json,
    machines,
    resources,
    states,
    strings,
    template,
    transitions,
    workflow,
    workflow_text,
)

DEFINITIONS = {name: workflow(name) for name in WORKFLOWS}


def params(kind: str = "") -> list[Any]:
    return [
        pytest.param(name, state_name, state, id=f"{name}.{state_name}")
        for name, definition in DEFINITIONS.items()
        for state_name, state in states(definition)
        if not kind or state["Type"] == kind
    ]


EVERY_STATE = params()
EVERY_TASK = params("Task")
EVERY_MACHINE = [
    pytest.param(machine, id=f"{name}{where}")
    for name, definition in DEFINITIONS.items()
    for where, machine in machines(definition)
]

OF_LAMBDA = {
    "Lambda.ClientExecutionTimeoutException",
    "Lambda.ServiceException",
    "Lambda.AWSLambdaException",
    "Lambda.SdkClientException",
    # A snapshot of a function with SnapStart is not ready, or could not be restored.
    "Lambda.SnapStartException",
    "Lambda.SnapStartNotReadyException",
    "Lambda.SnapStartTimeoutException",
    "Lambda.TooManyRequestsException",
    # An environment that died, ran out of memory or timed out: every task is idempotent, so it is retried.
    "Lambda.Unknown",
    "Runtime.ExitError",
    "Sandbox.Timedout",
}
OF_STEP_FUNCTIONS = {"States.ALL", "States.Timeout"}
A_FUNCTION = "arn:aws:states:::lambda:invoke"
A_WAIT = "arn:aws:states:::lambda:invoke.waitForTaskToken"
EXPRESSION = re.compile(r"\{%(.*)%\}", re.DOTALL)
VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)\b(?!\s*\()")


def expressions(node: Any) -> Iterator[str]:
    for _, text in strings(node):
        if match := EXPRESSION.fullmatch(text):
            yield match[1].strip()


@pytest.mark.parametrize("name", WORKFLOWS)
def test_state_machine_has_a_comment_and_a_timeout(name: str) -> None:
    definition = DEFINITIONS[name]
    assert definition["QueryLanguage"] == "JSONata"
    assert definition["Comment"]
    assert 0 < definition["TimeoutSeconds"] <= 31_536_000, (
        "set a TimeoutSeconds of at most a year, the limit of Step Functions"
    )
    longest = max(state.get("TimeoutSeconds", 0) for _, state in states(definition))
    assert longest < definition["TimeoutSeconds"]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_state_names_are_unique_in_a_definition(name: str) -> None:
    names = [state_name for state_name, _ in states(DEFINITIONS[name])]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("machine", EVERY_MACHINE)
def test_every_transition_target_exists_and_every_state_is_reachable(machine: Json) -> None:
    arrows = transitions(machine)
    assert {target for _, target in arrows} <= set(machine["States"])
    reached, front = set(), {machine["StartAt"]}
    while front:
        reached |= front
        front = {target for source, target in arrows if source in reached} - reached
    assert reached == set(machine["States"])


@pytest.mark.parametrize("machine", EVERY_MACHINE)
def test_every_state_can_reach_an_end(machine: Json) -> None:
    ends = {n for n, s in machine["States"].items() if s.get("End") or s["Type"] in ("Succeed", "Fail")}
    arrows = transitions(machine)
    while more := {source for source, target in arrows if target in ends} - ends:
        ends |= more
    assert ends == set(machine["States"]), "lead each state to an end: add a Next or an End"


@pytest.mark.parametrize(("name", "state_name", "state"), EVERY_STATE)
def test_every_state_has_a_verb_name_and_comment(name: str, state_name: str, state: Json) -> None:
    assert re.fullmatch(r"[A-Z][a-z]+([A-Z][a-z]+)*", state_name)
    assert state.get("Comment"), "say in Comment why the state exists"
    if state["Type"] == "Choice":
        assert "Default" in state


@pytest.mark.parametrize(("name", "state_name", "state"), EVERY_STATE)
def test_every_expression_parses_as_jsonata(name: str, state_name: str, state: Json) -> None:
    for path, text in strings(state):
        if "{%" in text or "%}" in text:
            match = EXPRESSION.fullmatch(text)
            assert match, f"{path}: write the whole string as one JSONata expression"
            Jsonata.jsonata(match[1].strip())
    assert not any(key.endswith((".$", "Path")) for key in keys(state)), "write JSONata: these fields are JSONPath"


def keys(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield key
            yield from keys(value)
    elif isinstance(node, list):
        for value in node:
            yield from keys(value)


def assigned_variables(machine: Json) -> set[str]:
    """Return the variables that the states of one machine assign, without those of its branches."""
    names: set[str] = set()
    for state in machine["States"].values():
        for holder in (state, *state.get("Choices", ()), *state.get("Catch", ())):
            names |= set(holder.get("Assign", {}))
    return names


@pytest.mark.parametrize("name", WORKFLOWS)
def test_variables_are_assigned_within_their_own_scope(name: str) -> None:
    definition = DEFINITIONS[name]
    outer = assigned_variables(definition)
    for where, machine in machines(definition):
        own = assigned_variables(machine)
        assert where == "" or not own & outer, "AWS refuses a branch that assigns a variable of the state around it"
        own_states = {n: {k: v for k, v in s.items() if k != "Branches"} for n, s in machine["States"].items()}
        used = {variable for expression in expressions(own_states) for variable in VARIABLE.findall(expression)}
        assert used - {"states"} <= own | outer


@pytest.mark.parametrize("name", WORKFLOWS)
def test_first_state_refuses_an_unknown_input(name: str) -> None:
    definition = DEFINITIONS[name]
    first = definition["States"][definition["StartAt"]]
    assert first["Type"] == "Choice"
    assert "schemaVersion" in first["Choices"][0]["Condition"]
    assert definition["States"][first["Default"]]["Error"] == "UNSUPPORTED_INPUT"


@pytest.mark.parametrize(("name", "state_name", "state"), EVERY_TASK)
def test_task_calls_a_substituted_function_with_a_literal_timeout(name: str, state_name: str, state: Json) -> None:
    assert state["Resource"] in (A_FUNCTION, A_WAIT)
    assert re.fullmatch(r"\$\{[A-Z][A-Za-z]+Arn\}", state["Arguments"]["FunctionName"])
    payload = state["Arguments"]["Payload"]
    assert payload["schemaVersion"] == 1
    assert payload["executionArn"] == "{% $states.context.Execution.Id %}"
    assert ("token" in payload) == (state["Resource"] == A_WAIT)
    assert isinstance(state["TimeoutSeconds"], int)
    assert state["TimeoutSeconds"] > timeout_of(state["Arguments"]["FunctionName"]), (
        "give the state more time than its function has"
    )


def timeout_of(placeholder: str) -> int:
    logical = placeholder.removeprefix("${").removesuffix("Arn}")
    function = resources("AWS::Serverless::Function")[logical]
    default: int = template()["Globals"]["Function"]["Timeout"]
    own: int = function.get("Timeout", default)
    return own


@pytest.mark.parametrize(("name", "state_name", "state"), EVERY_TASK)
def test_task_retries_transient_errors(name: str, state_name: str, state: Json) -> None:
    retrier, _ = state["Retry"]
    expected = {"TransientError", *OF_LAMBDA} | (set() if state["Resource"] == A_WAIT else {"States.Timeout"})
    assert set(retrier["ErrorEquals"]) == expected
    assert retrier["MaxAttempts"] > 1
    assert retrier["MaxDelaySeconds"] <= 60
    assert retrier["JitterStrategy"] == "FULL"


@pytest.mark.parametrize(("name", "state_name", "state"), EVERY_TASK)
def test_task_waits_a_day_for_usable_policy(name: str, state_name: str, state: Json) -> None:
    _, retrier = state["Retry"]
    assert retrier["ErrorEquals"] == ["NoPolicyInForce", *(["PageNotSent"] if state_name == "SettleIncident" else [])]
    mean_delay = retrier["MaxDelaySeconds"] / 2  # with JitterStrategy FULL
    assert retrier["MaxAttempts"] * mean_delay >= 24 * 3600
    assert retrier["MaxDelaySeconds"] <= 300, "continue within five minutes after a person applies a policy"
    assert retrier["JitterStrategy"] == "FULL"


@pytest.mark.parametrize(("name", "state_name", "state"), EVERY_TASK)
def test_task_catches_and_records_every_error_it_does_not_retry(name: str, state_name: str, state: Json) -> None:
    (catcher,) = state["Catch"]
    assert catcher["ErrorEquals"] == ["States.ALL"]
    is_recorded = catcher.get("Assign", {}).get("failure") or catcher.get("Output", {}).get("outcome") == "FAILED"
    assert is_recorded, "assign the caught error to `failure`, or set the outcome FAILED"


def test_every_parallel_catches_the_errors_of_its_branches() -> None:
    for definition in DEFINITIONS.values():
        for state_name, state in states(definition):
            if state["Type"] in ("Parallel", "Map"):
                assert state["Catch"][-1]["ErrorEquals"] == ["States.ALL"], state_name
                assert state["Catch"][-1]["Assign"]["failure"]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_execution_with_a_caught_failure_ends_as_failed(name: str) -> None:
    definition = DEFINITIONS[name]
    verdict = definition["States"]["HowDidItEnd"]
    first = verdict["Choices"][0]
    assert "$failure != null" in first["Condition"]
    assert definition["States"][first["Next"]]["Type"] == "Fail"
    assert definition["States"][verdict["Default"]]["Type"] == "Fail"
    before = {source for source, target in transitions(definition) if target == "HowDidItEnd"}
    (settling,) = before
    caught = definition["States"][settling]["Catch"][0]["Next"]
    assert definition["States"][caught]["Type"] == "Fail"


def test_every_retried_or_caught_error_name_exists() -> None:
    classes = {name for name in dir(ports) if isinstance(getattr(ports, name), type)} | set(dir(builtins))
    for definition in DEFINITIONS.values():
        for _, state in states(definition):
            for rule in (*state.get("Retry", ()), *state.get("Catch", ())):
                known = OF_LAMBDA | OF_STEP_FUNCTIONS
                assert all(error in known or error in classes for error in rule["ErrorEquals"]), (
                    "correct the error name: no error class and no AWS error has it"
                )


@pytest.mark.parametrize("name", WORKFLOWS)
def test_each_fail_state_has_its_own_error_name(name: str) -> None:
    errors = [state["Error"] for _, state in states(DEFINITIONS[name]) if state["Type"] == "Fail"]
    assert len(set(errors)) == len(errors)
    assert all(re.fullmatch(r"[A-Z]+(_[A-Z]+)*", error) for error in errors)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_definition_has_no_arn_id_clock_or_random_number(name: str) -> None:
    text = workflow_text(name)
    assert set(re.findall(r"arn:[^\"]*", text)) <= {
        arn.replace("arn:aws:", "arn:${Partition}:") for arn in (A_FUNCTION, A_WAIT)
    }
    assert not re.search(r"\$(now|millis|uuid|random|hash)\(", text)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_substitutions_match_the_placeholders(name: str) -> None:
    logical = "".join(word.capitalize() for word in name.split("_")) + "Machine"
    machine = resources("AWS::Serverless::StateMachine")[logical]
    placeholders = set(re.findall(r"\$\{(\w+)\}", workflow_text(name)))
    substitutions = dict(machine["DefinitionSubstitutions"])
    assert set(substitutions) == placeholders, (
        "name the same placeholders in the workflow and in its DefinitionSubstitutions"
    )
    assert substitutions.pop("Partition") == {"Ref": "AWS::Partition"}
    for placeholder, value in substitutions.items():
        function, _, attribute = value["Ref"].partition(".")
        assert (f"{function}Arn", attribute) == (placeholder, "Version")


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_loop_has_a_limit(name: str) -> None:
    """Every loop contains a Choice that counts: without those Choices the graph has no loop."""
    for _, machine in machines(DEFINITIONS[name]):
        counted = {n for n, s in machine["States"].items() if any(re.search(r"\$\w+ < ", e) for e in expressions(s))}
        arrows = {(a, b) for a, b in transitions(machine) if a not in counted}
        left = set(machine["States"])
        while free := {n for n in left if not any(a in left for a, b in arrows if b == n)}:
            left -= free
        assert left == set()
