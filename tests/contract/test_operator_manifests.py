"""Manifests for training operators: only published options, and pods that Kubernetes accepts.

The lists below hold the options by name and type, from the sources named in `adapters/operator_manifests.py`. For
JobSet and PyTorchJob they hold everything that the definition has under `spec`, without the templates. HyperPod's
definition is not published, so its list comes from the model in HyperPod's SDK. Other fields are refused.
"""

from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
from jsonschema import Draft202012Validator

from evenkeel.adapters import operator_manifests, workloads
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from tests.contract.test_manifests import a_spec

Json = dict[str, Any]

WHOLE, TEXT, YES_OR_NO, ANY = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}, {"type": "object"}


def object_schema(required: tuple[str, ...] = (), **fields: Json) -> Json:
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def array_schema(items: Json) -> Json:
    return {"type": "array", "items": items}


KUBEFLOW = object_schema(
    ("pytorchReplicaSpecs",),
    elasticPolicy=object_schema(
        maxReplicas=WHOLE,
        maxRestarts=WHOLE,
        metrics=array_schema(ANY),
        minReplicas=WHOLE,
        nProcPerNode=WHOLE,
        rdzvBackend=TEXT,
        rdzvConf=array_schema(ANY),
        rdzvHost=TEXT,
        rdzvId=TEXT,
        rdzvPort=WHOLE,
        standalone=YES_OR_NO,
    ),
    nprocPerNode=TEXT,
    pytorchReplicaSpecs={
        "type": "object",
        "propertyNames": {"enum": ["Master", "Worker"]},
        "additionalProperties": object_schema(replicas=WHOLE, restartPolicy=TEXT, template=ANY),
    },
    runPolicy=object_schema(
        activeDeadlineSeconds=WHOLE,
        backoffLimit=WHOLE,
        cleanPodPolicy={"enum": ["Running", "All", "None"]},
        managedBy=TEXT,
        schedulingPolicy=ANY,
        suspend=YES_OR_NO,
        ttlSecondsAfterFinished=WHOLE,
    ),
)
HYPERPOD = object_schema(
    nprocPerNode=TEXT,
    replicaSpecs=array_schema(
        object_schema(("name",), name=TEXT, replicas=WHOLE, maxReplicas=WHOLE, spares=WHOLE, template=ANY)
    ),
    elasticPolicy=object_schema(
        minReplicas=WHOLE,
        maxReplicas=WHOLE,
        replicaIncrementStep=WHOLE,
        replicaDiscreteValues=array_schema(WHOLE),
        scalingTimeoutInSeconds=WHOLE,
        gracefulShutdownTimeoutInSeconds=WHOLE,
        faultyScaleDownTimeoutInSeconds=WHOLE,
    ),
    runPolicy=object_schema(
        activeDeadlineSeconds=WHOLE,
        cleanPodPolicy=TEXT,
        faultDeadlineSeconds=WHOLE,
        jobMaxRetryCount=WHOLE,
        logMonitoringConfiguration=array_schema(ANY),
        restartPolicy=object_schema(
            ("evalPeriodSeconds",),
            evalPeriodSeconds=WHOLE,
            maxFullJobRestarts=WHOLE,
            numRestartBeforeFullJobRestart=WHOLE,
            maxNumRepeatOffendersToAvoid=WHOLE,
            scaleUpSnoozeTimeInSeconds=WHOLE,
        ),
        startupDeadlineSeconds=WHOLE,
        suspend=YES_OR_NO,
        ttlSecondsAfterFinished=WHOLE,
        workloadMode=TEXT,
    ),
)

JOBSET = object_schema(
    ("replicatedJobs",),
    replicatedJobs=array_schema(
        object_schema(
            ("name", "template"), name=TEXT, replicas=WHOLE, groupName=TEXT, dependsOn=array_schema(ANY), template=ANY
        )
    ),
    network=object_schema(enableDNSHostnames=YES_OR_NO, subdomain=TEXT, publishNotReadyAddresses=YES_OR_NO),
    successPolicy=ANY,
    failurePolicy=object_schema(maxRestarts=WHOLE, restartStrategy=TEXT, rules=array_schema(ANY)),
    startupPolicy=ANY,
    suspend=YES_OR_NO,
    coordinator=ANY,
    managedBy=TEXT,
    ttlSecondsAfterFinished=WHOLE,
)
SPECS = {
    WorkloadKind.JOB_SET: JOBSET,
    WorkloadKind.PYTORCH_JOB: KUBEFLOW,
    WorkloadKind.HYPERPOD_PYTORCH_JOB: HYPERPOD,
}
OF_TWO_SIZES = {"elastic": {"min_nodes": 1, "max_nodes": 8, "sizes": [1, 2, 8]}}

each_kind = pytest.mark.parametrize("kind", list(SPECS))
each_spec = pytest.mark.parametrize("changes", [{}, OF_TWO_SIZES])


def rendered_manifest(kind: WorkloadKind, local_queue: str = "", **changes: Any) -> Json:
    spec = a_spec(**changes)
    spec = replace(spec, attempt=spec.attempt.replace(kind=kind, local_queue=local_queue))
    return operator_manifests.workload(spec, "research", "nvidia.com/gpu")


