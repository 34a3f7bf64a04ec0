"""The checks before a deployment: compare an environment of samconfig.toml with AWS."""

import threading
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from evenkeel_cli.doctor import evaluate, network, planned_stack_checks
from evenkeel_cli.doctor.checks import DoctorCheck
from evenkeel_cli.doctor.findings import CouldNotCheck, DoctorFinding
from evenkeel_cli.doctor.site import AwsCalls, BadCredentials, ResourceNotFound, read_once

if TYPE_CHECKING:
    from evenkeel_cli.offline.planned_stack import PlannedStack

Json = dict[str, Any]
_READER = "Use the identity that deploys. It also needs the reading calls of this check (docs/deploy.md)."


class PlannedSite:
    """A planned stack and its surroundings. Facts that several checks need are read once."""

    def __init__(self, aws: AwsCalls, planned: "PlannedStack", sam_versions: tuple[str, str]) -> None:
        self._aws = aws
        self.planned = planned
        self.sam_versions = sam_versions
        """The installed version of sam, empty if there is none, and the locked version."""
        self.lock = threading.Lock()
        self.reading: dict[str, threading.Lock] = {}
        self.results: dict[str, Any] = {}

    def call(self, service: str, operation: str, **parameters: Any) -> Json:
        """Return the answer of AWS.

        Raises:
            ResourceNotFound: the resource does not exist.
            CouldNotCheck: AWS did not answer, or refused the call.
        """
        try:
            return self._aws.call(service, operation, **parameters)
        except BadCredentials:
            raise
        except CouldNotCheck as error:
            raise CouldNotCheck(error.reason, _READER if "may not call" in error.reason else error.fix) from error

    def identity(self) -> Json:
        """Return the caller's identity."""
        return self.call("sts", "get_caller_identity")

    @read_once
    def clusters(self) -> Mapping[str, Json | None]:
        """Return the description of each cluster from EKS; None for a cluster that does not exist."""
        return {name: self._cluster(name) for name in self.planned.clusters()}

    def _cluster(self, name: str) -> Json | None:
        try:
            answer: Json = self.call("eks", "describe_cluster", name=name)["cluster"]
        except ResourceNotFound:
            return None
        return answer

    @read_once
    def stack(self) -> Json:
        """Return the stack of this name as CloudFormation describes it; empty if there is none."""
        try:
            stacks: list[Json] = self.call("cloudformation", "describe_stacks", StackName=self.planned.name)["Stacks"]
        except ResourceNotFound:
            return {}
        return stacks[0] if stacks else {}

    def all_of(self, operation: str, field: str, filters: Mapping[str, list[str]]) -> list[Json]:
        """Return all pages of a description of EC2."""
        items: list[Json] = []
        token: dict[str, str] = {}
        while True:
            filter_documents = [{"Name": name, "Values": values} for name, values in filters.items()]
            page = self.call("ec2", operation, Filters=filter_documents, **token)
            items += page[field]
            if not page.get("NextToken"):
                return items
            token = {"NextToken": page["NextToken"]}


def credentials(site: PlannedSite, _now: datetime) -> list[DoctorFinding]:
    try:
        identity = site.identity()
    except BadCredentials as error:
        return planned_stack_checks.missing_credentials(error.reason, error.fix)
    return [
        *evaluate.judge_credentials(identity["Arn"]),
        *planned_stack_checks.judge_account(
            identity["Account"], site.planned.region, site.planned.parameters["HyperPodClusterArn"]
        ),
    ]


def parameters(site: PlannedSite, _now: datetime) -> list[DoctorFinding]:
    return planned_stack_checks.judge_parameters(site.planned.parameters, site.planned.clusters())


def names(site: PlannedSite, _now: datetime) -> list[DoctorFinding]:
    return planned_stack_checks.judge_names(site.planned.name, site.planned.parameters["FleetName"])


def stack(site: PlannedSite, _now: datetime) -> list[DoctorFinding]:
    status = str(site.stack().get("StackStatus", ""))
    return planned_stack_checks.judge_earlier_stack(site.planned.name, status, site.planned.parameters)


def sam(site: PlannedSite, _now: datetime) -> list[DoctorFinding]:
    return planned_stack_checks.judge_sam(*site.sam_versions)


def api_logs(site: PlannedSite, _now: datetime) -> list[DoctorFinding]:
    role = site.call("apigateway", "get_account").get("cloudwatchRoleArn") or ""
    return planned_stack_checks.judge_log_role(site.planned.parameters["ApiLogRole"], role)


def concurrency(site: PlannedSite, _now: datetime) -> list[DoctorFinding]:
    limits = site.call("lambda", "get_account_settings")["AccountLimit"]
    requested, declared = (
        int(site.planned.parameters[name]) for name in ("CordonConcurrency", "LambdaConcurrencyLimit")
    )
    # An update replaces the concurrency that the present stack reserves.
    present = {
        parameter["ParameterKey"]: parameter.get("ParameterValue", "")
        for parameter in site.stack().get("Parameters", ())
    }
    return planned_stack_checks.judge_limits(
        limits["ConcurrentExecutions"],
        limits["UnreservedConcurrentExecutions"],
        reserved_per_function=(int(present.get("CordonConcurrency") or 0), requested),
        reserved_in_template=declared,
    )


