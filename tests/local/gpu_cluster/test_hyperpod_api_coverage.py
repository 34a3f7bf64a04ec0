"""A table of HyperPod's possible answers, and scenarios that get each of them from the local cluster over boto3.

A scenario declares its facts. The test fails if a fact was not in an answer (or, for marks, on a node) during the
scenario. All scenarios together must cover the table, and the table must match botocore.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ClientError
from botocore.model import OperationModel, Shape, StructureShape
from botocore.validate import ParamValidator

from evenkeel_local import gpu_cluster
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.local.gpu_cluster.conftest import QUICK, aws_client
from tests.local.gpu_cluster.kube_client import NODES, PODS, Json, KubeClient, a_pod, eventually

PREFIX = "sagemaker.amazonaws.com/"
WORKERS, PLANNED = "p5-workers", "planned"
GHOST = "i-0aaaaaaaaaaaaaaaa"

OPERATIONS = [
    "DescribeCluster",
    "ListClusters",
    "ListClusterNodes",
    "DescribeClusterNode",
    "ListClusterEvents",
    "DescribeClusterEvent",
    "ListClusterOperations",
    "DescribeClusterOperation",
    "BatchRebootClusterNodes",
    "BatchReplaceClusterNodes",
    "BatchDeleteClusterNodes",
    "BatchAddClusterNodes",
    "UpdateCluster",
    "UpdateClusterSoftware",
    "StartClusterHealthCheck",
    *(f"{verb}ComputeQuota" for verb in ("Create", "Describe", "Update", "Delete")),
    "ListComputeQuotas",
    *(f"{verb}ClusterSchedulerConfig" for verb in ("Create", "Describe", "Update", "Delete")),
    "ListClusterSchedulerConfigs",
    "SearchTrainingPlanOfferings",
    "DescribeTrainingPlan",
    "ListUltraServersByReservedCapacity",
]
ENUMS: dict[str, str] = {
    "ClusterInstanceStatus": "Running Failure Pending ShuttingDown SystemUpdating DeepHealthCheckInProgress NotFound",
    "ClusterStatus": "Creating Deleting Failed InService RollingBack SystemUpdating Updating",
    "InstanceGroupStatus": "InService Creating Updating Failed Degraded SystemUpdating Deleting",
    "SoftwareUpdateStatus": "Pending InProgress Succeeded Failed RollbackInProgress RollbackComplete",
    "ClusterNodeRecovery": "Automatic None",
    "ClusterNodeProvisioningMode": "Continuous",
    "ClusterAutoScalerType": "Karpenter",
    "ClusterCapacityType": "Spot OnDemand",
    "ClusterKubernetesTaintEffect": "NoSchedule PreferNoSchedule NoExecute",
    "BatchRebootClusterNodesErrorCode": "InstanceIdNotFound InvalidInstanceStatus InstanceIdInUse InternalServerError",
    "BatchReplaceClusterNodesErrorCode": "InstanceIdNotFound InvalidInstanceStatus InstanceIdInUse InternalServerError",
    "BatchDeleteClusterNodesErrorCode": "NodeIdNotFound InvalidNodeStatus NodeIdInUse",
    "BatchAddClusterNodesErrorCode": "InstanceGroupNotFound InvalidInstanceGroupStatus "
    "IncompatibleAvailabilityZones IncompatibleInstanceTypes",
    "ClusterOperationType": "Scaling DeepHealthCheck",
    "ClusterOperationStatus": "InProgress Superseded Done",
    "DeepHealthCheckType": "InstanceStress InstanceConnectivity MultiNodeTrainingValidation",
    "ClusterEventLevel": "Info Warn Error",
    "ClusterEventResourceType": "Cluster InstanceGroup Instance",
    "CapacityReservationType": "ODCR CRG",
    "SlurmHealthComponent": "Slurmdbd",
    "SlurmHealthStatus": "Healthy Unhealthy",
    "SlurmHealthReason": "DaemonDown DaemonDisabled DbUnreachable",
    "DatabaseConfigurationRollbackStatus": "NotApplicable Reverted RevertFailed",
    "SchedulerResourceStatus": "Creating CreateFailed CreateRollbackFailed Created Updating UpdateFailed "
    "UpdateRollbackFailed Updated Deleting DeleteFailed DeleteRollbackFailed Deleted",
    "ActivationState": "Enabled Disabled",
    "ResourceSharingStrategy": "Lend DontLend LendAndBorrow",
    "PreemptTeamTasks": "Never LowerPriority",
    "FairShare": "Enabled Disabled",
    "IdleResourceSharing": "Enabled Disabled",
    "TrainingPlanStatus": "Pending Active Scheduled Expired Failed",
    "ReservedCapacityStatus": "Pending Active Scheduled Expired Failed",
    "ReservedCapacityType": "UltraServer Instance",
    "SageMakerResourceName": "training-job hyperpod-cluster endpoint studio-apps",
    "UltraServerHealthStatus": "OK Impaired Insufficient-Data",
}
NOT_HAD = {
    "ClusterInstanceType": "any is taken",
    "ReservedCapacityInstanceType": "any is taken",
    "MIGProfileType": "any is taken",
    "ClusterAutoScalingMode": "shown while it is enabled only",
    "ClusterAutoScalingStatus": "an autoscaler is in service at once",
    "ClusterConfigMode": "no tiered storage",
    "ClusterFSxLustreDeletionPolicy": "no restricted instance groups",
    "ClusterImageVersionStatus": "no machine images",
    "ClusterInterfaceType": "no network interfaces",
    "ClusterOnDrainTimeout": "no automatic patching",
    "ClusterPatchingStrategy": "no automatic patching",
    "ClusterSlurmConfigStrategy": "no Slurm",
    "ClusterSlurmNodeType": "no Slurm",
    "NodeUnavailabilityType": "no scheduled updates",
}
ERRORS = [
    "ResourceNotFound",
    "ConflictException",
    "ResourceLimitExceeded",
    "ResourceInUse",
    "ValidationException",
    "ThrottlingException",
    "AccessDeniedException",
    "ServiceUnavailable",
    "InternalFailure",
]
METADATA = ["Cluster", "InstanceGroup", "InstanceGroupScaling", "Instance", "SlurmHealth", "DatabaseConfiguration"]
EVENTS = {
    "provisioned": r"EC2 Instance \S+ successfully provisioned in Cluster",
    "reboot running": r"Reboot of EC2 Instance \S+ is currently in progress",
    "reboot refused": r"Failed to submit reboot request for EC2 Instance ",
    "replacement started": r"Instance \S+ is starting as part of instance replacement",
    "replacement start failed": r"Instance \S+ failed to start as part of instance replacement",
    "replacement completed": r"Instance \S+ \S+ completed successfully as part of instance replacement",
    "replacement failed": r"Instance \S+ \S+ failed as part of instance replacement",
    "creation failed": r"Instance creation in Cluster .* failed$",
    "not provisioned": r"Failed to provision EC2 Instance in Cluster",
    "lifecycle started": r"Instance lifecycle script execution for EC2 Instance \S+ has started",
    "lifecycle succeeded": r"Instance lifecycle script execution for EC2 Instance \S+ has succeeded",
    "lifecycle failed": r"Instance lifecycle script execution for EC2 Instance \S+ has failed",
    "terminating": r"Termination of EC2 Instance \S+ is currently in progress",
    "reserved": r"Found CapacityReservation ID cr-",
    "not reserved": r"No CapacityReservation found .* using on-demand pool",
    "patching took it": r"Instance \S+ in IG \S+ cordoned and pods evicted\.",
    "patching gave it back": r"Instance \S+ in IG \S+ restored to schedulable state\.",
    "patching passed it by": r"Instance \S+ in IG \S+ skipped due to PodDisruptionBudget constraint\.",
    "readiness lost": r"\d+ node\(s\) lost orchestration-ready status",
}
FAILURES = {
    "no capacity of the type": r"We currently do not have sufficient capacity to launch new \S+ instances",
    "no capacity in the zone": r"We currently do not have sufficient capacity in the Availability Zone",
    "EFA check": r"EFA health checks did not run successfully",
    "lifecycle scripts": r"Lifecycle scripts did not run successfully",
    "misleading": r"Request to service failed",
}
MARKS = {
    "node-health-status": "Schedulable Unschedulable UnschedulablePendingReplacement UnschedulablePendingReboot",
    "deep-health-check-status": "InProgress Passed Failed",
    "fault-types": "NvidiaErrorReboot NvidiaErrorTerminate EfaError InstanceUnreachable",
    "fault-reasons": "XidHardwareFailure XidUserAppError",
    "compute-type": "hyperpod",
    "cluster-name": "research-train",
    "instance-group-name": f"{WORKERS} {PLANNED}",
}
OTHER_MARKS = ("taint Unschedulable", "annotation fault-details", "condition True", "condition False")


def of(kind: str, values: str = "") -> list[str]:
    """Return the facts of a kind with these values; without values, all facts of an enum or a mark."""
    return [f"{kind} {value}" for value in (values or ENUMS.get(kind) or MARKS[kind]).split()]


EVERYTHING = {
    *(f"op {name}" for name in OPERATIONS),
    *(fact for name in (*ENUMS, *MARKS) for fact in of(name)),
    *(f"error {code}" for code in ERRORS),
    *(f"metadata {kind}" for kind in METADATA),
    *(f"event: {name}" for name in EVENTS),
    *(f"failure: {name}" for name in FAILURES),
    *OTHER_MARKS,
}


class ApiCoverage:
    """A cluster, its clients, and the facts in their answers so far."""

    def __init__(self, handle: ClusterHandle) -> None:
        self.cluster = handle
        self.name = handle.cluster_name
        self.seen: set[str] = set()
        self.described: set[str] = set()
        """Events never change, and polling is fast enough to see short states."""
        self.problems: list[str] = []
        self.sagemaker = aws_client("sagemaker", handle.sagemaker_url)
        self.sagemaker.meta.events.register("after-call.sagemaker", self._note)
        self.kube = KubeClient(handle.kubernetes_url, handle.ca_pem, handle.admin_token)

    def _note(self, http_response: Any, parsed: Json, model: OperationModel, **_: Any) -> None:
        if http_response.status_code >= 300:
            self.seen.add(f"error {parsed['Error']['Code']}")
            return
        self.seen.add(f"op {model.name}")
        answer = {key: value for key, value in parsed.items() if key != "ResponseMetadata"}
        if model.output_shape is not None:
            report = ParamValidator().validate(answer, model.output_shape)
            if report.has_errors():
                self.problems.append(f"{model.name}: {report.generate_report()}")
            self._walk(model.output_shape, answer)

    def _walk(self, shape: Shape, value: Any) -> None:
        if isinstance(shape, StructureShape):
            if shape.name == "EventMetadata":
                self.seen |= {f"metadata {key}" for key in value}
            for key, item in value.items():
                for kind, table in (("event", EVENTS), ("failure", FAILURES)):
                    if key in ("Description", "FailureMessage"):
                        self.seen |= {f"{kind}: {name}" for name, text in table.items() if re.match(text, str(item))}
                if item is not None:
                    self._walk(shape.members[key], item)
        elif shape.type_name == "list":
            for item in value:
                self._walk(getattr(shape, "member"), item)  # noqa: B009 (a shape's parts are dynamic)
        elif getattr(shape, "enum", None):
            self.seen.add(f"{shape.name} {value}")

    # Doing

    def call(self, operation: str, **arguments: Any) -> Json:
        """Call an operation of the client. An error counts as an answer."""
        try:
            return dict(getattr(self.sagemaker, operation)(**arguments))
        except ClientError as refused:
            return dict(refused.response)

    def on_cluster(self, operation: str, **arguments: Any) -> Json:
        """Call an operation with the cluster's name."""
        return self.call(operation, ClusterName=self.name, **arguments)

    def look(self) -> set[str]:
        """Read cluster, nodes, operations, events and marks once."""
        self.on_cluster("describe_cluster")
        for summary in self.on_cluster("list_cluster_operations").get("ClusterOperationSummaries", ()):
            self.on_cluster("describe_cluster_operation", OperationId=summary["OperationId"])
        self.on_cluster("list_cluster_nodes", IncludeNodeLogicalIds=True)
        for event in self.on_cluster("list_cluster_events", MaxResults=100).get("Events", ()):
            if event["EventId"] not in self.described:
                self.described.add(event["EventId"])
                self.on_cluster("describe_cluster_event", EventId=event["EventId"])
        for node in self.kube.items(NODES):
            self._look_at(node)
        return self.seen

    def _look_at(self, node: Json) -> None:
        labels = node["metadata"]["labels"]
        self.seen |= {f"{key} {labels[PREFIX + key]}" for key in MARKS if PREFIX + key in labels}
        if any(taint["key"] == f"{PREFIX}node-health-status" for taint in node["spec"].get("taints") or ()):
            self.seen.add("taint Unschedulable")
        if f"{PREFIX}fault-details" in (node["metadata"].get("annotations") or {}):
            self.seen.add("annotation fault-details")
        for condition in node["status"]["conditions"]:
            if condition["type"].startswith("Nvidia"):
                self.seen.add(f"condition {condition['status']}")

    def until(self, *facts: str) -> None:
        """Poll until all of these facts were in answers."""
        eventually(lambda: set(facts) <= self.look(), " and ".join(facts))

    def nodes(self, group: str = WORKERS) -> list[str]:
        """Return the instance ids of a group."""
        return [node["instanceId"] for node in self.cluster.nodes() if node["instanceGroup"] == group]

    def idle(self) -> None:
        """Wait until no node is launching."""
        eventually(
            lambda: all(n["ready"] == "True" and not n["operation"] for n in self.cluster.nodes()), "all to be well"
        )

    def add(self, count: int = 1, token: str = "", **wish: Any) -> Json:
        """Request more nodes."""
        wish = {"InstanceGroupName": WORKERS, "IncrementTargetCountBy": count, **wish}
        named = {"ClientToken": token} if token else {}
        return self.on_cluster("batch_add_cluster_nodes", NodesToAdd=[wish], **named)

    def check(self, instance: str, *kinds: str) -> Json:
        """Start a deep health check of one node."""
        wish = {
            "InstanceGroupName": WORKERS,
            "InstanceIds": [instance],
            "DeepHealthChecks": kinds or ["InstanceStress"],
        }
        return self.on_cluster("start_cluster_health_check", DeepHealthCheckConfigurations=[wish])

    def update(self, count: int, **more: Any) -> Json:
        """Set the number of workers with UpdateCluster."""
        role = "arn:aws:iam::000000000000:role/research-train-exec"
        wish = {"InstanceGroupName": WORKERS, "InstanceCount": count, "ExecutionRole": role, **more}
        return self.on_cluster("update_cluster", InstanceGroups=[wish])


