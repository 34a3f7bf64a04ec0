"""Manifests for Kubernetes: valid, restricted, bound to their nodes, and with the training contract."""

from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from evenkeel.adapters import manifests, node_objects, operator_manifests, workloads
from evenkeel.domain.capacity.efa import EfaRequest
from evenkeel.domain.checkpoints import CheckpointRequirement, Distrust
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ResumePoint
from evenkeel.domain.jobs.spec import JobSpec, SecretKey
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.nodes import FleetNode, Node, NodeLife, join_nodes
from evenkeel.domain.resources import NONE
from evenkeel.ports import CapacitySpec, LaunchSpec, ProofRules
from tests.fakes.system import A_MOMENT


def a_spec(**changes: Any) -> LaunchSpec:
    facts = {
        "name": "llm",
        "image": "registry/trainer:1",
        "command": ("python", "train.py"),
        "args": ("--lr", "3e-4"),
        "env": {"SEED": "7", "WORLD_SIZE": "99", "EVENKEEL_ATTEMPT": "99", "POD_IP": "forged"},
        "nodes": 2,
        "checkpoint_uri": "s3://b/p",
        "labels": {"project": "x", "evenkeel.io/job": "forged"},
        "priority_class": "high",
    }
    attempt = Attempt(
        job_id="job-1",
        attempt=3,
        state=AttemptState.STARTING,
        cluster="research-eks",
        namespace="evenkeel-jobs",
        pool="p5-workers",
        nodes=(),
        node_names=("hyperpod-i-1", "hyperpod-i-2"),
        accelerators=16,
        admitted_at=A_MOMENT,
        decision_id="dec-1",
    )
    resume = "attempt=2/step=000000020/manifest.json"
    return LaunchSpec(JobSpec.model_validate({**facts, **changes}), attempt, resume, "trainer")


def pod_of(job: Any) -> Any:
    return job["spec"]["template"]["spec"]


@pytest.mark.parametrize("changes", [{}, {"accelerators_per_node": 0, "args": (), "priority_class": "", "labels": {}}])
def test_manifests_are_valid_for_real_api(changes: dict[str, Any]) -> None:
    for manifest in (
        manifests.job(a_spec(**changes), "research", "nvidia.com/gpu"),
        manifests.service(a_spec(**changes), "research"),
    ):
        kubernetes_validate.validate(manifest, "1.33", strict=True)


def spec_with_claim(rules: ProofRules) -> LaunchSpec:
    spec = a_spec(checkpoint_uri="file:///fsx/llama/7b", checkpoint_claim="fsx", env={"EVENKEEL_RESUME_FROM": "forged"})
    return replace(spec, resume_from="", proof_rules=rules)


def test_checkpoint_claim_is_mounted_at_the_path_of_its_uri() -> None:
    manifest = manifests.job(spec_with_claim(ProofRules(None, False, False)), "research", "nvidia.com/gpu")

    kubernetes_validate.validate(manifest, "1.33", strict=True)
    pod = pod_of(manifest)
    assert pod["volumes"][1] == {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "fsx"}}
    assert pod["containers"][0]["volumeMounts"][1] == {"name": "checkpoints", "mountPath": "/fsx"}


