"""Manifests of an attempt for the operators of JobSet, Kubeflow and HyperPod. Pure.

The pods equal the pods of the Indexed Job, on the attempt's nodes. The operator creates them and names their ranks; it
never restarts them. Evenkeel restarts a job as a new attempt on healthy nodes, from a verified checkpoint.

Sources of the fields: kubernetes-sigs/jobset, `api/jobset/v1alpha2/jobset_types.go`; kubeflow/training-operator, branch
release-1.9, `manifests/base/crds/kubeflow.org_pytorchjobs.yaml`; aws/sagemaker-hyperpod-cli,
`src/sagemaker/hyperpod/training/config/hyperpod_pytorch_job_unified_config.py`, because the resource definition of
HyperPod's operator is not published.
"""

import copy

from evenkeel.adapters import manifests
from evenkeel.adapters.object_fields import Json
from evenkeel.adapters.workload_resources import KUBEFLOW_INDEX, RESOURCES
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.ports import LaunchSpec

_RANKS = "ranks"
"""Name of the only group of pods, in the kinds that have named groups."""
_KUBEFLOW_CONTAINER = "pytorch"
"""Kubeflow's operator refuses a replica without a container of this name."""
_SET_BY_HYPERPOD = frozenset({"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
"""Variables that HyperPod's operator sets itself."""


def workload(spec: LaunchSpec, fleet: str, accelerator_resource: str) -> Json:
    """Return the object of an attempt, of the attempt's kind."""
    job = manifests.job(spec, fleet, accelerator_resource)
    match spec.attempt.kind:
        case WorkloadKind.JOB:
            return job
        case WorkloadKind.JOB_SET:
            return _job_set(spec, job)
        case WorkloadKind.PYTORCH_JOB:
            return _pytorch_job(spec, job)
        case WorkloadKind.HYPERPOD_PYTORCH_JOB:
            return _hyperpod_pytorch_job(spec, job)


def container_of(kind: WorkloadKind) -> str:
    """Return the name of the container that trains."""
    return _KUBEFLOW_CONTAINER if kind is WorkloadKind.PYTORCH_JOB else manifests.TRAINER_CONTAINER


def _job_set(spec: LaunchSpec, job: Json) -> Json:
    """Return a JobSet of one Indexed Job. Evenkeel's own Service gives the pods their DNS names."""
    name = spec.attempt.workload_name
    inner = {key: value for key, value in job["spec"].items() if key != "suspend"}  # the JobSet suspends its Job
    _set_master(inner["template"], f"{name}-{_RANKS}-0-0.{name}")
    template = {"metadata": {"labels": inner["template"]["metadata"]["labels"]}, "spec": inner}
    return _object(
        job,
        WorkloadKind.JOB_SET,
        {
            "suspend": _is_suspended(job),
            "network": {"enableDNSHostnames": False},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": _RANKS, "replicas": 1, "template": template}],
        },
    )


def _pytorch_job(spec: LaunchSpec, job: Json) -> Json:
    """Return a PyTorchJob of workers only, whose ranks are their indexes.

    With a master, the operator would call the job succeeded when the master has ended, whatever the workers still do.
    """
    template = _template(job, _KUBEFLOW_CONTAINER)
    _set_master(template, f"{spec.attempt.workload_name}-worker-0")
    index = {"fieldRef": {"fieldPath": f"metadata.labels['{KUBEFLOW_INDEX}']"}}
    template["spec"]["containers"][0]["env"].append({"name": "JOB_COMPLETION_INDEX", "valueFrom": index})
    workers = {"replicas": spec.attempt.ranks, "restartPolicy": "Never", "template": template}
    return _object(
        job,
        WorkloadKind.PYTORCH_JOB,
        {
            "pytorchReplicaSpecs": {"Worker": workers},
            # After a failure, the operator deletes the pods that still run. Ended pods stay, with logs and exit codes.
            "runPolicy": {"backoffLimit": 0, "cleanPodPolicy": "Running", "suspend": _is_suspended(job)},
        },
    )


def _hyperpod_pytorch_job(spec: LaunchSpec, job: Json) -> Json:
    """Return a HyperPodPyTorchJob. The operator needs a container that starts with `hyperpodrun`."""
    template = _template(job, manifests.TRAINER_CONTAINER)
    first_container = template["spec"]["containers"][0]
    first_container["env"] = [
        variable for variable in first_container["env"] if variable["name"] not in _SET_BY_HYPERPOD
    ]
    return _object(
        job,
        WorkloadKind.HYPERPOD_PYTORCH_JOB,
        {
            "nprocPerNode": "auto",
            "replicaSpecs": [{"name": _RANKS, "replicas": spec.attempt.ranks, "template": template}],
            "runPolicy": {
                "cleanPodPolicy": "None",
                "jobMaxRetryCount": 0,
                "restartPolicy": {
                    "evalPeriodSeconds": 3600,
                    "maxFullJobRestarts": 0,
                    "numRestartBeforeFullJobRestart": 0,
                },
                "suspend": _is_suspended(job),
                # Keep the object, so that Evenkeel can read its end before it deletes it.
                "ttlSecondsAfterFinished": -1,
            },
        },
    )


def _object(job: Json, kind: WorkloadKind, spec: Json) -> Json:
    return {"apiVersion": RESOURCES[kind].api_version, "kind": kind.value, "metadata": job["metadata"], "spec": spec}


def _is_suspended(job: Json) -> bool:
    return bool(job["spec"].get("suspend"))


def _template(job: Json, container: str) -> Json:
    """Return the pod template of the Indexed Job, with another name of the container."""
    template: Json = copy.deepcopy(job["spec"]["template"])
    template["spec"]["containers"][0]["name"] = container
    return template


def _set_master(template: Json, address: str) -> None:
    for variable in template["spec"]["containers"][0]["env"]:
        if variable["name"] == "MASTER_ADDR":
            variable["value"] = address