Scenario = Callable[[ApiCoverage], None]
SCENARIOS: dict[str, tuple[Scenario, frozenset[str]]] = {}


def reaches(*facts: str | list[str]) -> Callable[[Scenario], Scenario]:
    """Register a scenario with its facts."""

    def register(scenario: Scenario) -> Scenario:
        flat = frozenset(fact for item in facts for fact in ([item] if isinstance(item, str) else item))
        SCENARIOS[scenario.__name__] = (scenario, flat)
        return scenario

    return register


# The scenarios


@reaches(
    ["op DescribeCluster", "op ListClusters", "op ListClusterNodes", "op DescribeClusterNode"],
    ["op SearchTrainingPlanOfferings", "op DescribeTrainingPlan", "op ListUltraServersByReservedCapacity"],
    of("ClusterStatus", "InService"),
    of("InstanceGroupStatus", "InService"),
    of("ClusterInstanceStatus", "Running"),
    of("ClusterNodeRecovery", "None"),
    [
        fact
        for name in ("ClusterNodeProvisioningMode", "ClusterCapacityType", "TrainingPlanStatus")
        for fact in of(name)
    ],
    [fact for name in ("ReservedCapacityStatus", "ReservedCapacityType", "SageMakerResourceName") for fact in of(name)],
    [fact for name in ("UltraServerHealthStatus", "ClusterKubernetesTaintEffect") for fact in of(name)],
    [fact for name in ("compute-type", "cluster-name", "instance-group-name") for fact in of(name)],
    of("node-health-status", "Schedulable"),
    "error ResourceNotFound",
)
def what_is_there(stage: ApiCoverage) -> None:
    stage.look()
    stage.call("list_clusters")
    for instance in (*stage.nodes(), *stage.nodes(PLANNED), GHOST):
        stage.on_cluster("describe_cluster_node", NodeId=instance)
    every = ENUMS["SageMakerResourceName"].split()
    stage.call("search_training_plan_offerings", InstanceType="ml.p5.48xlarge", TargetResources=every)
    for number in range(5):
        plan = stage.call("describe_training_plan", TrainingPlanName=f"plan-{number}")
        arn = plan["ReservedCapacitySummaries"][0]["ReservedCapacityArn"]
        stage.call("list_ultra_servers_by_reserved_capacity", ReservedCapacityArn=arn)


