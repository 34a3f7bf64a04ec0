"""Judge clusters, subnets, security groups, and routes from a VPC to AWS: pure functions that return findings."""

from collections.abc import Mapping, Sequence
from typing import Any

from evenkeel_cli.doctor.findings import DoctorFinding, failed, ok, warning

Json = dict[str, Any]

NEEDED_ENDPOINTS = (
    *("dynamodb", "s3", "eks", "sagemaker.api", "states", "lambda", "sqs", "sns", "autoscaling", "ec2"),
    "monitoring",
)
"""Suffixes of the service names (docs/private-clusters.md lists which function needs which)."""
_PAGE = "docs/private-clusters.md"
_HTTPS = 443


def judge_clusters(clusters: Mapping[str, Json | None], *, has_subnets: bool) -> list[DoctorFinding]:
    """Judge each EKS cluster by its description from EKS; None if it does not exist."""
    if not clusters:
        return [failed("No Kubernetes cluster is named.", "Set KubernetesClusters in samconfig.toml.")]
    findings = [
        finding
        for name, cluster in clusters.items()
        for finding in _judge_cluster(name, cluster, has_subnets=has_subnets)
    ]
    return findings or [
        ok(f"{', '.join(clusters)}: ACTIVE, with access entries, and an endpoint that functions reach.")
    ]


def _judge_cluster(name: str, cluster: Json | None, *, has_subnets: bool) -> list[DoctorFinding]:
    if cluster is None:
        text = f"EKS has no cluster {name} in this account and region."
        return [failed(text, "Correct KubernetesClusters in samconfig.toml.", name)]
    findings = []
    if cluster["status"] != "ACTIVE":
        fix = f"aws eks describe-cluster --name {name}"
        kind = warning if cluster["status"] == "UPDATING" else failed
        findings.append(kind(f"EKS reports that {name} is {cluster['status']}.", fix, name))
    mode = cluster.get("accessConfig", {}).get("authenticationMode", "CONFIG_MAP")
    if mode not in ("API", "API_AND_CONFIG_MAP"):
        fix = f"aws eks update-cluster-config --name {name} --access-config authenticationMode=API_AND_CONFIG_MAP"
        findings.append(failed(f"{name} has the authentication mode {mode}, so it has no access entries.", fix, name))
    if reach := _judge_endpoint(name, cluster["resourcesVpcConfig"], has_subnets=has_subnets):
        findings.append(reach)
    return findings


def _judge_endpoint(name: str, config: Json, *, has_subnets: bool) -> DoctorFinding | None:
    """Judge whether functions reach the API server."""
    if has_subnets:
        if config.get("endpointPrivateAccess"):
            return None
        text = f"{name} has no private endpoint: functions in the subnets reach it only through NAT."
        return warning(text, f"Turn the private endpoint on, or see {_PAGE}.", name)
    if not config.get("endpointPublicAccess"):
        text = f"{name} has a private endpoint only, and SubnetIds is empty: no function reaches its API server."
        return failed(text, f"Set SubnetIds and SecurityGroupIds ({_PAGE}).", name)
    if "0.0.0.0/0" not in config.get("publicAccessCidrs", ["0.0.0.0/0"]):
        text = f"The public endpoint of {name} accepts only listed addresses."
        text += " Functions outside a VPC have no fixed address."
        return failed(text, f"Set SubnetIds and SecurityGroupIds ({_PAGE}).", name)
    return None


def judge_subnets(
    subnet_ids: Sequence[str],
    subnets: Sequence[Json],
    groups: Sequence[str],
    found_groups: Sequence[Json],
    clusters: Mapping[str, Json],
) -> list[DoctorFinding]:
    """Judge the subnets and security groups of the functions.

    Args:
        subnet_ids: `SubnetIds`.
        subnets: The subnets in `SubnetIds` that exist.
        groups: `SecurityGroupIds`.
        found_groups: The security groups in `SecurityGroupIds` that exist.
        clusters: The network configuration of each cluster that exists.
    """
    if not subnet_ids:
        return [ok("The functions run outside a VPC (parameter SubnetIds).")]
    findings = [
        failed(f"{kind} {name} does not exist in this account and region.", f"Correct {parameter}.", name)
        for kind, parameter, names, is_present in (
            ("Subnet", "SubnetIds", subnet_ids, {subnet["SubnetId"] for subnet in subnets}),
            ("Security group", "SecurityGroupIds", groups, {group["GroupId"] for group in found_groups}),
        )
        for name in names
        if name not in is_present
    ]
    vpcs = sorted({fault["VpcId"] for fault in (*subnets, *found_groups)})
    if len(vpcs) > 1:
        text = f"Subnets and security groups are in different VPCs: {', '.join(vpcs)}."
        findings.append(failed(text, "Use subnets and security groups of one VPC."))
    if len({subnet["AvailabilityZone"] for subnet in subnets}) == 1:
        text = "All subnets are in one Availability Zone: if it fails, Evenkeel reaches no cluster."
        findings.append(warning(text, "Name subnets in two Availability Zones."))
    for name, config in clusters.items():
        if config["vpcId"] not in vpcs and vpcs:
            text = f"{name} is in {config['vpcId']}, the subnets are in {', '.join(vpcs)}. The VPCs need a connection."
            findings.append(warning(text, f"See {_PAGE}.", name))
    return findings or [ok(f"{len(subnet_ids)} subnets and {len(groups)} security groups exist in {', '.join(vpcs)}.")]