def test_pod_mounts_claims_read_only_and_scratch_folders() -> None:
    spec = a_spec(
        checkpoint_uri="file:///fsx/llama",
        checkpoint_claim="fsx",
        volumes=[
            {"claim": "data", "mountPath": "/data"},
            {"claim": "data", "mountPath": "/out", "subPath": "results", "readOnly": False},
            {"claim": "fsx", "mountPath": "/models"},
        ],
        scratch=[{"mountPath": "/scratch", "sizeGib": 100}],
        image_pull_secrets=["registry"],
        run_as_user=2000,
        run_as_group=3000,
        fs_group=3001,
        shared_memory_gib=64,
        huge_pages_mib_per_node=1024,
    )
    manifest = manifests.job(spec, "research", "nvidia.com/gpu")

    kubernetes_validate.validate(manifest, "1.33", strict=True)
    pod = pod_of(manifest)
    # One volume for each claim: a pod that attaches a claim twice may never start.
    assert pod["volumes"] == [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}},
        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "fsx"}},
        {"name": "claim-1", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "scratch-0", "emptyDir": {"sizeLimit": "100Gi"}},
    ]
    assert pod["containers"][0]["volumeMounts"][1:] == [
        {"name": "checkpoints", "mountPath": "/fsx"},
        {"name": "claim-1", "mountPath": "/data", "readOnly": True},
        {"name": "claim-1", "mountPath": "/out", "subPath": "results"},
        {"name": "checkpoints", "mountPath": "/models", "readOnly": True},
        {"name": "scratch-0", "mountPath": "/scratch"},
    ]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    ids = {name: pod["securityContext"][name] for name in ("runAsUser", "runAsGroup", "fsGroup", "runAsNonRoot")}
    assert ids == {"runAsUser": 2000, "runAsGroup": 3000, "fsGroup": 3001, "runAsNonRoot": True}
    assert pod["containers"][0]["resources"]["limits"]["hugepages-2Mi"] == "1024Mi"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (ProofRules(None, accepts_convention=False, may_start_over=False), {}),
        (
            ProofRules(Distrust(after=A_MOMENT, through_attempt=2), accepts_convention=True, may_start_over=True),
            {
                "EVENKEEL_DISTRUST_AFTER": "2026-11-03T10:15:02.000000Z",
                "EVENKEEL_DISTRUST_THROUGH": "2",
                "EVENKEEL_ACCEPT_CONVENTION": "1",
                "EVENKEEL_START_OVER": "1",
            },
        ),
        (
            ProofRules(
                Distrust(after=None, through_attempt=2, requirement=CheckpointRequirement.EVIDENCE), False, False
            ),
            {"EVENKEEL_DISTRUST_THROUGH": "2", "EVENKEEL_DISTRUST_REQUIREMENT": "EVIDENCE"},
        ),
        (
            ProofRules(None, False, False, tuple(ResumePoint(attempt=1, step=at, manifest="") for at in (20, 30))),
            {"EVENKEEL_DAMAGED_CHECKPOINTS": "1/20,1/30"},
        ),
    ],
)
def test_rank_0_gets_the_rules_to_choose_a_checkpoint(rules: ProofRules, expected: dict[str, str]) -> None:
    (container,) = pod_of(manifests.job(spec_with_claim(rules), "research", "nvidia.com/gpu"))["containers"]

    known = ("EVENKEEL_JOB_ID", "EVENKEEL_ATTEMPT", "EVENKEEL_CHECKPOINT_URI")
    document = {entry["name"]: entry["value"] for entry in container["env"] if entry["name"].startswith("EVENKEEL_")}
    assert {name: value for name, value in document.items() if name not in known} == expected


def test_kubernetes_never_restarts_the_pods() -> None:
    job = manifests.job(a_spec(), "research", "nvidia.com/gpu")

    spec = job["spec"]
    assert (spec["backoffLimit"], spec["podReplacementPolicy"], spec["completionMode"]) == (0, "Failed", "Indexed")
    assert (spec["completions"], spec["parallelism"]) == (2, 2)
    assert "ttlSecondsAfterFinished" not in spec
    assert pod_of(job)["restartPolicy"] == "Never"
    assert job["metadata"]["name"] == "job-1-a3"


def test_each_node_of_the_attempt_gets_one_pod() -> None:
    affinity = pod_of(manifests.job(a_spec(), "research", "nvidia.com/gpu"))["affinity"]

    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [
        {
            "matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["hyperpod-i-1", "hyperpod-i-2"]}
            ]
        }
    ]
    (apart,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == {"evenkeel.io/job": "job-1", "evenkeel.io/attempt": "3"}


def test_pods_meet_the_restricted_security_standard() -> None:
    pod = pod_of(manifests.job(a_spec(), "research", "nvidia.com/gpu"))

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert [set(volume) for volume in pod["volumes"]] == [{"name", "emptyDir"}]
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("resource", "accelerators", "interfaces"),
    [("nvidia.com/gpu", 8, 32), ("nvidia.com/gpu", 8, 4), ("aws.amazon.com/neuron", 16, 8)],
)
def test_pods_request_efa_interfaces_and_huge_pages(resource: str, accelerators: int, interfaces: int) -> None:
    spec = replace(a_spec(accelerators_per_node=accelerators), network=EfaRequest(interfaces, 5120))

    manifest = manifests.job(spec, "research", resource)

    kubernetes_validate.validate(manifest, "1.33", strict=True)
    pod = pod_of(manifest)
    (container,) = pod["containers"]
    assert container["resources"] == {
        "limits": {resource: str(accelerators), "vpc.amazonaws.com/efa": str(interfaces), "hugepages-2Mi": "5120Mi"},
        "requests": {"cpu": "1"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }
    assert {"name": "shared-memory", "emptyDir": {"medium": "Memory"}} in pod["volumes"]
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]