@reaches(
    "op BatchRebootClusterNodes",
    of("BatchRebootClusterNodesErrorCode"),
    ["event: reboot running", "event: reboot refused", "metadata Instance"],
    of("ClusterInstanceStatus", "Pending"),
    of("ClusterEventLevel", "Info Error"),
)
def reboots(stage: ApiCoverage) -> None:
    _repair("batch_reboot_cluster_nodes", stage)
    stage.look()


@reaches(
    "op BatchReplaceClusterNodes",
    of("BatchReplaceClusterNodesErrorCode"),
    of("ClusterInstanceStatus", "ShuttingDown Pending"),
    of("ClusterEventLevel", "Warn"),
    of("ClusterEventResourceType", "Cluster Instance"),
    of("InstanceGroupStatus", "Degraded"),
    ["metadata Cluster", "failure: misleading", "event: readiness lost", "event: terminating", "event: provisioned"],
    ["event: replacement started", "event: replacement completed", "event: not reserved", "event: reserved"],
    ["event: lifecycle started", "event: lifecycle succeeded", "op ListClusterEvents", "op DescribeClusterEvent"],
    of("CapacityReservationType", "ODCR"),
)
def replacements(stage: ApiCoverage) -> None:
    _repair("batch_replace_cluster_nodes", stage)
    stage.on_cluster("batch_replace_cluster_nodes", NodeIds=stage.nodes(PLANNED))
    stage.until(*of("ClusterInstanceStatus", "ShuttingDown Pending"))
    stage.until("event: replacement completed", "event: reserved")


