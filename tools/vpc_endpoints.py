"""Write which VPC endpoints the functions in private subnets need, and a stack that makes these endpoints.

The template decides: a function with `VpcConfig` calls the services that its role names. Some services are called for
the function by AWS itself, outside its VPC.
"""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tools.architecture import template
from tools.generated_tables import with_tables

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "private-clusters.md"
STACK = ROOT / "deploy" / "vpc-endpoints.yaml"
Json = Mapping[str, Any]


class Endpoint(NamedTuple):
    """An endpoint of a VPC.

    Sources: https://docs.aws.amazon.com/vpc/latest/privatelink/aws-services-privatelink-support.html and, for the
    names in China, the list of the AWS CDK (`vpc-endpoint.ts`, `getDefaultEndpointPrefix`).
    """

    name: str
    """The end of the service name: `com.amazonaws.REGION.<name>`."""
    is_gateway: bool = False
    has_own_prefix_in_china: bool = False
    """Whether the name begins with `cn.com.amazonaws` in the regions of China."""

    @property
    def service(self) -> str:
        """Return the service name of the partitions `aws` and `aws-us-gov`."""
        return f"com.amazonaws.REGION.{self.name}"

    @property
    def parameter(self) -> str:
        """Return the parameter of the stack that says whether to make it."""
        return "".join(part.capitalize() for part in self.name.split(".")) + "Endpoint"


ENDPOINTS = {
    "dynamodb": Endpoint("dynamodb", is_gateway=True),
    "s3": Endpoint("s3", is_gateway=True),
    "eks": Endpoint("eks", has_own_prefix_in_china=True),
    "sagemaker": Endpoint("sagemaker.api", has_own_prefix_in_china=True),
    "states": Endpoint("states", has_own_prefix_in_china=True),
    "lambda": Endpoint("lambda", has_own_prefix_in_china=True),
    "sqs": Endpoint("sqs", has_own_prefix_in_china=True),
    "sns": Endpoint("sns"),
    "autoscaling": Endpoint("autoscaling", has_own_prefix_in_china=True),
    "ec2": Endpoint("ec2", has_own_prefix_in_china=True),
    "cloudwatch": Endpoint("monitoring", has_own_prefix_in_china=True),
}
"""By the prefix of the IAM actions."""
CALLED_BY_AWS = {
    "logs": "Lambda writes the log of a function, outside the VPC.",
    "xray": "Lambda sends the traces of a function.",
    "kms": "SNS and S3 use the keys for the caller.",
}
"""Services in the roles that AWS calls for a function, each with its caller."""
POLLED_BY_LAMBDA = ("ReceiveEvents", "ReceiveCycleRequests", "KeepFailedInvocations")
"""Statements with which Lambda polls a queue, or stores a failed invocation, on behalf of the function."""


@functools.cache
def endpoints_by_function() -> dict[str, tuple[Endpoint, ...]]:
    """Return the endpoints that each function in the subnets needs, by function."""
    resources = template()
    calls_by_function = {}
    for name, resource in resources.items():
        if resource["Type"] == "AWS::Serverless::Function" and "VpcConfig" in resource["Properties"]:
            services = set(services_of(resources[f"{name}Role"]["Properties"]))
            called = [endpoint for service, endpoint in ENDPOINTS.items() if service in services]
            calls_by_function[resource["Properties"]["CodeUri"].split("/")[1]] = tuple(called)
    return calls_by_function


def services_of(role: Json) -> Iterator[str]:
    """Yield the prefix of each action that a function calls itself.

    Raises:
        KeyError: a service has neither an endpoint nor a caller.
    """
    for policy in role["Policies"]:
        for written in policy["PolicyDocument"]["Statement"]:
            statement = written["Fn::If"][1] if "Fn::If" in written else written
            if statement["Sid"] in POLLED_BY_LAMBDA:
                continue
            for action in statement["Action"]:
                service = action.partition(":")[0]
                if service in CALLED_BY_AWS:
                    continue
                if service not in ENDPOINTS:
                    raise KeyError(f"{service} of {statement['Sid']} has no endpoint in tools/vpc_endpoints.py")
                yield service


def function_rows() -> Iterator[str]:
    """Yield a row for each function."""
    yield "| function | endpoints |"
    yield "|---|---|"
    for function, endpoints in sorted(endpoints_by_function().items()):
        yield f"| `{function}` | {', '.join(f'`{endpoint.name}`' for endpoint in endpoints)} |"


def endpoint_rows() -> Iterator[str]:
    """Yield a row for each endpoint that a function needs."""
    yield "| endpoint | kind | service name in `aws` and `aws-us-gov` | in `aws-cn` |"
    yield "|---|---|---|---|"
    for endpoint in needed_endpoints():
        kind = "gateway" if endpoint.is_gateway else "interface"
        china = f"`cn.{endpoint.service}`" if endpoint.has_own_prefix_in_china else "the same"
        yield f"| `{endpoint.name}` | {kind} | `{endpoint.service}` | {china} |"


def needed_endpoints() -> list[Endpoint]:
    """Return the endpoints that some function needs, in the order of `ENDPOINTS`."""
    wanted = {endpoint for endpoints in endpoints_by_function().values() for endpoint in endpoints}
    return [endpoint for endpoint in ENDPOINTS.values() if endpoint in wanted]


