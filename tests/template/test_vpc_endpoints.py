"""The endpoints for functions in private subnets follow from the adapters' calls and the roles."""

import json
import re
from typing import Any

import pytest
from pydantic.alias_generators import to_snake
from samtranslator.yaml_helper import yaml_parse

from tests.template.documents import ROOT, Json, resources
from tests.template.test_lint import every_finding
from tools import vpc_endpoints
from tools.vpc_endpoints import ENDPOINTS, POLLED_BY_LAMBDA
from tools.workflow_wiring import functions_with_kubernetes

STACK: Json = json.loads(json.dumps(yaml_parse(vpc_endpoints.STACK.read_text(encoding="utf-8"))))
ENDPOINT_RESOURCES = {
    name: resource["Properties"]
    for name, resource in STACK["Resources"].items()
    if resource["Type"] == "AWS::EC2::VPCEndpoint"
}
SERVICE_OF_CLIENT = {"stepfunctions": "states"}
"""Names of boto3 clients that differ from the prefix of the IAM actions."""

OUTSIDE = {"events"}
"""Services that only functions outside the VPC call, such as `publish_events`."""


def clients() -> set[str]:
    """Return the service of each client that the adapters make and call."""
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "shared" / "evenkeel").rglob("*.py"))
    names = set(re.findall(r"aws\.client\(\s*\"([a-z0-9-]+)\"", text))
    return {SERVICE_OF_CLIENT.get(name, name) for name in names}


def test_every_client_of_the_adapters_has_an_endpoint() -> None:
    assert clients() == {*ENDPOINTS, *OUTSIDE}, "add the service of the client to tools/vpc_endpoints.py"


def test_kubernetes_token_is_signed_without_an_endpoint() -> None:
    text = (ROOT / "shared" / "evenkeel" / "adapters" / "eks.py").read_text(encoding="utf-8")

    assert re.findall(r"client\(\"sts\".*", text) == [
        'client("sts", region_name=self._region).meta.endpoint_url.rstrip("/")'
    ]


def test_exactly_the_functions_in_the_subnets_are_listed() -> None:
    inside = {
        function["CodeUri"].split("/")[1]
        for function in resources("AWS::Serverless::Function").values()
        if "VpcConfig" in function
    }

    assert set(vpc_endpoints.endpoints_by_function()) == inside
    assert inside == {to_snake(name) for name in functions_with_kubernetes()}, (
        "a function has VpcConfig and the managed policy RoleInVpc if and only if its role has FindKubernetes"
    )
    assert all(ENDPOINTS["eks"] in endpoints for endpoints in vpc_endpoints.endpoints_by_function().values())


@pytest.mark.parametrize(
    ("function", "has", "lacks"),
    [
        ("cordon_node", {"dynamodb", "eks"}, {"sagemaker", "sns", "sqs", "s3"}),
        ("repair_node", {"dynamodb", "eks", "sagemaker", "sns", "autoscaling"}, {"sqs", "s3", "states"}),
        ("open_wait", {"lambda", "states"}, {"sqs", "sns"}),
        ("launch_job", {"s3"}, {"sns"}),
        ("settle_attempt", {"sqs"}, {"sns"}),
    ],
)
def test_function_needs_the_endpoints_of_its_role(function: str, has: set[str], lacks: set[str]) -> None:
    needed = {
        service
        for service, endpoint in ENDPOINTS.items()
        if endpoint in vpc_endpoints.endpoints_by_function()[function]
    }

    assert has <= needed
    assert not lacks & needed


def a_role(*statements: Json) -> Json:
    return {"Policies": [{"PolicyDocument": {"Statement": list(statements)}}]}


def test_check_reports_a_new_service_without_an_endpoint() -> None:
    role = a_role({"Sid": "ReadSecrets", "Action": ["secretsmanager:GetSecretValue"]})

    with pytest.raises(KeyError, match="secretsmanager of ReadSecrets has no endpoint"):
        list(vpc_endpoints.services_of(role))