def _repair(operation: str, stage: ApiCoverage) -> None:
    checked, broken, fine = stage.nodes()
    stage.check(checked)
    stage.cluster.control("POST", "failing-nodes", {"instanceId": broken})
    stage.on_cluster(operation, NodeIds=[checked, broken, GHOST])
    stage.on_cluster(operation, NodeIds=[fine])
    stage.on_cluster(operation, NodeIds=[fine])
    stage.look()


@reaches(
    of("ClusterInstanceStatus", "Failure"),
    ["event: replacement start failed", "event: replacement failed", "event: lifecycle failed"],
    ["event: not provisioned", "failure: EFA check", "failure: lifecycle scripts"],
)
def launches_that_fail(stage: ApiCoverage) -> None:
    for stage_name, fact in (
        ("start", "event: replacement start failed"),
        ("efa", "failure: EFA check"),
        ("lifecycle", "failure: lifecycle scripts"),
    ):
        stage.idle()
        stage.cluster.inject("boot-failing", instanceGroup=WORKERS, stage=stage_name, times=1)
        stage.on_cluster("batch_replace_cluster_nodes", NodeIds=stage.nodes()[:1])
        stage.until(fact, "ClusterInstanceStatus Failure")
    stage.idle()
    stage.cluster.inject("boot-failing", instanceGroup=WORKERS, stage="efa", times=1)
    stage.add()
    stage.until("event: not provisioned")


