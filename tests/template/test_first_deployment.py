"""A first deployment works in a new account, in every partition and with the longest names, or fails with a reason."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.template.documents import ROOT, WORKFLOWS, Json, strings, template, translated, workflow_text

PARAMETERS = template()["Parameters"]
RULES = template()["Rules"]
LONGEST_NAMES = {
    # https://docs.aws.amazon.com/lambda/latest/api/API_CreateFunction.html
    ("AWS::Lambda::Function", "FunctionName"): 64,
    # https://docs.aws.amazon.com/scheduler/latest/APIReference/API_CreateSchedule.html
    ("AWS::Scheduler::Schedule", "Name"): 64,
    # https://docs.aws.amazon.com/step-functions/latest/apireference/API_CreateStateMachine.html
    ("AWS::StepFunctions::StateMachine", "StateMachineName"): 80,
    # https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_CreateLogGroup.html
    ("AWS::Logs::LogGroup", "LogGroupName"): 512,
    # https://docs.aws.amazon.com/eventbridge/latest/APIReference/API_CreateEventBus.html
    ("AWS::Events::EventBus", "Name"): 256,
    # https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutDashboard.html; a region has 14 characters
    ("AWS::CloudWatch::Dashboard", "DashboardName"): 255,
    # API Gateway documents no limit; CloudWatch limits the dimension ApiName:
    # https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_Dimension.html
    ("AWS::ApiGateway::RestApi", "Name"): 1024,
}
"""Every property with the stack's name, and its limit. CloudFormation makes all other names."""
MAX_STACK_NAME = 48
A_FLEET = {"KubernetesClusters": "research-eks"}
A_VPC = {"SubnetIds": "subnet-1,subnet-2", "SecurityGroupIds": "sg-1"}


def values(parameters: Mapping[str, str], empty: list[str]) -> dict[str, str | list[str]]:
    """Return the value of each parameter; `empty` is the value of a list without members."""
    given = {name: str(parameters.get(name, spec["Default"])) for name, spec in PARAMETERS.items()}
    return {
        name: (value.split(",") if value else empty) if PARAMETERS[name]["Type"] == "CommaDelimitedList" else value
        for name, value in given.items()
    }


def evaluated(node: Any, known: Mapping[str, str | list[str]]) -> Any:
    """Evaluate the functions that `Rules` may use."""
    match node:
        case {"Ref": name}:
            return known[name]
        case {"Fn::Not": [inner]}:
            return not evaluated(inner, known)
        case {"Fn::Equals": [left, right]}:
            return evaluated(left, known) == evaluated(right, known)
        case {"Fn::And": parts}:
            return all(evaluated(part, known) for part in parts)
        case {"Fn::Contains": [among, element]}:
            return evaluated(element, known) in evaluated(among, known)
        case {"Fn::EachMemberEquals": [among, element]}:
            return all(item == evaluated(element, known) for item in evaluated(among, known))
        case str():
            return node
    raise AssertionError(f"no function of a rule: {node}")


def refusals(**parameters: str) -> list[str]:
    """Return the messages with which CloudFormation refuses these parameters. AWS does not document whether an empty
    list in a rule has one empty member or none, so both must give the same result.
    """
    refused, none = (_refusals(values(parameters, empty)) for empty in ([""], []))
    assert refused == none
    return refused


def _refusals(known: Mapping[str, str | list[str]]) -> list[str]:
    return [
        assertion["AssertDescription"]
        for rule in RULES.values()
        if evaluated(rule.get("RuleCondition", {"Fn::Not": [{"Fn::Equals": ["", "x"]}]}), known)
        for assertion in rule["Assertions"]
        if not evaluated(assertion["Assert"], known)
    ]