HEAD = """\
# Generated by `make generate` from tools/vpc_endpoints.py: the endpoints that follow from template.yaml.
AWSTemplateFormatVersion: "2010-09-09"
Description: VPC endpoints for Evenkeel's functions in private subnets without NAT (docs/private-clusters.md).

Parameters:
  VpcId:
    Type: AWS::EC2::VPC::Id
    Description: VPC of the EKS clusters. It needs DNS support and DNS host names.
  SubnetIds:
    Type: List<AWS::EC2::Subnet::Id>
    Description: Private subnets of the functions, at most one in each Availability Zone.
  RouteTableIds:
    Type: CommaDelimitedList
    Description: Route tables of these subnets, for the gateway endpoints.
  ClusterSecurityGroupId:
    Type: AWS::EC2::SecurityGroup::Id
    Description: Cluster security group of the EKS cluster.
  SecondClusterSecurityGroupId:
    Type: String
    Default: ""
    AllowedPattern: "(sg-[0-9a-f]{8,17})?"
    Description: Cluster security group of a second EKS cluster in the VPC; empty if there is none.
"""

GROUPS = """
  FunctionsSecurityGroup:
    Type: AWS::EC2::SecurityGroup
    Properties:
      GroupDescription: Evenkeel functions that call Kubernetes.
      VpcId: !Ref VpcId
      SecurityGroupEgress: # without NAT only the endpoints and the clusters can be reached
        - {IpProtocol: tcp, FromPort: 443, ToPort: 443, CidrIp: 0.0.0.0/0,
           Description: HTTPS to the endpoints and clusters}
  EndpointsSecurityGroup:
    Type: AWS::EC2::SecurityGroup
    Properties:
      GroupDescription: Interface endpoints that Evenkeel functions call.
      VpcId: !Ref VpcId
      SecurityGroupIngress:
        - {IpProtocol: tcp, FromPort: 443, ToPort: 443, SourceSecurityGroupId: !Ref FunctionsSecurityGroup,
           Description: HTTPS from Evenkeel functions}
  ClusterIngress: # the API server is behind the cluster security group, not behind the endpoint eks
    Type: AWS::EC2::SecurityGroupIngress
    Properties:
      Description: HTTPS from Evenkeel functions
      GroupId: !Ref ClusterSecurityGroupId
      IpProtocol: tcp
      FromPort: 443
      ToPort: 443
      SourceSecurityGroupId: !Ref FunctionsSecurityGroup
  SecondClusterIngress:
    Type: AWS::EC2::SecurityGroupIngress
    Condition: HasSecondCluster
    Properties:
      Description: HTTPS from Evenkeel functions
      GroupId: !Ref SecondClusterSecurityGroupId
      IpProtocol: tcp
      FromPort: 443
      ToPort: 443
      SourceSecurityGroupId: !Ref FunctionsSecurityGroup
"""

OUTPUTS = """
Outputs:
  SecurityGroupIds: {Value: !Ref FunctionsSecurityGroup, Description: Parameter SecurityGroupIds of the Evenkeel stack.}
  SubnetIds: {Value: !Join [",", !Ref SubnetIds], Description: Parameter SubnetIds of the Evenkeel stack.}
"""


def endpoints_stack() -> str:
    """Return the template of the endpoints' stack."""
    endpoints = needed_endpoints()
    parameters = "".join(
        f"""  {endpoint.parameter}:
    Type: String
    Default: create
    AllowedValues: [create, exists]
    Description: Whether the VPC has an endpoint for {endpoint.name} already.
"""
        for endpoint in endpoints
    )
    conditions = "".join(
        f"  Makes{endpoint.parameter}: !Equals [!Ref {endpoint.parameter}, create]\n" for endpoint in endpoints
    )
    fixed = """  IsChina: !Equals [!Ref AWS::Partition, aws-cn]
  HasSecondCluster: !Not [!Equals [!Ref SecondClusterSecurityGroupId, ""]]
"""
    return "".join(
        (
            HEAD,
            parameters,
            "\nConditions:\n",
            fixed,
            conditions,
            "\nResources:",
            GROUPS,
            *map(endpoint_resource, endpoints),
            OUTPUTS,
        )
    )


def endpoint_resource(endpoint: Endpoint) -> str:
    """Return an endpoint as a resource."""
    name = f"com.amazonaws.${{AWS::Region}}.{endpoint.name}"
    service = f'!Sub "{name}"'
    if endpoint.has_own_prefix_in_china:
        service = f'!If [IsChina, !Sub "cn.{name}", !Sub "{name}"]'
    ways = (
        "      VpcEndpointType: Gateway\n      RouteTableIds: !Ref RouteTableIds\n"
        if endpoint.is_gateway
        else "      VpcEndpointType: Interface\n      SubnetIds: !Ref SubnetIds\n"
        "      SecurityGroupIds: [!Ref EndpointsSecurityGroup]\n      PrivateDnsEnabled: true\n"
    )
    return f"""  {endpoint.parameter.removesuffix("Endpoint")}VpcEndpoint:
    Type: AWS::EC2::VPCEndpoint
    Condition: Makes{endpoint.parameter}
    Properties:
      VpcId: !Ref VpcId
      ServiceName: {service}
{ways}"""


TABLES = {"functions": function_rows, "endpoints": endpoint_rows}


def files() -> dict[Path, str]:
    """Return the page with its tables, and the stack."""
    return {PAGE: with_tables(PAGE, TABLES), STACK: endpoints_stack()}
