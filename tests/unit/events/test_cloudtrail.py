"""CloudTrail records of calls that change nodes."""

from typing import Any

import pytest

from evenkeel.domain.shadow.shadow_cases import Actor, NodeEventKind
from evenkeel.events.cloudtrail import is_cloudtrail_record, parse
from evenkeel.events.outcomes import Ignored, Malformed, Unknown

NODE, OTHER = "i-0a1c4f7b92d36e581", "i-0b7e25d9c813fa460"


def a_record(source: str, name: str, **changes: Any) -> dict[str, Any]:
    return {
        "eventVersion": "1.11",
        "userIdentity": {"type": "IAMUser", "arn": "arn:aws:iam::111122223333:user/operator"},
        "eventTime": "2026-11-03T11:02:33Z",
        "eventSource": f"{source}.amazonaws.com",
        "eventName": name,
        "requestParameters": {},
        "responseElements": None,
        "eventID": "7b9d2c41-3e5f-4a60-9c8b-2d1e0f3a4b5c",
        **changes,
    }


def a_replacement(**changes: Any) -> dict[str, Any]:
    parameters = {"clusterName": "research-train", "nodeIds": [NODE, OTHER]}
    return a_record("sagemaker", "BatchReplaceClusterNodes", **{"requestParameters": parameters, **changes})


def targets_of(document: dict[str, Any]) -> list[tuple[NodeEventKind, str, str]]:
    actions = parse(document)
    assert isinstance(actions, tuple), actions
    return [(node_action.event.kind, node_action.instance_id, node_action.logical_id) for node_action in actions]


IN_HYPERPOD = {"nodeIds": [NODE]}
IN_EC2 = {"instancesSet": {"items": [{"instanceId": NODE}]}}
IN_GROUP = {"instanceId": NODE, "shouldDecrementDesiredCapacity": False}


@pytest.mark.parametrize(
    ("source", "call", "parameters", "kind"),
    [
        ("sagemaker", "BatchRebootClusterNodes", IN_HYPERPOD, NodeEventKind.REBOOTED),
        ("sagemaker", "BatchDeleteClusterNodes", IN_HYPERPOD, NodeEventKind.REMOVED),
        ("ec2", "TerminateInstances", IN_EC2, NodeEventKind.REMOVED),
        ("ec2", "RebootInstances", IN_EC2, NodeEventKind.REBOOTED),
        ("autoscaling", "TerminateInstanceInAutoScalingGroup", IN_GROUP, NodeEventKind.REMOVED),
    ],
)
def test_cloudtrail_call_gives_an_action_on_its_node(
    source: str, call: str, parameters: dict[str, Any], kind: NodeEventKind
) -> None:
    assert targets_of(a_record(source, call, requestParameters=parameters)) == [(kind, NODE, "")]


def test_cloudtrail_batch_counts_only_its_accepted_nodes() -> None:
    answer = {"successful": [NODE], "failed": [{"nodeId": OTHER, "errorCode": "InvalidInstanceStatus"}]}

    assert targets_of(a_replacement(responseElements=answer)) == [(NodeEventKind.REPLACED, NODE, "")]


def test_cloudtrail_request_counts_even_if_no_answer_was_recorded() -> None:
    by_slot = a_replacement(requestParameters={"nodeLogicalIds": ["slot-1"]})

    assert [node for _, node, _ in targets_of(a_replacement())] == [NODE, OTHER]
    assert targets_of(by_slot) == [(NodeEventKind.REPLACED, "", "slot-1")]


def a_session(role: str) -> dict[str, Any]:
    return {"type": "AssumedRole", "sessionContext": {"sessionIssuer": {"type": "Role", "userName": role}}}


@pytest.mark.parametrize(
    ("identity", "actor"),
    [
        ({"type": "IAMUser"}, Actor.PERSON),
        ({"type": "Root"}, Actor.PERSON),
        (a_session("AWSReservedSSO_Operators_0123456789abcdef"), Actor.PERSON),
        (a_session("deploy"), Actor.ROLE),
        (a_session("KarpenterController"), Actor.KARPENTER),
        ({"type": "AWSService", "invokedBy": "autoscaling.amazonaws.com"}, Actor.AUTO_SCALING),
        ({"type": "AWSService", "invokedBy": "sagemaker.amazonaws.com"}, Actor.HYPERPOD),
        ({"type": "AWSService", "invokedBy": "new.amazonaws.com"}, Actor.UNKNOWN),
        (None, Actor.UNKNOWN),
    ],
)
def test_caller_of_a_cloudtrail_call_gives_the_actor(identity: dict[str, Any] | None, actor: Actor) -> None:
    actions = parse(a_replacement(userIdentity=identity))

    assert isinstance(actions, tuple)
    assert actions[0].event.actor is actor


def test_failed_call_in_cloudtrail_gives_no_action() -> None:
    assert isinstance(parse(a_replacement(errorCode="AccessDenied")), Ignored)


def test_cloudtrail_call_about_whole_groups_names_no_node() -> None:
    assert isinstance(parse(a_record("sagemaker", "UpdateClusterSoftware")), Ignored)


def test_cloudtrail_record_of_another_call_is_unknown() -> None:
    assert is_cloudtrail_record(a_record("ec2", "DescribeInstances"))
    assert isinstance(parse(a_record("ec2", "DescribeInstances")), Unknown)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"eventTime": "yesterday"}, "eventTime"),
        ({"eventID": 7}, "eventID"),
        ({"requestParameters": "none"}, "requestParameters"),
        ({"requestParameters": {"nodeIds": ["i-short"]}}, "requestParameters"),
        ({"requestParameters": None}, "requestParameters"),
        ({"userIdentity": {"type": "IAMUser", "arn": "a\u202eb"}}, "userIdentity.arn"),
    ],
)
def test_malformed_cloudtrail_record_names_its_field(changes: dict[str, Any], field: str) -> None:
    malformed = parse(a_replacement(**changes))

    assert isinstance(malformed, Malformed)
    assert malformed.reason.startswith(f"{field}: ")
