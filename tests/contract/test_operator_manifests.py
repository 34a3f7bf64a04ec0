"""Manifests for training operators: only published options, and pods that Kubernetes accepts.

The lists below hold the options by name and type, from the sources named in `adapters/operators.py`. For Kubeflow's
PyTorchJob they hold everything that its CRD has under `spec`, without the pod template. HyperPod's CRD is not
published, so its list comes from the model in HyperPod's SDK. Other fields are refused.
"""

from typing import Any

import kubernetes_validate
import pytest
from jsonschema import Draft202012Validator

from evenkeel.adapters import operators
from evenkeel.domain.elastic.sizes import ElasticTerms
from evenkeel.domain.jobs.policy import JobPolicy
from tests.contract.test_manifests import a_spec

Json = dict[str, Any]

WHOLE, TEXT, YES_OR_NO, ANY = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}, {"type": "object"}


def an_object(required: tuple[str, ...] = (), **fields: Json) -> Json:
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def a_list(of: Json) -> Json:
    return {"type": "array", "items": of}


KUBEFLOW = an_object(
    ("pytorchReplicaSpecs",),
    elasticPolicy=an_object(
        maxReplicas=WHOLE,
        maxRestarts=WHOLE,
        metrics=a_list(ANY),
        minReplicas=WHOLE,
        nProcPerNode=WHOLE,
        rdzvBackend=TEXT,
        rdzvConf=a_list(ANY),
        rdzvHost=TEXT,
        rdzvId=TEXT,
        rdzvPort=WHOLE,
        standalone=YES_OR_NO,
    ),
    nprocPerNode=TEXT,
    pytorchReplicaSpecs={
        "type": "object",
        "propertyNames": {"enum": ["Master", "Worker"]},
        "additionalProperties": an_object(replicas=WHOLE, restartPolicy=TEXT, template=ANY),
    },
    runPolicy=an_object(
        activeDeadlineSeconds=WHOLE,
        backoffLimit=WHOLE,
        cleanPodPolicy={"enum": ["Running", "All", "None"]},
        managedBy=TEXT,
        schedulingPolicy=ANY,
        suspend=YES_OR_NO,
        ttlSecondsAfterFinished=WHOLE,
    ),
)
HYPERPOD = an_object(
    nprocPerNode=TEXT,
    replicaSpecs=a_list(an_object(("name",), name=TEXT, replicas=WHOLE, maxReplicas=WHOLE, spares=WHOLE, template=ANY)),
    elasticPolicy=an_object(
        minReplicas=WHOLE,
        maxReplicas=WHOLE,
        replicaIncrementStep=WHOLE,
        replicaDiscreteValues=a_list(WHOLE),
        scalingTimeoutInSeconds=WHOLE,
        gracefulShutdownTimeoutInSeconds=WHOLE,
        faultyScaleDownTimeoutInSeconds=WHOLE,
    ),
    runPolicy=an_object(
        activeDeadlineSeconds=WHOLE,
        cleanPodPolicy=TEXT,
        faultDeadlineSeconds=WHOLE,
        jobMaxRetryCount=WHOLE,
        logMonitoringConfiguration=a_list(ANY),
        restartPolicy=an_object(
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

IN_STEPS = {"elastic": {"min_nodes": 2, "max_nodes": 8, "step": 2}}
OF_SIZES = {"elastic": {"min_nodes": 1, "max_nodes": 8, "sizes": [1, 2, 8]}}
CASES: list[Json] = [{}, IN_STEPS, OF_SIZES]


def of_kubeflow(**changes: Any) -> Json:
    return operators.pytorch_job(a_spec(**changes), "research", "nvidia.com/gpu")


def of_hyperpod(**changes: Any) -> Json:
    return operators.hyperpod_pytorch_job(a_spec(**changes), "research", "nvidia.com/gpu", ElasticTerms(), JobPolicy())


@pytest.mark.parametrize("changes", CASES)
def test_the_manifests_stay_within_the_published_options(changes: Json) -> None:
    Draft202012Validator(KUBEFLOW).validate(of_kubeflow(**changes)["spec"])
    Draft202012Validator(HYPERPOD).validate(of_hyperpod(**changes)["spec"])


@pytest.mark.parametrize("changes", CASES)
def test_their_pods_are_valid_for_the_real_api(changes: Json) -> None:
    templates = [
        of_kubeflow(**changes)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"],
        of_hyperpod(**changes)["spec"]["replicaSpecs"][0]["template"],
    ]

    for template in templates:
        whole = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pods"}, "template": template}
        kubernetes_validate.validate(whole, "1.33", strict=True)


def test_the_bounds_of_an_elastic_job_are_the_operators_bounds() -> None:
    kubeflow, hyperpod = of_kubeflow(**IN_STEPS)["spec"], of_hyperpod(**IN_STEPS)["spec"]

    assert kubeflow["elasticPolicy"] == {"minReplicas": 2, "maxReplicas": 8}
    assert kubeflow["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2
    assert hyperpod["elasticPolicy"] == {
        "minReplicas": 2,
        "maxReplicas": 8,
        "replicaIncrementStep": 2,
        "scalingTimeoutInSeconds": 0,
        "gracefulShutdownTimeoutInSeconds": 30,
        "faultyScaleDownTimeoutInSeconds": 120,
    }
    assert hyperpod["replicaSpecs"][0]["maxReplicas"] == 8
    assert hyperpod["runPolicy"]["restartPolicy"]["scaleUpSnoozeTimeInSeconds"] == 600


def test_elastic_job_has_sizes_or_a_step() -> None:
    policy = of_hyperpod(**OF_SIZES)["spec"]["elasticPolicy"]

    assert policy["replicaDiscreteValues"] == [1, 2, 8]
    assert "replicaIncrementStep" not in policy


def test_a_job_of_one_size_has_no_elastic_policy() -> None:
    assert "elasticPolicy" not in of_kubeflow()["spec"]
    assert "elasticPolicy" not in of_hyperpod()["spec"]
    assert "maxReplicas" not in of_hyperpod()["spec"]["replicaSpecs"][0]


def test_the_operator_places_the_pods_and_names_the_ranks() -> None:
    template = of_kubeflow(**IN_STEPS)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    container = template["spec"]["containers"][0]
    names = {each["name"] for each in container["env"]}

    assert container["name"] == "pytorch"  # by which Kubeflow's operator finds it
    assert "nodeAffinity" not in template["spec"]["affinity"]
    assert names.isdisjoint({"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    assert {"EVENKEEL_JOB_ID", "EVENKEEL_ATTEMPT", "EVENKEEL_CHECKPOINT_URI", "EVENKEEL_RESUME_FROM"} <= names