@reaches(["failure: no capacity of the type", "failure: no capacity in the zone", "event: creation failed"])
def no_capacity(stage: ApiCoverage) -> None:
    stage.cluster.control("POST", "capacity", {"instanceGroup": WORKERS, "machines": 2})
    stage.on_cluster("batch_replace_cluster_nodes", NodeIds=stage.nodes()[:1])
    stage.until("failure: no capacity of the type", "event: creation failed")
    stage.cluster.inject("zone-outage", zone="us-west-2b")
    stage.on_cluster("batch_replace_cluster_nodes", NodeIds=stage.nodes(PLANNED))
    stage.until("failure: no capacity in the zone")


@reaches("op BatchDeleteClusterNodes", of("BatchDeleteClusterNodesErrorCode"))
def deletions(stage: ApiCoverage) -> None:
    checked, leaving, _ = stage.nodes()
    stage.check(checked)
    for _ in range(2):
        stage.on_cluster("batch_delete_cluster_nodes", NodeIds=[checked, leaving, GHOST])


@reaches(
    ["op BatchAddClusterNodes", "op ListClusterOperations", "op DescribeClusterOperation"],
    of("BatchAddClusterNodesErrorCode"),
    of("ClusterOperationType", "Scaling"),
    of("ClusterOperationStatus"),
    of("ClusterInstanceStatus", "NotFound"),
    of("ClusterEventResourceType", "InstanceGroup"),
    ["metadata InstanceGroupScaling", "error ResourceLimitExceeded"],
)
def growth(stage: ApiCoverage) -> None:
    stage.add(InstanceGroupName="none")
    stage.add(AvailabilityZones=["us-west-2d"])
    stage.add(InstanceTypes=["ml.g5.8xlarge"])
    stage.add(50)
    stage.cluster.control("POST", "status", {"instanceGroup": PLANNED, "status": "Failed"})
    stage.add(InstanceGroupName=PLANNED)
    stage.cluster.control("POST", "capacity", {"instanceGroup": WORKERS, "machines": 3})
    slot = stage.add(token="one")["Successful"][0]["NodeLogicalId"]
    stage.until(*of("ClusterOperationStatus", "InProgress"))
    stage.on_cluster("batch_delete_cluster_nodes", NodeLogicalIds=[slot])
    eventually(lambda: len(stage.nodes()) == 3, "the node to go")
    stage.add(token="one")
    stage.until(*of("ClusterOperationStatus", "Superseded Done"))