def test_pods_without_huge_pages_request_only_efa_interfaces() -> None:
    spec = replace(a_spec(), network=EfaRequest(16))

    (container,) = pod_of(manifests.job(spec, "research", "nvidia.com/gpu"))["containers"]

    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "16"}}


def test_pods_of_training_operators_request_the_same_network() -> None:
    spec = replace(a_spec(), network=EfaRequest(32, 5120))
    spec = replace(spec, attempt=spec.attempt.replace(kind=WorkloadKind.PYTORCH_JOB))

    job = operator_manifests.workload(spec, "research", "nvidia.com/gpu")

    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["vpc.amazonaws.com/efa"] == "32"
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_capacity_pods_request_the_interfaces_of_their_nodes() -> None:
    spec = CapacitySpec("c", "a", "job-a-b1", "burst", 2, 8, "nvidia.com/gpu", "pause", efa=32)

    (container,) = pod_of(manifests.capacity_job(spec, "f"))["containers"]
    (without,) = pod_of(manifests.capacity_job(replace(spec, efa=0), "f"))["containers"]

    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32"}}
    assert without["resources"] == {"limits": {"nvidia.com/gpu": "8"}}


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ({}, {}),
        (
            {"required_network_level": "layer-3"},
            {"kueue.x-k8s.io/podset-required-topology": "topology.k8s.aws/network-node-layer-3"},
        ),
        (
            {"preferred_network_level": "ultra-server"},
            {"kueue.x-k8s.io/podset-preferred-topology": "topology.k8s.aws/ultraserver-id"},
        ),
    ],
)
def test_required_network_level_becomes_an_annotation_for_kueue(
    network: dict[str, str], expected: dict[str, str]
) -> None:
    """https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-operate-console-ui-governance-tasks-scheduling.html"""
    spec = a_spec(**network)

    def topology(local_queue: str) -> dict[str, str]:
        launched = replace(spec, attempt=spec.attempt.replace(local_queue=local_queue))
        annotations = manifests.job(launched, "fleet", "nvidia.com/gpu")["spec"]["template"]["metadata"]["annotations"]
        return {key: value for key, value in annotations.items() if "topology" in key}

    assert topology("team-a") == expected
    assert topology("") == {}


def test_node_is_read_with_its_efa_interfaces_and_huge_pages() -> None:
    offers = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "10256Mi"}
    item = {"metadata": {"name": "n"}, "status": {"allocatable": offers}}

    node = node_objects.read_node("c", item)

    assert (node.efa, node.huge_pages_mib) == (32, 10_256)


@pytest.mark.parametrize(
    ("labels", "layers", "server"),
    [
        ({}, (), ""),
        ({"network-node-layer-1": "nn-1", "network-node-layer-2": "nn-2"}, ("nn-1", "nn-2"), ""),
        ({"network-node-layer-1": "nn-1", "network-node-layer-3": "nn-3"}, ("nn-1",), ""),
        ({"network-node-layer-2": "nn-2", "ultraserver-id": "us-1"}, (), "us-1"),
    ],
)
def test_node_labels_give_its_network_location(labels: dict[str, str], layers: tuple[str, ...], server: str) -> None:
    item = {"metadata": {"name": "n", "labels": {f"topology.k8s.aws/{key}": value for key, value in labels.items()}}}
    node = Node(life=NodeLife.from_key("c/i-00000001/0"), kubernetes=node_objects.read_node("c", item))

    stored = FleetNode.from_node(node, NONE, A_MOMENT)

    assert (stored.network_layers, stored.ultra_server) == (layers, server)
    bare = node_objects.read_node("c", {"metadata": {"name": "n"}})
    assert (bare.efa, bare.huge_pages_mib) == (0, 0)


