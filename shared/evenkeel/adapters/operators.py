"""Manifests of an attempt for training operators: HyperPod's and Kubeflow's. Pure functions.

The pods are equal to those of the Indexed Job. The operator places them, assigns the ranks, and changes their number
within the given limits. So neither the nodes nor the world size are fixed. Evenkeel launches Indexed Jobs; no function
sends these manifests yet.

Sources of the fields: kubeflow/training-operator, branch release-1.9,
`manifests/base/crds/kubeflow.org_pytorchjobs.yaml`
(Apache-2.0); aws/sagemaker-hyperpod-cli,
`src/sagemaker/hyperpod/training/config/hyperpod_pytorch_job_unified_config.py`
(Apache-2.0), because the resource definition of HyperPod's operator is not published.
"""

import copy
from typing import Any, TypeAlias

from evenkeel.adapters import manifests
from evenkeel.domain.elastic.sizes import ElasticTerms
from evenkeel.domain.jobs.policy import JobPolicy
from evenkeel.ports import LaunchSpec

Json: TypeAlias = dict[str, Any]

_SET_BY_OPERATOR = frozenset({"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
"""Variables that each operator sets itself for the current number of pods."""


def pytorch_job(spec: LaunchSpec, fleet: str, accelerator_resource: str) -> Json:
    """Return Kubeflow's PyTorchJob for an attempt.

    An elastic job may have any size between its limits, because PyTorchJob has no size steps. `backoffLimit: 0`
    prevents restarts by the operator.
    """
    elastic = spec.job.elastic
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(spec, fleet),
        "spec": {
            **({"elasticPolicy": _replica_bounds(spec)} if elastic else {}),
            "pytorchReplicaSpecs": {
                "Worker": {
                    "replicas": spec.attempt.ranks,
                    "restartPolicy": "Never",
                    "template": _template(spec, fleet, accelerator_resource, container="pytorch"),
                }
            },
            # Ended pods stay, so that Evenkeel can read their logs and exit codes.
            "runPolicy": {"backoffLimit": 0, "cleanPodPolicy": "Running", "suspend": False},
        },
    }


def hyperpod_pytorch_job(
    spec: LaunchSpec, fleet: str, accelerator_resource: str, terms: ElasticTerms, jobs: JobPolicy
) -> Json:
    """Return HyperPod's HyperPodPyTorchJob for an attempt. Its container starts with `hyperpodrun`."""
    elastic = spec.job.elastic
    policy: Json = {}
    if elastic:
        policy = {
            **_replica_bounds(spec),
            # Without sizes or a step, the operator's own default step would apply.
            **(
                {"replicaDiscreteValues": list(elastic.sizes)}
                if elastic.sizes
                else {"replicaIncrementStep": elastic.step or 1}
            ),
            "scalingTimeoutInSeconds": round(terms.scaling_timeout_seconds),
            "gracefulShutdownTimeoutInSeconds": spec.job.grace_seconds,
            "faultyScaleDownTimeoutInSeconds": round(terms.spare_wait_seconds),
        }
    restarts = jobs.application_restarts if spec.job.max_restarts is None else spec.job.max_restarts
    return {
        "apiVersion": "sagemaker.amazonaws.com/v1",
        "kind": "HyperPodPyTorchJob",
        "metadata": _metadata(spec, fleet),
        "spec": {
            "nprocPerNode": "auto",
            **({"elasticPolicy": policy} if policy else {}),
            "replicaSpecs": [
                {
                    "name": "pods",
                    "replicas": spec.attempt.ranks,
                    **({"maxReplicas": elastic.max_nodes} if elastic else {}),
                    "template": _template(spec, fleet, accelerator_resource, container="trainer"),
                }
            ],
            "runPolicy": {
                "cleanPodPolicy": "None",
                "startupDeadlineSeconds": jobs.running_deadline_seconds,
                "restartPolicy": {
                    "evalPeriodSeconds": jobs.restart_backoff_max_seconds,
                    "maxFullJobRestarts": restarts,
                    "scaleUpSnoozeTimeInSeconds": round(terms.snooze_seconds),
                },
                # Keep the job, so that Evenkeel can read its end before it deletes the job.
                "ttlSecondsAfterFinished": -1,
            },
        },
    }


def _metadata(spec: LaunchSpec, fleet: str) -> Json:
    return {
        "name": spec.attempt.workload_name,
        "namespace": spec.attempt.namespace,
        "labels": manifests.labels(spec, fleet),
    }


def _replica_bounds(spec: LaunchSpec) -> Json:
    assert spec.job.elastic is not None  # the caller checked it
    return {"minReplicas": spec.job.elastic.min_nodes, "maxReplicas": spec.job.elastic.max_nodes}


def _template(spec: LaunchSpec, fleet: str, accelerator_resource: str, *, container: str) -> Json:
    """Return the pod template of the Indexed Job, without the fields that fix its nodes and ranks."""
    template: Json = copy.deepcopy(manifests.job(spec, fleet, accelerator_resource)["spec"]["template"])
    pod = template["spec"]
    pod.pop("subdomain", None)
    pod.get("affinity", {}).pop("nodeAffinity", None)
    first = pod["containers"][0]
    first["name"] = container
    first["env"] = [each for each in first["env"] if each["name"] not in _SET_BY_OPERATOR]
    return template