def judge_cluster_rules(
    groups: Sequence[str], clusters: Mapping[str, Json], rules: Sequence[Json]
) -> list[DoctorFinding]:
    """Judge whether each cluster security group allows HTTPS from the functions' groups."""
    rules_by_group = {rule["GroupId"]: rule["IpPermissions"] for rule in rules}
    findings = []
    for name, config in clusters.items():
        guard = config.get("clusterSecurityGroupId", "")
        if guard in groups or any(_allows_https(rule, groups) for rule in rules_by_group.get(guard, ())):
            continue
        fix = (
            f"aws ec2 authorize-security-group-ingress --group-id {guard} --protocol tcp --port {_HTTPS} "
            f"--source-group {groups[0] if groups else 'GROUP'}"
        )
        text = f"The cluster security group {guard} of {name} has no rule for the functions' security groups."
        findings.append(failed(text, fix, name))
    return findings


def _allows_https(rule: Json, groups: Sequence[str]) -> bool:
    """Whether a rule allows HTTPS from one of the groups, or from addresses, which may belong to the subnets."""
    is_https = rule["IpProtocol"] == "-1" or (
        rule["IpProtocol"] == "tcp" and rule.get("FromPort", 0) <= _HTTPS <= rule.get("ToPort", 0)
    )
    from_groups = any(pair.get("GroupId") in groups for pair in rule.get("UserIdGroupPairs", ()))
    return is_https and (from_groups or bool(rule.get("IpRanges")))


def routes_of(subnet: str, tables: Sequence[Json]) -> list[Json]:
    """Return the routes of a subnet: from its own route table, else from the main route table."""
    documents = [
        table
        for table in tables
        if any(association.get("SubnetId") == subnet for association in table.get("Associations", ()))
    ]
    main = [table for table in tables if any(association.get("Main") for association in table.get("Associations", ()))]
    return [route for table in (documents or main)[:1] for route in table["Routes"]]


def judge_routes(routes: Mapping[str, Sequence[Json]], endpoints: Sequence[Json]) -> list[DoctorFinding]:
    """Judge how functions in the subnets reach AWS.

    Args:
        routes: By subnet.
        endpoints: The VPC's endpoints.
    """
    if not routes:
        return [ok("The functions run outside a VPC (parameter SubnetIds).")]
    closed_subnets = sorted(
        name for name, subnet_routes in routes.items() if not any(_leads_to_aws(route) for route in subnet_routes)
    )
    if not closed_subnets:
        return [ok("Every subnet has a route to NAT or to another network.")]
    present = {
        name
        for name in NEEDED_ENDPOINTS
        for endpoint in endpoints
        if endpoint["ServiceName"].endswith(f".{name}") and endpoint["State"].lower() == "available"
    }
    missing_endpoints = [name for name in NEEDED_ENDPOINTS if name not in present]
    if not missing_endpoints:
        return [ok(f"The VPC of {', '.join(closed_subnets)} has all endpoints that the functions need.")]
    text = (
        f"{', '.join(closed_subnets)} have no route to NAT, and the VPC lacks the endpoints "
        f"{', '.join(missing_endpoints)}."
    )
    return [failed(text, f"Deploy deploy/vpc-endpoints.yaml ({_PAGE}).")]


def _leads_to_aws(route: Json) -> bool:
    """Whether a default route leads to a target through which a function without a public address reaches AWS."""
    targets = ("NatGatewayId", "TransitGatewayId", "NetworkInterfaceId", "InstanceId", "VpcPeeringConnectionId")
    return (
        route.get("DestinationCidrBlock") == "0.0.0.0/0"
        and route.get("State") == "active"
        and any(route.get(target) for target in targets)
    )