@reaches(
    "op StartClusterHealthCheck",
    of("ClusterOperationType", "DeepHealthCheck"),
    of("DeepHealthCheckType"),
    of("ClusterInstanceStatus", "DeepHealthCheckInProgress"),
    of("deep-health-check-status"),
    of("node-health-status", "Unschedulable UnschedulablePendingReplacement UnschedulablePendingReboot"),
    "taint Unschedulable",
)
def deep_health_checks(stage: ApiCoverage) -> None:
    good, rebooted, replaced = stage.nodes()
    stage.cluster.control("POST", "failing-checks", {"instanceId": rebooted, "repair": "reboot"})
    stage.cluster.control("POST", "failing-checks", {"instanceId": replaced})
    stage.check(good, *ENUMS["DeepHealthCheckType"].split())
    stage.check(rebooted)
    stage.check(replaced)
    stage.look()
    stage.until(*of("deep-health-check-status"), *of("node-health-status", "UnschedulablePendingReboot"))
    eventually(lambda: replaced not in stage.nodes(), "the replacement")


@reaches(
    "op UpdateClusterSoftware",
    of("ClusterStatus", "SystemUpdating"),
    of("InstanceGroupStatus", "SystemUpdating"),
    of("ClusterInstanceStatus", "SystemUpdating"),
    of("SoftwareUpdateStatus"),
    ["event: patching took it", "event: patching gave it back", "event: patching passed it by"],
    "error ConflictException",
)
def software_updates(stage: ApiCoverage) -> None:
    guarded = stage.nodes()[-1]
    stage.kube.create(PODS, a_pod("guarded", nodeSelector={"kubernetes.io/hostname": f"hyperpod-{guarded}"}))
    budget = {"metadata": {"name": "all"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}}
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    stage.kube.create(path, budget)
    stage.kube.until(f"{path}/all", lambda obj: obj["status"]["currentHealthy"] == 1, "the budget to count its pod")
    stage.on_cluster("update_cluster_software")
    stage.on_cluster("update_cluster_software")
    stage.on_cluster("update_cluster", NodeRecovery="Automatic")
    stage.until("SoftwareUpdateStatus Succeeded", "event: patching passed it by")
    for status in ("Failed", "RollbackInProgress", "RollbackComplete"):
        stage.cluster.control("POST", "status", {"instanceGroup": WORKERS, "softwareUpdate": status})
        stage.look()


@reaches(
    "op UpdateCluster",
    of("ClusterNodeRecovery", "Automatic"),
    of("ClusterAutoScalerType"),
    of("ClusterStatus", "RollingBack Creating Deleting Failed Updating"),
    of("InstanceGroupStatus", "Updating Creating Failed Deleting"),
)
def settings(stage: ApiCoverage) -> None:
    stage.on_cluster("update_cluster", NodeRecovery="Automatic", AutoScaling={"Mode": "Enable"})
    stage.cluster.control("POST", "capacity", {"instanceGroup": WORKERS, "machines": 3})
    stage.update(4, MinInstanceCount=4)
    stage.until("ClusterStatus RollingBack")
    eventually(lambda: len(stage.nodes()) == 3, "the growth to be taken back")
    stage.on_cluster("update_cluster", InstanceGroupsToDelete=[PLANNED])
    stage.until("InstanceGroupStatus Deleting")
    for status in ("Creating", "Failed", "Updating"):
        stage.cluster.control("POST", "status", {"instanceGroup": WORKERS, "status": status})
        stage.look()
    for status in ("Creating", "Deleting", "Failed", "Updating"):
        stage.cluster.control("POST", "status", {"status": status})
        stage.look()