def test_job_cannot_override_variables_of_the_training_contract() -> None:
    (container,) = pod_of(manifests.job(a_spec(), "research", "nvidia.com/gpu"))["containers"]

    document = {entry["name"]: entry.get("value") or entry["valueFrom"] for entry in container["env"]}
    assert document == {
        "SEED": "7",
        "EVENKEEL_JOB_ID": "job-1",
        "EVENKEEL_ATTEMPT": "3",
        "EVENKEEL_CHECKPOINT_URI": "s3://b/p",
        "EVENKEEL_RESUME_FROM": "attempt=2/step=000000020/manifest.json",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "job-1-a3-0.job-1-a3",
        "MASTER_PORT": "29500",
        "POD_IP": {"fieldRef": {"fieldPath": "status.podIP"}},
    }
    assert len(container["env"]) == len(document)
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8"}}


def test_elastic_pods_for_kueue_read_their_number_from_config_map() -> None:
    spec = a_spec(nodes=4, elastic={"min_nodes": 2, "max_nodes": 8, "step": 2})
    attempt = spec.attempt.replace(size=4, requested_size=4, node_names=(), local_queue="nlp", workload_uid="uid-1")

    manifest = operator_manifests.workload(replace(spec, attempt=attempt), "research", "nvidia.com/gpu")
    config_map = manifests.size_config_map(attempt.at_size(2), "research")

    for document in (manifest, config_map):
        kubernetes_validate.validate(document, "1.33", strict=True)
    notes = manifest["metadata"]["annotations"]
    assert notes["kueue.x-k8s.io/job-min-parallelism"] == "2"
    assert notes["kueue.x-k8s.io/job-completions-equal-parallelism"] == "true"
    (container,) = pod_of(manifest)["containers"]
    entries = [entry for entry in container["env"] if entry["name"] == "WORLD_SIZE"]
    assert entries == [
        {"name": "WORLD_SIZE", "valueFrom": {"configMapKeyRef": {"name": "job-1-a3", "key": "worldSize"}}}
    ]
    assert (config_map["metadata"]["name"], config_map["data"]) == ("job-1-a3", {"worldSize": "2"})
    assert config_map["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


def test_job_cannot_override_labels_of_evenkeel() -> None:
    labels = manifests.job(a_spec(), "research", "nvidia.com/gpu")["spec"]["template"]["metadata"]["labels"]

    assert labels == {
        "project": "x",
        "app.kubernetes.io/managed-by": "evenkeel",
        "evenkeel.io/job": "job-1",
        "evenkeel.io/attempt": "3",
        "evenkeel.io/fleet": "research",
    }


def test_service_publishes_names_of_ranks_before_they_are_ready() -> None:
    service = manifests.service(a_spec(), "research")

    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert service["metadata"]["name"] == pod_of(manifests.job(a_spec(), "r", "nvidia.com/gpu"))["subdomain"]


# ---------------------------------------------------------------- reading


def a_pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"nodeName": "n"}, "status": {"phase": "Failed", **status}}


@pytest.mark.parametrize(
    ("status", "reason", "exit_code"),
    [
        (
            {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
            "OOMKilled",
            137,
        ),
        ({"reason": "NodeLost"}, "NodeLost", None),
        ({"reason": "UnexpectedAdmissionError"}, "UnexpectedAdmissionError", None),
        (
            {
                "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}],
                "containerStatuses": [{"state": {"terminated": {"exitCode": 143, "reason": "Error"}}}],
            },
            "DeletionByTaintManager",
            143,
        ),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            "ImagePullBackOff",
            None,
        ),
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
            },
            "Unschedulable",
            None,
        ),
        ({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}, "", None),
        ({"containerStatuses": None, "conditions": None}, "", None),
    ],
)
def test_most_specific_reason_of_a_pod_is_kept(status: dict[str, Any], reason: str, exit_code: int | None) -> None:
    pod = workloads.read_pod(a_pod(**status))

    assert (pod.reason, pod.exit_code) == (reason, exit_code)


