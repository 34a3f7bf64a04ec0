"""An attempt as a job of a training operator, for clusters that have one: HyperPod's and Kubeflow's. Pure.

The pods are those of the Indexed Job, but the operator places them, names the ranks and changes their number within the
bounds given here; so neither nodes nor world size are fixed. Evenkeel's own attempts are Indexed Jobs; no function of
its sends these manifests yet.

Sources of the fields: kubeflow/training-operator, branch release-1.9,
`manifests/base/crds/kubeflow.org_pytorchjobs.yaml`
(Apache-2.0); aws/sagemaker-hyperpod-cli,
`src/sagemaker/hyperpod/training/config/hyperpod_pytorch_job_unified_config.py`
(Apache-2.0), since the definition itself of HyperPod's operator is not published.
"""

import copy
from typing import Any, TypeAlias

from evenkeel.adapters import workloads
from evenkeel.domain.elastic.sizes import ElasticTerms
from evenkeel.domain.jobs.policy import JobPolicy
from evenkeel.ports import LaunchSpec

Json: TypeAlias = dict[str, Any]

_OF_THE_OPERATOR = frozenset({"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
"""Variables that each operator sets by itself, for the pods that there are."""


def pytorch_job(spec: LaunchSpec, fleet: str, accelerator_resource: str) -> Json:
    """Kubeflow's PyTorchJob. It changes size between the two bounds by any number: it knows no steps.

    `backoffLimit: 0` keeps it from running a restart loop of its own.
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
            # Ended pods stay: their logs and exit codes are read first.
            "runPolicy": {"backoffLimit": 0, "cleanPodPolicy": "Running", "suspend": False},
        },
    }


def hyperpod_pytorch_job(
    spec: LaunchSpec, fleet: str, accelerator_resource: str, terms: ElasticTerms, jobs: JobPolicy
) -> Json:
    """HyperPod's HyperPodPyTorchJob, whose container starts with `hyperpodrun`."""
    elastic = spec.job.elastic
    policy: Json = {}
    if elastic:
        policy = {
            **_replica_bounds(spec),
            # One or the other; without either the operator's own step would count.
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
                # For ever: what it ended with is read before it is cleaned up.
                "ttlSecondsAfterFinished": -1,
            },
        },
    }


def _metadata(spec: LaunchSpec, fleet: str) -> Json:
    return {
        "name": spec.attempt.workload_name,
        "namespace": spec.attempt.namespace,
        "labels": workloads.labels(spec, fleet),
    }


def _replica_bounds(spec: LaunchSpec) -> Json:
    assert spec.job.elastic is not None  # the caller looked
    return {"minReplicas": spec.job.elastic.min_nodes, "maxReplicas": spec.job.elastic.max_nodes}


def _template(spec: LaunchSpec, fleet: str, accelerator_resource: str, *, container: str) -> Json:
    """Return the pods of the Indexed Job, without what only holds where Evenkeel places them."""
    template: Json = copy.deepcopy(workloads.job(spec, fleet, accelerator_resource)["spec"]["template"])
    pod = template["spec"]
    pod.pop("subdomain", None)
    pod.get("affinity", {}).pop("nodeAffinity", None)
    first = pod["containers"][0]
    first["name"] = container
    first["env"] = [each for each in first["env"] if each["name"] not in _OF_THE_OPERATOR]
    return template