def templates_of(manifest: Json) -> list[Json]:
    """Return the pod template of each rank."""
    match manifest["kind"]:
        case "JobSet":
            (only,) = manifest["spec"]["replicatedJobs"]
            job = only["template"]["spec"]
            return [job["template"]] * job["completions"]
        case "PyTorchJob":
            groups = manifest["spec"]["pytorchReplicaSpecs"].values()
        case _:
            groups = manifest["spec"]["replicaSpecs"]
    return [group["template"] for group in groups for _ in range(group["replicas"])]


@each_kind
@each_spec
def test_operator_manifest_fits_the_published_schema(kind: WorkloadKind, changes: Json) -> None:
    Draft202012Validator(SPECS[kind]).validate(rendered_manifest(kind, **changes)["spec"])


@each_kind
@each_spec
def test_pods_of_operator_manifests_are_valid_for_real_api(kind: WorkloadKind, changes: Json) -> None:
    for template in templates_of(rendered_manifest(kind, **changes)):
        whole = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pods"}, "template": template}
        kubernetes_validate.validate(whole, "1.33", strict=True)


@each_kind
def test_gang_has_one_pod_per_rank_on_attempt_nodes(kind: WorkloadKind) -> None:
    spec = a_spec()

    templates = templates_of(rendered_manifest(kind))

    assert len(templates) == spec.attempt.ranks == 2
    for template in templates:
        (term,) = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert term["matchExpressions"][0]["values"] == list(spec.attempt.node_names)


@each_kind
def test_operator_never_restarts_pod(kind: WorkloadKind) -> None:
    manifest = rendered_manifest(kind)

    assert {template["spec"]["restartPolicy"] for template in templates_of(manifest)} == {"Never"}
    limits = {
        WorkloadKind.JOB_SET: lambda spec: spec["failurePolicy"]["maxRestarts"],
        WorkloadKind.PYTORCH_JOB: lambda spec: spec["runPolicy"]["backoffLimit"],
        WorkloadKind.HYPERPOD_PYTORCH_JOB: lambda spec: spec["runPolicy"]["restartPolicy"]["maxFullJobRestarts"],
    }
    assert limits[kind](manifest["spec"]) == 0


@each_kind
def test_object_and_pods_name_attempt_and_decision(kind: WorkloadKind) -> None:
    manifest = rendered_manifest(kind)

    for metadata in (manifest["metadata"], *(template["metadata"] for template in templates_of(manifest))):
        assert metadata["labels"]["evenkeel.io/attempt"] == "3"
        assert metadata["annotations"]["evenkeel.io/decision"]


def test_manifest_leaves_rank_variables_to_the_operator_of_hyperpod() -> None:
    kind = WorkloadKind.HYPERPOD_PYTORCH_JOB
    container = templates_of(rendered_manifest(kind))[0]["spec"]["containers"][0]
    names = {variable["name"] for variable in container["env"]}

    assert container["name"] == operator_manifests.container_of(kind)
    assert names.isdisjoint({"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    assert {"EVENKEEL_JOB_ID", "EVENKEEL_ATTEMPT", "EVENKEEL_CHECKPOINT_URI", "EVENKEEL_RESUME_FROM"} <= names


def test_job_set_pods_find_rank_0_by_pod_name() -> None:
    manifest = rendered_manifest(WorkloadKind.JOB_SET)
    name = manifest["metadata"]["name"]
    template = templates_of(manifest)[0]
    variables = {variable["name"]: variable.get("value") for variable in template["spec"]["containers"][0]["env"]}

    assert variables["MASTER_ADDR"] == f"{name}-ranks-0-0.{name}"
    assert template["spec"]["subdomain"] == name


def test_pytorch_job_succeeds_only_if_all_its_pods_succeed() -> None:
    manifest = rendered_manifest(WorkloadKind.PYTORCH_JOB)

    assert list(manifest["spec"]["pytorchReplicaSpecs"]) == ["Worker"]
    assert manifest["spec"]["runPolicy"]["cleanPodPolicy"] == "Running"


def test_pytorch_job_ranks_are_worker_indexes() -> None:
    manifest = rendered_manifest(WorkloadKind.PYTORCH_JOB)
    container = templates_of(manifest)[0]["spec"]["containers"][0]
    variables = {variable["name"]: variable for variable in container["env"]}

    assert container["name"] == "pytorch"
    assert variables["JOB_COMPLETION_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"] == (
        "metadata.labels['training.kubeflow.org/replica-index']"
    )
    assert variables["WORLD_SIZE"]["value"] == "2"
    assert variables["MASTER_ADDR"]["value"] == f"{manifest['metadata']['name']}-worker-0"


@each_kind
def test_kueue_gets_a_suspended_object(kind: WorkloadKind) -> None:
    manifest = rendered_manifest(kind, local_queue="team")

    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert workloads.is_suspended(manifest)
    assert not workloads.is_suspended(rendered_manifest(kind))