def kubernetes(site: PlannedSite, _now: datetime) -> list[DoctorFinding]:
    subnets = site.planned.listed("SubnetIds")
    return network.judge_clusters(site.clusters(), has_subnets=bool(subnets))


def hyperpod(site: PlannedSite, _now: datetime) -> list[DoctorFinding]:
    arn = site.planned.parameters["HyperPodClusterArn"]
    if not arn:
        return evaluate.judge_hyperpod("", None)
    try:
        document = site.call("sagemaker", "describe_cluster", ClusterName=arn)
    except ResourceNotFound:
        return evaluate.judge_hyperpod(arn, None)
    return [
        *evaluate.judge_hyperpod(arn, document),
        *planned_stack_checks.judge_orchestrator(document, site.planned.clusters()),
    ]


def subnets(site: PlannedSite, _now: datetime) -> list[DoctorFinding]:
    subnet_ids, groups = site.planned.listed("SubnetIds"), site.planned.listed("SecurityGroupIds")
    if not subnet_ids:
        return network.judge_subnets(subnet_ids, [], groups, [], {})
    subnet_documents = site.all_of("describe_subnets", "Subnets", {"subnet-id": list(subnet_ids)})
    found_groups = site.all_of("describe_security_groups", "SecurityGroups", {"group-id": list(groups)})
    of_clusters = {name: cluster["resourcesVpcConfig"] for name, cluster in site.clusters().items() if cluster}
    guards = [
        cluster["clusterSecurityGroupId"] for cluster in of_clusters.values() if cluster.get("clusterSecurityGroupId")
    ]
    rules = site.all_of("describe_security_groups", "SecurityGroups", {"group-id": guards}) if guards else []
    return [
        *network.judge_subnets(subnet_ids, subnet_documents, groups, found_groups, of_clusters),
        *network.judge_cluster_rules(groups, of_clusters, rules),
    ]


def endpoints(site: PlannedSite, _now: datetime) -> list[DoctorFinding]:
    subnet_ids = site.planned.listed("SubnetIds")
    if not subnet_ids:
        return network.judge_routes({}, [])
    documents = site.all_of("describe_subnets", "Subnets", {"subnet-id": list(subnet_ids)})
    vpcs = sorted({document["VpcId"] for document in documents})
    if not vpcs:
        raise CouldNotCheck("The subnets do not exist.", "See the check `subnets`.")
    tables = site.all_of("describe_route_tables", "RouteTables", {"vpc-id": vpcs})
    endpoints = site.all_of("describe_vpc_endpoints", "VpcEndpoints", {"vpc-id": vpcs})
    return network.judge_routes({name: network.routes_of(name, tables) for name in subnet_ids}, endpoints)


def buckets(site: PlannedSite, _now: datetime) -> list[DoctorFinding]:
    bucket_documents = {arn: _bucket(site, arn.rpartition(":")[2]) for arn in site.planned.listed("CheckpointBuckets")}
    return planned_stack_checks.judge_buckets(bucket_documents, site.planned.region)


def _bucket(site: PlannedSite, name: str) -> Json | None:
    try:
        return site.call("s3", "head_bucket", Bucket=name)
    except ResourceNotFound:
        return None


def keys(site: PlannedSite, _now: datetime) -> list[DoctorFinding]:
    key_states = {arn: _key(site, arn) for arn in site.planned.listed("CheckpointEncryption")}
    return planned_stack_checks.judge_keys(key_states)


def _key(site: PlannedSite, arn: str) -> str:
    try:
        return str(site.call("kms", "describe_key", KeyId=arn)["KeyMetadata"]["KeyState"])
    except ResourceNotFound:
        return ""


CHECKS_BEFORE_DEPLOYMENT = (
    DoctorCheck("credentials", credentials, "your identity in AWS, and whether the HyperPod cluster is in its account"),
    DoctorCheck("names", names, "the length of the names of the stack and the fleet"),
    DoctorCheck("parameters", parameters, "parameters that contradict each other"),
    DoctorCheck("sam", sam, "the version of sam"),
    DoctorCheck("stack", stack, "an earlier stack of the same name"),
    DoctorCheck("api-logs", api_logs, "whether `ApiLogRole` fits the account"),
    DoctorCheck("concurrency", concurrency, "the account's limit of concurrent Lambda invocations"),
    DoctorCheck("kubernetes", kubernetes, "state, authentication mode and endpoint of each EKS cluster"),
    DoctorCheck("hyperpod", hyperpod, "the HyperPod cluster, its `NodeRecovery` and its orchestrator"),
    DoctorCheck("subnets", subnets, "subnets, security groups and the rule to the API servers"),
    DoctorCheck("endpoints", endpoints, "NAT or VPC endpoints for functions in the subnets"),
    DoctorCheck("buckets", buckets, "the checkpoint buckets"),
    DoctorCheck("keys", keys, "the keys of the checkpoint buckets"),
)