def test_calls_by_lambda_need_no_endpoint() -> None:
    polled = [{"Sid": sid, "Action": ["sqs:ReceiveMessage"]} for sid in POLLED_BY_LAMBDA]
    conditional = {"Fn::If": ["HasHyperPod", {"Sid": "Read", "Action": ["sagemaker:DescribeCluster"]}, None]}

    services = vpc_endpoints.services_of(a_role(*polled, {"Sid": "Log", "Action": ["logs:PutLogEvents"]}, conditional))

    assert list(services) == ["sagemaker"]


# ---------------------------------------------------------------- the stack that makes them


def names_in(partition: str) -> set[str]:
    """Return the service names of the endpoints in a partition, as CloudFormation resolves them."""

    def resolved(value: Any) -> str:
        match value:
            case {"Fn::If": ["IsChina", china, elsewhere]}:
                return resolved(china if partition == "aws-cn" else elsewhere)
            case {"Fn::Sub": text}:
                return str(text).replace("${AWS::Region}", "R")
        raise AssertionError(value)

    return {resolved(endpoint["ServiceName"]) for endpoint in ENDPOINT_RESOURCES.values()}


def test_stack_makes_each_endpoint_that_a_function_needs() -> None:
    names = {endpoint.name for endpoints in vpc_endpoints.endpoints_by_function().values() for endpoint in endpoints}

    assert names_in("aws") == names_in("aws-us-gov") == {f"com.amazonaws.R.{name}" for name in names}


def test_endpoint_names_in_china_have_their_own_prefix() -> None:
    own, common = names_in("aws-cn") - names_in("aws"), names_in("aws-cn") & names_in("aws")

    assert {name.partition(".R.")[0] for name in own} == {"cn.com.amazonaws"}
    assert common == {f"com.amazonaws.R.{name}" for name in ("dynamodb", "s3", "sns")}


@pytest.mark.parametrize("name", sorted(ENDPOINT_RESOURCES))
def test_endpoint_can_be_reached_from_the_subnets(name: str) -> None:
    endpoint = ENDPOINT_RESOURCES[name]
    if endpoint["VpcEndpointType"] == "Gateway":
        assert endpoint["RouteTableIds"] == {"Ref": "RouteTableIds"}
    else:
        assert endpoint["PrivateDnsEnabled"] is True, "enable private DNS: the SDK calls the service by its public name"
        assert endpoint["SubnetIds"] == {"Ref": "SubnetIds"}
        assert endpoint["SecurityGroupIds"] == [{"Ref": "EndpointsSecurityGroup"}]
    condition = STACK["Resources"][name]["Condition"]
    assert STACK["Conditions"][condition] == {"Fn::Equals": [{"Ref": condition.removeprefix("Makes")}, "create"]}


def test_only_the_functions_reach_the_endpoints_and_clusters() -> None:
    of_endpoints = STACK["Resources"]["EndpointsSecurityGroup"]["Properties"]["SecurityGroupIngress"]
    of_clusters = [STACK["Resources"][name]["Properties"] for name in ("ClusterIngress", "SecondClusterIngress")]

    for rule in (*of_endpoints, *of_clusters):
        assert (rule["FromPort"], rule["ToPort"], rule["IpProtocol"]) == (443, 443, "tcp")
        assert rule["SourceSecurityGroupId"] == {"Ref": "FunctionsSecurityGroup"}


def test_endpoint_outputs_match_the_parameters_of_the_stack() -> None:
    parameters = yaml_parse((ROOT / "template.yaml").read_text(encoding="utf-8"))["Parameters"]

    assert set(STACK["Outputs"]) == {"SubnetIds", "SecurityGroupIds"} <= set(parameters)


def test_stack_passes_cfn_lint() -> None:
    assert [sentence for _, sentence in every_finding(STACK)] == []
