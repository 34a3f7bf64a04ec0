"""Other HyperPod operations: automatic recovery, launches, health checks, updates, governance and capacity."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from evenkeel_local import gpu_cluster
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.local.gpu_cluster.conftest import QUICK, aws_client
from tests.local.gpu_cluster.kube_client import NODES, PODS, Json, KubeClient, a_pod, eventually

PREFIX = "sagemaker.amazonaws.com/"
CHECK = f"{PREFIX}deep-health-check-status"
GROUP = "p5-workers"


def code_of(refused: pytest.ExceptionInfo[ClientError]) -> str:
    return str(refused.value.response["Error"]["Code"])


def first_node(cluster: ClusterHandle) -> Json:
    return cluster.nodes()[0]


def start_health_check(cluster: ClusterHandle, sagemaker: Any, instance: str) -> Json:
    wish = {"InstanceGroupName": GROUP, "InstanceIds": [instance], "DeepHealthChecks": ["InstanceStress"]}
    answer = sagemaker.start_cluster_health_check(
        ClusterName=cluster.cluster_name, DeepHealthCheckConfigurations=[wish]
    )
    return dict(answer)


def operations(cluster: ClusterHandle, sagemaker: Any, **wanted: str) -> list[Json]:
    answer = sagemaker.list_cluster_operations(ClusterName=cluster.cluster_name, **wanted)
    return list(answer["ClusterOperationSummaries"])


# Deep health checks


def test_deep_health_check_marks_and_releases_its_node(
    cluster: ClusterHandle, kube: KubeClient, sagemaker: Any
) -> None:
    node = first_node(cluster)
    path = f"{NODES}/{node['name']}"

    answer = start_health_check(cluster, sagemaker, node["instanceId"])
    during = kube.get(path)
    described = sagemaker.describe_cluster_node(ClusterName=cluster.cluster_name, NodeId=node["instanceId"])
    running = operations(cluster, sagemaker, Type="DeepHealthCheck", Status="InProgress")
    after = kube.until(path, lambda obj: obj["metadata"]["labels"].get(CHECK) == "Passed", "the check to pass")
    done = eventually(lambda: operations(cluster, sagemaker, Status="Done"), "the operation to be done")
    detail = sagemaker.describe_cluster_operation(
        ClusterName=cluster.cluster_name, OperationId=running[0]["OperationId"]
    )

    assert set(answer) - {"ResponseMetadata"} == {"ClusterArn"}
    assert during["metadata"]["labels"][CHECK] == "InProgress"
    assert during["metadata"]["labels"][f"{PREFIX}node-health-status"] == "Unschedulable"
    assert described["NodeDetails"]["InstanceStatus"]["Status"] == "DeepHealthCheckInProgress"
    assert not after["spec"].get("taints")
    assert [item["OperationId"] for item in done] == [running[0]["OperationId"]]
    assert detail["DeepHealthCheckDetails"][0]["InstanceIds"] == [node["instanceId"]]


def test_hyperpod_replaces_a_node_that_fails_its_check(cluster: ClusterHandle, sagemaker: Any) -> None:
    node = first_node(cluster)
    cluster.control("POST", "failing-checks", {"instanceId": node["instanceId"]})

    start_health_check(cluster, sagemaker, node["instanceId"])

    eventually(
        lambda: any(
            other["nodeLogicalId"] == node["nodeLogicalId"]
            and other["instanceId"] != node["instanceId"]
            and other["ready"] == "True"
            for other in cluster.nodes()
        ),
        "the replacement",
    )
    assert cluster.control("GET", "counters")["accepted"]["replace"] == {}


def test_health_check_of_an_unknown_target_is_refused(cluster: ClusterHandle, sagemaker: Any) -> None:
    for group, instance in ((GROUP, "i-0aaaaaaaaaaaaaaaa"), ("none", first_node(cluster)["instanceId"])):
        wish = {"InstanceGroupName": group, "InstanceIds": [instance], "DeepHealthChecks": ["InstanceStress"]}
        with pytest.raises(ClientError) as refused:
            sagemaker.start_cluster_health_check(ClusterName=cluster.cluster_name, DeepHealthCheckConfigurations=[wish])
        assert code_of(refused) == "ValidationException"


def test_hyperpod_may_reboot_a_node_that_fails_its_check(
    cluster: ClusterHandle, kube: KubeClient, sagemaker: Any
) -> None:
    node = first_node(cluster)
    cluster.control("POST", "failing-checks", {"instanceId": node["instanceId"], "repair": "reboot"})

    start_health_check(cluster, sagemaker, node["instanceId"])

    path = f"{NODES}/{node['name']}"
    after = kube.until(path, lambda obj: obj["status"]["nodeInfo"]["bootID"] != node["bootId"], "the reboot")
    kube.until(path, lambda obj: health_label(obj) == "Schedulable", "the marks to go")
    assert after["metadata"]["labels"][CHECK] == "Failed"


# Automatic recovery


def health_label(node: Json) -> str:
    return str(node["metadata"]["labels"][f"{PREFIX}node-health-status"])


def mark_first_node(cluster: ClusterHandle, kube: KubeClient, label: str) -> tuple[Json, str]:
    """Write a health label on the first node, as an operator does; return the node as it was, and its path."""
    node = first_node(cluster)
    path = f"{NODES}/{node['name']}"
    kube.patch(path, {"metadata": {"labels": {f"{PREFIX}node-health-status": label}}})
    return node, path


def test_health_label_triggers_a_repair_under_automatic_recovery(
    cluster: ClusterHandle, kube: KubeClient, sagemaker: Any
) -> None:
    sagemaker.update_cluster(ClusterName=cluster.cluster_name, NodeRecovery="Automatic")

    node, path = mark_first_node(cluster, kube, "UnschedulablePendingReboot")

    kube.until(path, lambda obj: obj["status"]["nodeInfo"]["bootID"] != node["bootId"], "the reboot")
    kube.until(path, lambda obj: health_label(obj) == "Schedulable", "the label to go back")
    kube.patch(path, {"metadata": {"labels": {f"{PREFIX}node-health-status": "UnschedulablePendingReplacement"}}})
    kube.until_gone(path)


def test_health_label_triggers_nothing_without_automatic_recovery(
    cluster: ClusterHandle, kube: KubeClient, sagemaker: Any
) -> None:
    node, path = mark_first_node(cluster, kube, "UnschedulablePendingReplacement")
    other = cluster.nodes()[1]["instanceId"]

    # A whole reboot of another node takes longer than HyperPod's wait.
    sagemaker.batch_reboot_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[other])
    eventually(lambda: all(item["ready"] == "True" for item in cluster.nodes()), "the reboot")

    assert health_label(kube.get(path)) == "UnschedulablePendingReplacement"
    assert first_node(cluster)["instanceId"] == node["instanceId"]


def test_failed_reboot_is_followed_by_a_replacement(cluster: ClusterHandle, kube: KubeClient, sagemaker: Any) -> None:
    sagemaker.update_cluster(ClusterName=cluster.cluster_name, NodeRecovery="Automatic")
    node = first_node(cluster)

    cluster.inject("gpu-xid", node=node["instanceId"], code=95, survivesReboot=True)
    kube.until_gone(f"{NODES}/{node['name']}")

    texts = descriptions(cluster, sagemaker)[::-1]
    steps = [text.split()[0] for text in texts if node["instanceId"] in text]
    assert steps == ["Reboot", "Termination"]
    sent = [event["detail"] for event in cluster.control("GET", "events")["events"]]
    advice = [detail["HealthSummary"]["Recommendation"] for detail in sent]
    assert advice == ["Please Reboot the Node.", "Please Replace the Faulty Node."]
    assert cluster.control("GET", "counters")["accepted"] == {"reboot": {}, "replace": {}, "delete": {}}


def test_cpu_nodes_are_not_replaced_by_hyperpod(tmp_path: Path) -> None:
    groups = [{"name": "cpu", "instanceType": "ml.m5.2xlarge", "count": 1}, {"name": GROUP, "count": 1}]
    config = {**QUICK, "nodeRecovery": "Automatic", "instanceGroups": groups}
    with gpu_cluster.start(config, tmp_path / "run") as handle:
        eventually(lambda: all(node["ready"] == "True" for node in handle.nodes()), "the nodes")
        before = {node["instanceGroup"]: node["instanceId"] for node in handle.nodes()}
        for instance in before.values():
            handle.inject("gpu-xid79", node=instance)

        def replaced() -> set[str]:
            return {n["instanceGroup"] for n in handle.nodes() if n["instanceId"] != before[n["instanceGroup"]]}

        eventually(lambda: GROUP in replaced(), "the GPU node to be replaced")
        eventually(lambda: all(n["operation"] is None for n in handle.nodes()), "the operations to end")

        assert replaced() == {GROUP}


# Launches that fail


def test_failed_launch_changes_the_instance_and_hides_its_slot(cluster: ClusterHandle, sagemaker: Any) -> None:
    node = first_node(cluster)
    slot = {"ClusterName": cluster.cluster_name, "NodeLogicalId": node["nodeLogicalId"]}
    fault = cluster.inject("boot-failing", instanceGroup=GROUP)
    sagemaker.batch_replace_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[node["instanceId"]])
    attempts: set[str] = set()

    def missing_after_two() -> bool:
        try:
            attempts.add(sagemaker.describe_cluster_node(**slot)["NodeDetails"]["InstanceId"])
        except ClientError as refused:
            return refused.response["Error"]["Code"] == "ResourceNotFound" and len(attempts - {node["instanceId"]}) > 1
        return False

    eventually(missing_after_two, "the slot to be missing between attempts")
    cluster.clear(fault["faultId"])

    def back_again() -> Json | None:
        nodes = (n for n in cluster.nodes() if n["ready"] == "True" and n["nodeLogicalId"] == node["nodeLogicalId"])
        return next(nodes, None)

    back = eventually(back_again, "the slot to be filled")
    described = sagemaker.describe_cluster_node(ClusterName=cluster.cluster_name, NodeId=back["instanceId"])

    status = described["NodeDetails"]["InstanceStatus"]
    assert status == {"Status": "Running", "Message": "Lifecycle scripts did not run successfully."}


def test_node_deleted_during_its_launch_never_joins(cluster: ClusterHandle, kube: KubeClient, sagemaker: Any) -> None:
    cluster.control("POST", "capacity", {"instanceGroup": GROUP, "machines": 3})
    wish = {"InstanceGroupName": GROUP, "IncrementTargetCountBy": 1}
    added = sagemaker.batch_add_cluster_nodes(ClusterName=cluster.cluster_name, ClientToken="t", NodesToAdd=[wish])
    slot = added["Successful"][0]["NodeLogicalId"]

    sagemaker.batch_delete_cluster_nodes(ClusterName=cluster.cluster_name, NodeLogicalIds=[slot])
    eventually(lambda: len(cluster.nodes()) == 3, "the node to be gone")
    cluster.control("POST", "capacity", {"instanceGroup": GROUP, "machines": None})
    sagemaker.batch_add_cluster_nodes(ClusterName=cluster.cluster_name, ClientToken="u", NodesToAdd=[wish])
    eventually(lambda: [n["ready"] for n in cluster.nodes()] == ["True"] * 4, "another node")

    assert slot not in {node["nodeLogicalId"] for node in cluster.nodes()}
    assert {node["metadata"]["name"] for node in kube.items(NODES)} == {node["name"] for node in cluster.nodes()}


# Scaling and updates


def test_replacement_in_autoscaled_cluster_only_terminates_the_instance(cluster: ClusterHandle, sagemaker: Any) -> None:
    scaler = {"Mode": "Enable", "AutoScalerType": "Karpenter"}
    sagemaker.update_cluster(ClusterName=cluster.cluster_name, AutoScaling=scaler)
    instance = first_node(cluster)["instanceId"]

    answer = sagemaker.batch_replace_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[instance])
    eventually(lambda: len(cluster.nodes()) == 2, "the node to go")
    described = sagemaker.describe_cluster(ClusterName=cluster.cluster_name)

    assert answer["Successful"] == [instance]
    assert described["AutoScaling"] == {**scaler, "Status": "InService"}
    assert [(g["CurrentCount"], g["TargetCount"]) for g in described["InstanceGroups"]] == [(2, 2)]
    assert not any("starting as part" in text for text in descriptions(cluster, sagemaker))


def test_update_cluster_refuses_unsupported_changes(cluster: ClusterHandle, sagemaker: Any) -> None:
    with pytest.raises(ClientError) as refused:
        sagemaker.update_cluster(
            ClusterName=cluster.cluster_name, NodeRecovery="Automatic", TieredStorageConfig={"Mode": "Enable"}
        )

    assert code_of(refused) == "UnknownOperationException"
    assert sagemaker.describe_cluster(ClusterName=cluster.cluster_name)["NodeRecovery"] == "None"


def test_group_is_deleted_once_with_its_nodes(cluster: ClusterHandle, sagemaker: Any) -> None:
    for _ in range(2):
        sagemaker.update_cluster(ClusterName=cluster.cluster_name, InstanceGroupsToDelete=[GROUP])
    eventually(
        lambda: sagemaker.describe_cluster(ClusterName=cluster.cluster_name)["InstanceGroups"] == [], "the group to go"
    )
    with pytest.raises(ClientError) as refused:
        sagemaker.update_cluster(ClusterName=cluster.cluster_name, InstanceGroupsToDelete=[GROUP])

    assert cluster.nodes() == []
    assert code_of(refused) == "ValidationException"


def test_later_scaling_of_a_group_replaces_earlier_one(cluster: ClusterHandle, sagemaker: Any) -> None:
    cluster.control("POST", "capacity", {"instanceGroup": GROUP, "machines": 3})
    wish = {"InstanceGroupName": GROUP, "IncrementTargetCountBy": 1}
    for token in ("one", "two"):
        sagemaker.batch_add_cluster_nodes(ClusterName=cluster.cluster_name, ClientToken=token, NodesToAdd=[wish])

    newest, oldest = operations(cluster, sagemaker, Type="Scaling")
    cluster.control("POST", "capacity", {"instanceGroup": GROUP, "machines": None})
    eventually(lambda: operations(cluster, sagemaker, Type="Scaling", Status="Done"), "the scaling to be done")
    detail = sagemaker.describe_cluster_operation(ClusterName=cluster.cluster_name, OperationId=newest["OperationId"])

    assert (oldest["Status"], newest["Status"]) == ("Superseded", "InProgress")
    assert detail["ScalingDetails"][0]["Original"]["TargetCount"] == 4
    assert detail["ScalingDetails"][0]["Desired"]["TargetCount"] == 5
    with pytest.raises(ClientError) as refused:
        sagemaker.describe_cluster_operation(
            ClusterName=cluster.cluster_name, OperationId="0" * 8 + "-0000" * 3 + "-" + "0" * 12
        )
    assert code_of(refused) == "ResourceNotFound"


def test_group_grows_and_shrinks_to_its_updated_count(cluster: ClusterHandle, sagemaker: Any) -> None:
    group = {
        "InstanceGroupName": GROUP,
        "InstanceType": "ml.p5.48xlarge",
        "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-x/", "OnCreate": "on_create.sh"},
        "ExecutionRole": "arn:aws:iam::000000000000:role/research-train-exec",
    }

    for count in (4, 2):
        sagemaker.update_cluster(ClusterName=cluster.cluster_name, InstanceGroups=[{**group, "InstanceCount": count}])
        eventually(
            lambda count=count: (  # type: ignore[misc]
                sum(1 for node in cluster.nodes() if node["ready"] == "True") == count == len(cluster.nodes())
            ),
            f"{count} nodes",
        )


def test_software_update_updates_node_by_node(cluster: ClusterHandle, kube: KubeClient, sagemaker: Any) -> None:
    boots = {node["name"]: node["bootId"] for node in cluster.nodes()}

    sagemaker.update_cluster_software(ClusterName=cluster.cluster_name)
    during = sagemaker.describe_cluster(ClusterName=cluster.cluster_name)
    with pytest.raises(ClientError) as refused:
        sagemaker.update_cluster_software(ClusterName=cluster.cluster_name)
    eventually(
        lambda: sagemaker.describe_cluster(ClusterName=cluster.cluster_name)["ClusterStatus"] == "InService",
        "the update to end",
    )
    texts = [
        event["Description"] for event in sagemaker.list_cluster_events(ClusterName=cluster.cluster_name)["Events"]
    ]

    assert (during["ClusterStatus"], during["InstanceGroups"][0]["Status"]) == ("SystemUpdating", "SystemUpdating")
    assert during["InstanceGroups"][0]["SoftwareUpdateStatus"] == "InProgress"
    assert code_of(refused) == "ConflictException"
    assert all(node["bootId"] != boots[node["name"]] for node in cluster.nodes())
    assert sum(1 for text in texts if text.endswith("cordoned and pods evicted.")) == 3
    assert sum(1 for text in texts if text.endswith("restored to schedulable state.")) == 3


# Statuses


def test_injected_cluster_status_sends_an_event(cluster: ClusterHandle, sagemaker: Any) -> None:
    cluster.control("POST", "status", {"status": "RollingBack"})

    described = sagemaker.describe_cluster(ClusterName=cluster.cluster_name)
    event = cluster.control("GET", "events")["events"][0]

    assert event["detailType"] == "SageMaker HyperPod Cluster State Change"
    assert event["detail"]["ClusterStatus"] == described["ClusterStatus"] == "RollingBack"
    assert event["detail"]["CreationTime"] == pytest.approx(described["CreationTime"].timestamp() * 1000, abs=1000)


# Events


def descriptions(cluster: ClusterHandle, sagemaker: Any) -> list[str]:
    events = sagemaker.list_cluster_events(ClusterName=cluster.cluster_name, MaxResults=100)["Events"]
    return [event["Description"] for event in events]


def test_reboot_and_its_refusal_are_recorded_as_events(cluster: ClusterHandle, sagemaker: Any) -> None:
    first, second, _ = (node["instanceId"] for node in cluster.nodes())
    cluster.control("POST", "failing-nodes", {"instanceId": second})

    sagemaker.batch_reboot_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[first, second])

    texts = descriptions(cluster, sagemaker)
    assert any(text.startswith(f"Reboot of EC2 Instance {first} is currently in progress") for text in texts)
    assert f"Failed to submit reboot request for EC2 Instance {second}" in texts


def test_software_update_skips_a_node_under_a_disruption_budget(
    cluster: ClusterHandle, kube: KubeClient, sagemaker: Any
) -> None:
    node = first_node(cluster)
    kube.create(PODS, a_pod("guarded", nodeSelector={"kubernetes.io/hostname": node["name"]}))
    budget = {"metadata": {"name": "all"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}}
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    kube.create(path, budget)
    kube.until(f"{path}/all", lambda obj: obj["status"]["currentHealthy"] == 1, "the budget to count its pod")

    sagemaker.update_cluster_software(ClusterName=cluster.cluster_name)

    skipped = f"Instance {node['instanceId']} in IG {GROUP} skipped due to PodDisruptionBudget constraint."
    eventually(lambda: skipped in descriptions(cluster, sagemaker), "the node to be passed by")
    assert next(n for n in cluster.nodes() if n["name"] == node["name"])["bootId"] == node["bootId"]


def test_event_list_keeps_the_newest_five_hundred(cluster: ClusterHandle, sagemaker: Any) -> None:
    for number in range(505):
        body = {"resourceType": "Cluster", "description": f"event {number}"}
        cluster.control("POST", "cluster-events", body)

    listed: list[str] = []
    token: dict[str, str] = {}
    while True:
        answer = sagemaker.list_cluster_events(ClusterName=cluster.cluster_name, MaxResults=100, **token)
        listed += [event["Description"] for event in answer["Events"]]
        if "NextToken" not in answer:
            break
        token = {"NextToken": answer["NextToken"]}

    assert listed == [f"event {number}" for number in range(504, 4, -1)]


def test_events_are_filtered_by_operation(cluster: ClusterHandle, sagemaker: Any) -> None:
    wish = {"InstanceGroupName": GROUP, "IncrementTargetCountBy": 1}
    sagemaker.batch_add_cluster_nodes(ClusterName=cluster.cluster_name, ClientToken="t", NodesToAdd=[wish])
    operation = operations(cluster, sagemaker)[0]["OperationId"]

    events = sagemaker.list_cluster_events(ClusterName=cluster.cluster_name, OperationId=operation)["Events"]
    every = sagemaker.list_cluster_events(ClusterName=cluster.cluster_name)["Events"]

    assert [event["ResourceType"] for event in events] == ["InstanceGroup"]
    assert len(every) > 1


# Governance


QUOTA: Json = {
    "Name": "team-a",
    "ComputeQuotaConfig": {
        "ComputeQuotaResources": [{"InstanceType": "ml.p5.48xlarge", "Count": 2}],
        "ResourceSharingConfig": {"Strategy": "LendAndBorrow", "BorrowLimit": 50},
        "PreemptTeamTasks": "LowerPriority",
    },
    "ComputeQuotaTarget": {"TeamName": "team-a", "FairShareWeight": 10},
}


def until_quota(sagemaker: Any, quota_id: str, status: str) -> Json:
    def settled() -> Json | None:
        described: Json = sagemaker.describe_compute_quota(ComputeQuotaId=quota_id)
        return described if described["Status"] == status else None

    return eventually(settled, f"the quota to be {status}")


def test_update_of_compute_quota_at_old_version_is_refused(cluster: ClusterHandle, sagemaker: Any) -> None:
    created = sagemaker.create_compute_quota(ClusterArn=cluster.cluster_arn, **QUOTA)
    quota_id = created["ComputeQuotaId"]
    with pytest.raises(ClientError) as taken:
        sagemaker.create_compute_quota(ClusterArn=cluster.cluster_arn, **QUOTA)
    first = until_quota(sagemaker, quota_id, "Created")
    target = {"TeamName": "team-a", "FairShareWeight": 20}

    updated = sagemaker.update_compute_quota(
        ComputeQuotaId=quota_id, TargetVersion=first["ComputeQuotaVersion"], ComputeQuotaTarget=target
    )
    with pytest.raises(ClientError) as stale:
        sagemaker.update_compute_quota(ComputeQuotaId=quota_id, TargetVersion=1, ComputeQuotaTarget=target)
    second = until_quota(sagemaker, quota_id, "Updated")
    listed = sagemaker.list_compute_quotas(ClusterArn=cluster.cluster_arn)["ComputeQuotaSummaries"]
    sagemaker.delete_compute_quota(ComputeQuotaId=quota_id)
    deleting = sagemaker.describe_compute_quota(ComputeQuotaId=quota_id)["Status"]

    def gone() -> bool:
        return not sagemaker.list_compute_quotas()["ComputeQuotaSummaries"]

    eventually(gone, "the quota to be gone")
    with pytest.raises(ClientError) as missing:
        sagemaker.describe_compute_quota(ComputeQuotaId=quota_id)

    assert created["ComputeQuotaArn"].endswith(f":compute-quota/{quota_id}")
    assert (updated["ComputeQuotaVersion"], second["ComputeQuotaVersion"]) == (2, 2)
    assert second["ComputeQuotaTarget"]["FairShareWeight"] == 20
    assert [item["ComputeQuotaId"] for item in listed] == [quota_id]
    assert [code_of(refused) for refused in (taken, stale, missing)] == [
        "ConflictException",
        "ConflictException",
        "ResourceNotFound",
    ]
    assert deleting == "Deleting"


def test_compute_quota_that_failed_has_a_reason(cluster: ClusterHandle, sagemaker: Any) -> None:
    quota_id = sagemaker.create_compute_quota(ClusterArn=cluster.cluster_arn, **QUOTA)["ComputeQuotaId"]

    cluster.control("POST", "status", {"id": quota_id, "status": "CreateFailed", "failure": "It was told to."})

    described = sagemaker.describe_compute_quota(ComputeQuotaId=quota_id)
    assert (described["Status"], described["FailureReason"]) == ("CreateFailed", "It was told to.")


def test_cluster_has_one_scheduler_configuration(cluster: ClusterHandle, sagemaker: Any) -> None:
    config: Json = {"PriorityClasses": [{"Name": "high", "Weight": 90}], "FairShare": "Enabled"}
    created = sagemaker.create_cluster_scheduler_config(
        Name="policy", ClusterArn=cluster.cluster_arn, SchedulerConfig=config
    )
    key = created["ClusterSchedulerConfigId"]
    with pytest.raises(ClientError) as second:
        sagemaker.create_cluster_scheduler_config(Name="other", ClusterArn=cluster.cluster_arn, SchedulerConfig=config)

    def created_at() -> Json | None:
        described: Json = sagemaker.describe_cluster_scheduler_config(ClusterSchedulerConfigId=key)
        return described if described["Status"] == "Created" else None

    described = eventually(created_at, "the configuration")
    updated = sagemaker.update_cluster_scheduler_config(
        ClusterSchedulerConfigId=key, TargetVersion=1, SchedulerConfig={**config, "FairShare": "Disabled"}
    )

    assert code_of(second) == "ConflictException"
    assert described["SchedulerConfig"] == config
    assert updated["ClusterSchedulerConfigVersion"] == 2
    assert len(sagemaker.list_cluster_scheduler_configs()["ClusterSchedulerConfigSummaries"]) == 1


# Capacity


@pytest.fixture
def planned(tmp_path: Path) -> Iterator[ClusterHandle]:
    """A cluster on a training plan of two racks with one spare each."""
    plan = {
        "name": "research-q4",
        "totalInstanceCount": 6,
        "spareInstanceCount": 2,
        "ultraServerType": "ml.u-p6e-gb200x36",
        "ultraServerCount": 2,
    }
    groups = [{"name": GROUP, "count": 2, "trainingPlan": "research-q4"}]
    with gpu_cluster.start({**QUICK, "trainingPlans": [plan], "instanceGroups": groups}, tmp_path / "run") as handle:
        eventually(lambda: all(node["ready"] == "True" for node in handle.nodes()), "the nodes")
        yield handle


def test_training_plan_counts_available_spare_and_unhealthy_instances(planned: ClusterHandle) -> None:
    sagemaker = aws_client("sagemaker", planned.sagemaker_url)
    before = sagemaker.describe_training_plan(TrainingPlanName="research-q4")
    planned.inject("gpu-xid79", node=planned.nodes()[0]["instanceId"])
    eventually(lambda: any(node["unhealthy"] for node in planned.nodes()), "the mark")

    after = sagemaker.describe_training_plan(TrainingPlanName=before["TrainingPlanArn"])
    racks = sagemaker.list_ultra_servers_by_reserved_capacity(
        ReservedCapacityArn=before["ReservedCapacitySummaries"][0]["ReservedCapacityArn"]
    )["UltraServers"]
    with pytest.raises(ClientError) as missing:
        sagemaker.describe_training_plan(TrainingPlanName="other")

    counts = ("InUseInstanceCount", "AvailableInstanceCount", "AvailableSpareInstanceCount", "UnhealthyInstanceCount")
    assert [before[name] for name in counts] == [2, 2, 2, 0]
    assert [after[name] for name in counts] == [1, 2, 2, 1]
    assert (before["Status"], len(racks), racks[0]["HealthStatus"], racks[1]["HealthStatus"]) == (
        "Active",
        2,
        "Impaired",
        "OK",
    )
    assert code_of(missing) == "ResourceNotFound"


def test_training_plan_ends_after_its_remaining_time(tmp_path: Path) -> None:
    plan = {"name": "ends-soon", "durationHours": 24, "remainingSeconds": 2000}
    started = datetime.now(UTC)

    with gpu_cluster.start({**QUICK, "trainingPlans": [plan], "instanceGroups": []}, tmp_path / "run") as handle:
        running = datetime.now(UTC)
        sagemaker = aws_client("sagemaker", handle.sagemaker_url)
        described = sagemaker.describe_training_plan(TrainingPlanName="ends-soon")

    remaining = timedelta(seconds=2000)
    assert started + remaining <= described["EndTime"] <= running + remaining
    assert described["EndTime"] - described["StartTime"] == timedelta(hours=24)


def test_training_plan_offerings_match_the_request(cluster: ClusterHandle, sagemaker: Any) -> None:
    request = {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 4, "TargetResources": ["hyperpod-cluster"]}

    day = sagemaker.search_training_plan_offerings(DurationHours=24, **request)["TrainingPlanOfferings"]
    month = sagemaker.search_training_plan_offerings(DurationHours=720, **request)["TrainingPlanOfferings"]

    assert day[0]["ReservedCapacityOfferings"][0]["InstanceCount"] == 4
    assert isinstance(day[0]["UpfrontFee"], str)
    assert month == []