@pytest.mark.parametrize(
    "parameters",
    [A_FLEET, {**A_FLEET, **A_VPC}, {**A_FLEET, "CheckpointBuckets": "arn:b", "CheckpointEncryption": "arn:k"}],
    ids=["smallest", "private", "encrypted"],
)
def test_template_accepts_valid_parameters(parameters: Mapping[str, str]) -> None:
    assert refusals(**parameters) == []


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ({}, "KubernetesClusters"),
        ({"KubernetesClusters": ""}, "KubernetesClusters"),
        ({"HyperPodClusterArn": "arn:x"}, "KubernetesClusters"),
        ({"KubernetesClusters": "research-eks,none"}, "KubernetesClusters"),
        ({**A_FLEET, "SubnetIds": "subnet-1"}, "SubnetIds"),
        ({**A_FLEET, "SecurityGroupIds": "sg-1"}, "SecurityGroupIds"),
        ({**A_FLEET, "CheckpointEncryption": "arn:k"}, "CheckpointEncryption"),
        ({**A_FLEET, "SageMakerEndpoint": "http://x"}, "SageMakerEndpoint"),
        ({**A_FLEET, "EksEndpoint": "http://x"}, "EksEndpoint"),
        ({**A_FLEET, "AutoScalingEndpoint": "http://x"}, "AutoScalingEndpoint"),
        ({**A_FLEET, "Policy": "local"}, "Policy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "nothing",
)
def test_template_refuses_invalid_parameters_by_name(parameters: Mapping[str, str], names: str) -> None:
    (text,) = refusals(**parameters)

    assert text.startswith(names)
    assert re.search(r"(Set|Name|Leave) ", text), "say what to do, with a sentence that begins with Set, Name or Leave"


def test_local_data_centre_may_use_emulators() -> None:
    endpoints = {name: "http://127.0.0.1" for name in PARAMETERS if name.endswith("Endpoint")}

    assert refusals(**A_FLEET, **endpoints, LocalEngine="true", Policy="local") == []


# ---------------------------------------------------------------- names


def names_with_stack_name() -> list[tuple[str, str, str]]:
    """Return (type, property, name) of each resource whose name contains the stack's name."""
    names = []
    for resource in translated()["Resources"].values():
        for field, value in resource.get("Properties", {}).items():
            text = value.get("Fn::Sub", value.get("Ref", "")) if isinstance(value, dict) else ""
            if field.endswith("Name") and isinstance(text, str) and "AWS::StackName" in text:
                names.append((resource["Type"], field, text.removeprefix("AWS::StackName")))
    return names


def test_longest_stack_name_fits_every_name() -> None:
    names = names_with_stack_name()
    room = {
        (kind, text): LONGEST_NAMES[kind, field] - len(text.replace("${AWS::StackName}", ""))
        for kind, field, text in names
    }

    assert {(kind, field) for kind, field, _ in names} == set(LONGEST_NAMES)
    assert min(room.values()) == MAX_STACK_NAME, sorted(room.items(), key=lambda item: item[1])[:3]


def test_deployment_page_states_the_longest_stack_name() -> None:
    assert f"at most {MAX_STACK_NAME} characters" in (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "fits"), [("a", True), ("a" * 32, True), ("a-" * 40 + "a", False), ("a" * 64, False), ("-a", False)]
)
def test_fleet_name_fits_a_kubernetes_label(name: str, fits: bool) -> None:
    spec = PARAMETERS["FleetName"]

    assert (bool(re.fullmatch(spec["AllowedPattern"], name)) and len(name) <= spec["MaxLength"]) is fits


# ---------------------------------------------------------------- partitions


def fixed_partitions(document: Json) -> list[str]:
    """Return each ARN and domain that is valid in only one partition."""
    return [
        f"{path}: {text}"
        for path, text in strings(document)
        if re.search(r"arn:aws(-[a-z-]+)?:", text) or re.search(r"amazonaws\.com\.cn|https?://\S*amazonaws\.com", text)
    ]


@pytest.mark.parametrize("section", ["Globals", "Resources", "Outputs"])
def test_template_hard_codes_no_aws_partition(section: str) -> None:
    assert fixed_partitions({section: template()[section]}) == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_hard_codes_no_aws_partition(name: str) -> None:
    assert "arn:aws" not in workflow_text(name)


def test_check_reports_a_hard_coded_aws_partition() -> None:
    assert fixed_partitions({"Role": "arn:aws:iam::1:role/x"})
    assert fixed_partitions({"Role": "arn:aws-cn:iam::1:role/x", "Url": "https://sqs.us-west-2.amazonaws.com/x"})
    assert not fixed_partitions({"Principal": "lambda.amazonaws.com", "Arn": "arn:${AWS::Partition}:iam::1:role/x"})


# ---------------------------------------------------------------- a fresh account


def test_default_parameters_need_no_log_role_of_the_account() -> None:
    spec = PARAMETERS["ApiLogRole"]
    conditions = template()["Conditions"]

    assert spec["Default"] == "off"
    assert conditions["WritesApiLogs"] == {"Fn::Not": [{"Fn::Equals": [{"Ref": "ApiLogRole"}, "off"]}]}
    assert conditions["SetsUpApiLogs"] == {"Fn::Equals": [{"Ref": "ApiLogRole"}, "set-up"]}