@reaches(
    [f"op {name}" for name in OPERATIONS if "ComputeQuota" in name or "SchedulerConfig" in name],
    [fact for name in ("SchedulerResourceStatus", "ActivationState", "ResourceSharingStrategy") for fact in of(name)],
    [fact for name in ("PreemptTeamTasks", "FairShare", "IdleResourceSharing") for fact in of(name)],
    "error ConflictException",
)
def governance(stage: ApiCoverage) -> None:
    arn = stage.cluster.cluster_arn
    for number, strategy in enumerate(ENUMS["ResourceSharingStrategy"].split()):
        resources = [{"InstanceType": "ml.p5.48xlarge", "Count": 1}]
        quota = {
            "ComputeQuotaResources": resources,
            "ResourceSharingConfig": {"Strategy": strategy},
            "PreemptTeamTasks": ("Never", "LowerPriority")[number % 2],
        }
        wish = {"Name": f"team-{number}", "ClusterArn": arn, "ComputeQuotaTarget": {"TeamName": f"team-{number}"}}
        state = ("Enabled", "Disabled")[number % 2]
        for _ in range(2):
            stage.call("create_compute_quota", ComputeQuotaConfig=quota, ActivationState=state, **wish)
        stage.call("list_compute_quotas")
    first, second, third = (q["ComputeQuotaId"] for q in stage.call("list_compute_quotas")["ComputeQuotaSummaries"])
    _settle(stage, first, "Created")
    stage.call("update_compute_quota", ComputeQuotaId=first, TargetVersion=1, ActivationState="Disabled")
    _settle(stage, first, "Updated")
    stage.call("delete_compute_quota", ComputeQuotaId=second)
    stage.call("describe_compute_quota", ComputeQuotaId=second)
    for status in ENUMS["SchedulerResourceStatus"].split():
        stage.cluster.control("POST", "status", {"id": third, "status": status})
        stage.call("describe_compute_quota", ComputeQuotaId=third)
    document: Json = {"PriorityClasses": [{"Name": "high", "Weight": 90}], "FairShare": "Enabled"}
    document["IdleResourceSharing"] = "Enabled"
    config = stage.call("create_cluster_scheduler_config", Name="rules", ClusterArn=arn, SchedulerConfig=document)
    named = {"ClusterSchedulerConfigId": config["ClusterSchedulerConfigId"]}
    eventually(lambda: stage.call("describe_cluster_scheduler_config", **named)["Status"] == "Created", "the rules")
    none = {"FairShare": "Disabled", "IdleResourceSharing": "Disabled"}
    stage.call("update_cluster_scheduler_config", TargetVersion=1, SchedulerConfig=none, **named)
    stage.call("describe_cluster_scheduler_config", **named)
    stage.call("list_cluster_scheduler_configs")
    stage.call("delete_cluster_scheduler_config", **named)


def _settle(stage: ApiCoverage, quota: str, status: str) -> None:
    eventually(lambda: stage.call("describe_compute_quota", ComputeQuotaId=quota)["Status"] == status, status)


@reaches(
    of("fault-types"),
    of("fault-reasons"),
    of("node-health-status", "UnschedulablePendingReplacement UnschedulablePendingReboot"),
    ["taint Unschedulable", "annotation fault-details", "condition True", "condition False"],
)
def faults(stage: ApiCoverage) -> None:
    first, second, third = stage.nodes()
    stage.cluster.inject("gpu-xid", node=first, code=95)
    fault = stage.cluster.inject(
        "gpu-xid", node=second, code=13, faultType="NvidiaErrorTerminate", faultReason="XidUserAppError"
    )
    stage.cluster.inject("gpu-xid", node=third, faultType="EfaError")
    stage.cluster.inject("gpu-xid", node=stage.nodes(PLANNED)[0], faultType="InstanceUnreachable")
    stage.until(*of("fault-types"), *of("fault-reasons"), "condition True")
    stage.cluster.clear(fault["faultId"])
    stage.until("condition False")


@reaches(
    [f"metadata {kind}" for kind in METADATA],
    of("CapacityReservationType", "CRG"),
    [fact for name in ("SlurmHealthComponent", "SlurmHealthStatus", "SlurmHealthReason") for fact in of(name)],
    of("DatabaseConfigurationRollbackStatus"),
)
def events_of_other_kinds(stage: ApiCoverage) -> None:
    reservation = {"Arn": "arn:aws:ec2:us-west-2:000000000000:capacity-reservation/cr-0123456789abcdef0", "Type": "CRG"}
    resources: list[tuple[str, Json]] = [
        ("InstanceGroup", {"InstanceGroup": {"CapacityReservation": reservation}}),
        ("InstanceGroup", {"InstanceGroupScaling": {"InstanceCount": 3, "TargetCount": 4}}),
        ("Instance", {"Instance": {"NodeLogicalId": "a-slot"}}),
        ("Cluster", {"Cluster": {"FailureMessage": ""}}),
    ]
    resources += [
        ("Cluster", {"SlurmHealth": {"Component": "Slurmdbd", "Status": status, "Reason": reason}})
        for status in ENUMS["SlurmHealthStatus"].split()
        for reason in ENUMS["SlurmHealthReason"].split()
    ]
    resources += [
        ("Cluster", {"DatabaseConfiguration": {"RollbackStatus": status}})
        for status in ENUMS["DatabaseConfigurationRollbackStatus"].split()
    ]
    for resource_type, metadata in resources:
        body = {"resourceType": resource_type, "description": "It was told to.", "metadata": metadata}
        stage.cluster.control("POST", "cluster-events", body)
    stage.look()