@pytest.mark.parametrize(("reason", "expected"), [("PodFailurePolicy", True), ("BackoffLimitExceeded", False)])
@pytest.mark.parametrize("kind", ["Failed", "FailureTarget"])
def test_eviction_of_a_pod_is_read_from_its_job(kind: str, reason: str, expected: bool) -> None:
    condition = {"type": kind, "status": "True", "reason": reason}

    assert workloads.was_disrupted({"status": {"conditions": [condition]}}) is expected


def test_node_object_without_spec_or_status_is_read_without_error() -> None:
    node = node_objects.read_node(
        "research-eks", {"metadata": {"name": "n", "creationTimestamp": "2026-11-03T10:15:02Z"}, "spec": None}
    )

    assert (node.instance_id, node.is_ready, node.accelerators, node.taints) == (None, False, 0, ())
    assert (node.not_ready_since, node.ready_since) == (A_MOMENT, None)


def test_ready_node_shows_since_when_it_is_ready() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-03T10:15:02Z"}
    node = node_objects.read_node("research-eks", {"metadata": {"name": "n"}, "status": {"conditions": [ready]}})

    assert (node.is_ready, node.ready_since, node.not_ready_since) == (True, A_MOMENT, None)


def test_cordon_annotation_counts_only_on_a_cordoned_node() -> None:
    item = {"metadata": {"name": "n", "annotations": {"evenkeel.io/incident": "inc-1"}}, "spec": {}, "status": {}}

    assert node_objects.read_node("c", item).incident_id is None
    assert node_objects.read_node("c", {**item, "spec": {"unschedulable": True}}).incident_id == "inc-1"


def test_burst_node_is_read_with_pool_and_neuron_devices() -> None:
    item = {
        "metadata": {
            "name": "ip-10-0-0-1",
            "labels": {"karpenter.sh/nodepool": "burst"},
            "creationTimestamp": "2026-11-03T10:15:02Z",
        },
        "spec": {"providerID": "aws:///us-west-2a/i-0123456789abcdef0"},
        "status": {"allocatable": {"aws.amazon.com/neuron": "16", "cpu": "190"}},
    }

    node = node_objects.read_node("burst-eks", item)

    assert (node.pool, node.instance_id, node.hyperpod_cluster_id) == ("burst", "i-0123456789abcdef0", None)
    assert (node.accelerators, node.accelerator_resource) == (16, "aws.amazon.com/neuron")
    assert node.created_at == A_MOMENT, "read the launch time: without it, the node is not part of the fleet"
    assert [joined.pool for joined in join_nodes([node], [], "research-eks")] == ["burst"]


@pytest.mark.parametrize("labels", [{}, {"evenkeel.io/job": "j"}, {"evenkeel.io/job": "j", "evenkeel.io/attempt": "x"}])
def test_pod_with_incomplete_or_invalid_labels_belongs_to_no_attempt(labels: dict[str, str]) -> None:
    assert workloads.attempt_of({"metadata": {"name": "n", "labels": labels}}) is None


def test_secret_is_referenced_and_overrides_no_contract_variable() -> None:
    spec = a_spec()
    secrets = {
        "WANDB_API_KEY": SecretKey(secret="wandb", key="api-key"),
        "WORLD_SIZE": SecretKey(secret="wandb", key="size"),
    }
    job = manifests.job(replace(spec, job_spec=spec.job_spec.replace(secret_env=secrets)), "research", "nvidia.com/gpu")

    (container,) = pod_of(job)["containers"]
    document = {entry["name"]: entry for entry in container["env"]}
    assert document["WANDB_API_KEY"] == {
        "name": "WANDB_API_KEY",
        "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "api-key"}},
    }
    assert document["WORLD_SIZE"]["value"] == "2"


def test_pods_tolerate_the_taints_of_their_job_type() -> None:
    borne = ({"key": "dedicated", "value": "hyperpod", "effect": "NoSchedule"}, {"key": "spot", "operator": "Exists"})
    manifest = manifests.job(a_spec(tolerations=borne), "research", "nvidia.com/gpu")

    kubernetes_validate.validate(manifest, "1.33", strict=True)
    assert pod_of(manifest)["tolerations"] == [
        {"key": "dedicated", "operator": "Equal", "value": "hyperpod", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists"},
    ]