@reaches([f"error {code}" for code in ERRORS if code not in ("ConflictException", "ResourceLimitExceeded")])
def refusals(stage: ApiCoverage) -> None:
    stage.call("describe_cluster", ClusterName="nobodys")
    stage.call("describe_cluster", ClusterName="a_b")
    for code, status in (
        ("ResourceInUse", 400),
        ("AccessDeniedException", 400),
        ("ServiceUnavailable", 503),
        ("InternalFailure", 500),
    ):
        rule = {"effect": "error", "operation": "DescribeCluster", "code": code, "status": status}
        stage.cluster.control("POST", "call-faults", rule)
        stage.on_cluster("describe_cluster")
    stage.cluster.control("POST", "call-faults", {"effect": "throttle", "operation": "DescribeCluster"})
    stage.on_cluster("describe_cluster")


# Checks of the scenarios


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    """The cluster of all scenarios: workers, a group on a training plan in another zone, and plans of all kinds."""
    health = ENUMS["UltraServerHealthStatus"].split()
    plans = [
        {
            "name": f"plan-{number}",
            "status": status,
            "totalInstanceCount": 6,
            **({"ultraServerType": "ml.u-p6e-gb200x36", "ultraServerCount": 1} if number < len(health) else {}),
            **({"ultraServerHealth": health[number]} if number < len(health) else {}),
        }
        for number, status in enumerate(ENUMS["TrainingPlanStatus"].split())
    ]
    effects = ENUMS["ClusterKubernetesTaintEffect"].split()
    planned = {
        "name": PLANNED,
        "count": 1,
        "trainingPlan": "plan-1",
        "capacityType": "Spot",
        "availabilityZone": "us-west-2b",
        "availabilityZoneId": "usw2-az2",
        "taints": [{"key": f"t-{effect.lower()}", "effect": effect} for effect in effects],
    }
    config = {
        **QUICK,
        "instanceGroups": [{"name": WORKERS, "count": 3}, planned],
        "trainingPlans": plans,
        "instanceLimit": 20,
        # Intermediate states last long enough for a slow poller to see them.
        "delays": {
            **QUICK["delays"],
            "autoRecovery": 1.0,
            "deepHealthCheck": 1.5,
            "replace": 0.8,
            "scalingRollback": 1.5,
            "terminate": 0.6,
        },
    }
    with gpu_cluster.start(config, tmp_path_factory.mktemp("shared_cluster")) as handle:
        yield handle


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_api_scenario_covers_its_declared_values(shared_cluster: ClusterHandle, name: str) -> None:
    shared_cluster.control("POST", "reset")
    stage = ApiCoverage(shared_cluster)
    stage.idle()
    scenario, facts = SCENARIOS[name]

    scenario(stage)
    stage.kube.close()

    assert facts - stage.seen == set()
    assert stage.problems == []


def test_api_scenarios_cover_every_value_and_error() -> None:
    reached = {fact for _, facts in SCENARIOS.values() for fact in facts}

    assert EVERYTHING - reached == set()
    assert reached - EVERYTHING == set()


def test_table_of_covered_values_matches_the_botocore_model() -> None:
    model = botocore.session.get_session().get_service_model("sagemaker")
    known: dict[str, set[str]] = {}
    errors: set[str] = set()

    def walk(shape: Any, above: tuple[str, ...] = ()) -> None:
        if shape is None or shape.name in above:
            return
        above = (*above, shape.name)
        if getattr(shape, "enum", None):
            known[shape.name] = set(shape.enum)
        parts = shape.members.values() if shape.type_name == "structure" else ()
        for part in (*parts, getattr(shape, "member", None), getattr(shape, "value", None)):
            walk(part, above)

    for name in OPERATIONS:
        operation = model.operation_model(name)
        walk(operation.output_shape)
        errors |= {shape.name for shape in operation.error_shapes}

    assert {name: set(values.split()) for name, values in ENUMS.items()} == {
        name: values for name, values in known.items() if name not in NOT_HAD
    }
    assert set(NOT_HAD) <= set(known)
    assert errors <= set(ERRORS)


def test_cluster_refuses_an_unsupported_operation(shared_cluster: ClusterHandle, tmp_path: Path) -> None:
    sagemaker = aws_client("sagemaker", shared_cluster.sagemaker_url)

    with pytest.raises(ClientError) as refused:
        sagemaker.delete_cluster(ClusterName=shared_cluster.cluster_name)

    assert refused.value.response["Error"]["Code"] == "UnknownOperationException"
