"""Published example jobs, by what decides their recovery: kind, replicas, restart policies and limits.

Sources: kubernetes-sigs/jobset, `site/static/examples`; kubeflow/training-operator, branch release-1.9,
`examples/pytorch`; kubernetes/website, `content/en/examples`; the AWS guides for HyperPod's operator and auto-resume.
Images cannot run here, so every container runs a script that ends when a file says that its node has a fault.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenkeel.domain.jobs.workload_kind import WorkloadKind

Json = dict[str, Any]
NAMESPACE = "default"


@dataclass(frozen=True)
class Example:
    """A kind of manifest, with the published examples of this kind."""

    name: str
    kind: WorkloadKind
    manifest: Callable[[Json], Json]
    """Returns the manifest with this pod template."""
    pods: int
    after_crash: str
    """The controller that restarts the job after its process on the node has failed."""
    after_drain: str
    """The controller that restarts the job if its process still runs on the node."""
    examples: tuple[str, ...] = ()


def _job(**spec: Any) -> Callable[[Json], Json]:
    policy = spec.pop("restart_policy")

    def manifest(template: Json) -> Json:
        pods = {**template, "spec": {**template["spec"], "restartPolicy": policy}}
        return {"apiVersion": "batch/v1", "spec": {**spec, "template": pods}}

    return manifest


def _job_set(*groups: Json, policy: Json | None = None, **more: Any) -> Callable[[Json], Json]:
    def manifest(template: Json) -> Json:
        return {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "spec": {
                **more,
                **({"failurePolicy": policy} if policy else {}),
                "replicatedJobs": [
                    {
                        "name": group.get("name", f"group-{number}"),
                        "replicas": group.get("replicas", 1),
                        "template": {"spec": {**group["spec"], "template": _with_policy(template, group)}},
                    }
                    for number, group in enumerate(groups)
                ],
            },
        }

    return manifest


def _with_policy(template: Json, group: Json) -> Json:
    policy = group.get("restart_policy")
    return {**template, "spec": {**template["spec"], **({"restartPolicy": policy} if policy else {})}}


def _group(pods: int, backoff: int | None = 0, **more: Any) -> Json:
    limit = {} if backoff is None else {"backoffLimit": backoff}
    return {"spec": {"completions": pods, "parallelism": pods, **limit, **more.pop("spec", {})}, **more}


def _pytorch(replicas: dict[str, tuple[int, str | None]], **more: Any) -> Callable[[Json], Json]:
    def manifest(template: Json) -> Json:
        container = {**template["spec"]["containers"][0], "name": "pytorch"}
        pods = {**template, "spec": {**template["spec"], "containers": [container]}}
        return {
            "apiVersion": "kubeflow.org/v1",
            "spec": {
                **more,
                "pytorchReplicaSpecs": {
                    name: {"replicas": count, **({"restartPolicy": policy} if policy else {}), "template": pods}
                    for name, (count, policy) in replicas.items()
                },
            },
        }

    return manifest


def _never(template: Json) -> Json:
    return {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}


def _hyperpod(**run_policy: Any) -> Callable[[Json], Json]:
    def manifest(template: Json) -> Json:
        return {
            "apiVersion": "sagemaker.amazonaws.com/v1",
            "spec": {
                "nprocPerNode": "1",
                "replicaSpecs": [{"name": "pods", "replicas": 2, "template": _never(template)}],
                **({"runPolicy": run_policy} if run_policy else {}),
            },
        }

    return manifest


_ON_DISRUPTION = [{"type": "DisruptionTarget"}]
_FAILS_ON_DISRUPTION = {"podFailurePolicy": {"rules": [{"action": "FailJob", "onPodConditions": _ON_DISRUPTION}]}}
_TWO = (_group(1, name="leader"), _group(2, name="workers"))
JOB, JOB_SET = WorkloadKind.JOB, WorkloadKind.JOB_SET
PYTORCH, HYPERPOD = WorkloadKind.PYTORCH_JOB, WorkloadKind.HYPERPOD_PYTORCH_JOB

OPERATOR = "its operator"
MOVED = "Evenkeel moves its pods, and its operator starts them again"
RESTARTED = "Evenkeel restarts it"
LEFT_TO_HYPERPOD = "HyperPod, when it repairs the node"

EXAMPLES = (
    Example(
        "Job that retries pods",
        JOB,
        _job(backoffLimit=4, restart_policy="Never"),
        1,
        OPERATOR,
        MOVED,
        ("controllers/job.yaml",),
    ),
    Example(
        "Indexed Job",
        JOB,
        _job(completions=3, parallelism=3, completionMode="Indexed", restart_policy="Never"),
        3,
        OPERATOR,
        MOVED,
        ("application/job/indexed-job.yaml", "application/job/indexed-job-vol.yaml"),
    ),
    Example(
        "Job that restarts containers",
        JOB,
        _job(completions=2, parallelism=2, restart_policy="OnFailure"),
        2,
        MOVED,
        MOVED,
        ("application/job/redis/job.yaml", "application/job/rabbitmq/job.yaml"),
    ),
    Example(
        "Job with a limit for each index",
        JOB,
        _job(completions=3, parallelism=3, completionMode="Indexed", backoffLimitPerIndex=1, restart_policy="Never"),
        3,
        OPERATOR,
        MOVED,
        ("controllers/job-backoff-limit-per-index-example.yaml",),
    ),
    Example(
        "Job that ignores disruptions",
        JOB,
        _job(
            completions=3,
            parallelism=3,
            backoffLimit=6,
            podFailurePolicy={"rules": [{"action": "Ignore", "onPodConditions": _ON_DISRUPTION}]},
            restart_policy="Never",
        ),
        3,
        OPERATOR,
        MOVED,
        ("controllers/job-pod-failure-policy-example.yaml", "controllers/job-pod-failure-policy-ignore.yaml"),
    ),
    Example(
        "Job without retries",
        JOB,
        _job(completions=2, parallelism=2, backoffLimit=0, restart_policy="Never"),
        2,
        RESTARTED,
        RESTARTED,
    ),
    Example(
        "JobSet without restarts",
        JOB_SET,
        _job_set(_group(3)),
        3,
        RESTARTED,
        RESTARTED,
        (
            "pytorch/cnn-mnist/mnist.yaml",
            "pytorch/resnet-cifar10/resnet.yaml",
            "simple/ttl-after-finished.yaml",
            "workload-aware-scheduling/jobset.yaml",
        ),
    ),
    Example(
        "JobSet with a driver, without restarts",
        JOB_SET,
        _job_set(*_TWO),
        3,
        RESTARTED,
        RESTARTED,
        (
            "simple/coordinator.yaml",
            "simple/group.yaml",
            "simple/jobset-with-network.yaml",
            "simple/paralleljobs.yaml",
            "simple/success-policy.yaml",
            "startup-policy/startup-driver-ready.yaml",
        ),
    ),
    Example(
        "JobSet that retries pods",
        JOB_SET,
        _job_set(_group(2, 5)),
        2,
        MOVED,
        MOVED,
        (
            "tensorflow/mnist.yaml",
            "workload-aware-scheduling/preemption/high-priority-jobset.yaml",
            "workload-aware-scheduling/preemption/low-priority-jobset.yaml",
        ),
    ),
    Example(
        "JobSet with the default limits",
        JOB_SET,
        _job_set(_group(3, None)),
        3,
        MOVED,
        MOVED,
        (
            "depends-on/depends-on.yaml",
            "depends-on/multiple-depends-on.yaml",
            "volume-claim-policy/single-pvc.yaml",
        ),
    ),
    Example(
        "JobSet with restarts",
        JOB_SET,
        _job_set(*_TWO, policy={"maxRestarts": 3}),
        3,
        OPERATOR,
        MOVED,
        (
            "simple/failure-policy.yaml",
            "simple/exclusive-placement.yaml",
            "tpu-multislice/v6e-jax-workload.yaml",
            "workload-aware-scheduling/tas/jobset.yaml",
        ),
    ),
    Example(
        "JobSet that fails with its leader",
        JOB_SET,
        _job_set(
            *_TWO, policy={"maxRestarts": 3, "rules": [{"action": "FailJobSet", "targetReplicatedJobs": ["leader"]}]}
        ),
        3,
        RESTARTED,
        RESTARTED,
        ("failure-policy/failjobset-action.yaml",),
    ),
    Example(
        "JobSet that restarts by a rule",
        JOB_SET,
        _job_set(*_TWO, policy={"maxRestarts": 3, "rules": [{"action": "RestartJobSet"}]}),
        3,
        OPERATOR,
        MOVED,
        ("failure-policy/restartjobset-action.yaml",),
    ),
    Example(
        "JobSet that restarts without a limit",
        JOB_SET,
        _job_set(*_TWO, policy={"maxRestarts": 3, "rules": [{"action": "RestartJobSetAndIgnoreMaxRestarts"}]}),
        3,
        OPERATOR,
        MOVED,
        (
            "failure-policy/restartjobsetandignoremaxrestarts-action.yaml",
            "failure-policy/onjobfailurereasons-present.yaml",
        ),
    ),
    Example(
        "JobSet that restarts one Job",
        JOB_SET,
        _job_set(
            _group(1, name="leader", restart_policy="Never"),
            _group(2, name="workers", restart_policy="Never"),
            policy={
                "maxRestarts": 2,
                "rules": [
                    {"action": "RestartJobSet", "targetReplicatedJobs": ["leader"]},
                    {"action": "RestartJob", "targetReplicatedJobs": ["workers"]},
                ],
            },
        ),
        3,
        OPERATOR,
        MOVED,
        ("failure-policy/restartjob-action.yaml", "failure-policy/restartjobandignoremaxrestarts-action.yaml"),
    ),
    Example(
        "JobSet that restarts after maintenance alone",
        JOB_SET,
        _job_set(
            _group(1, name="leader", restart_policy="Never", spec=_FAILS_ON_DISRUPTION),
            _group(2, name="workers"),
            policy={
                "maxRestarts": 0,
                "rules": [
                    {"action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]},
                    {"action": "RestartJobSet"},
                ],
            },
        ),
        3,
        RESTARTED,
        MOVED,
        ("failure-policy/host-maintenance-event-model.yaml",),
    ),
    Example(
        "PyTorchJob with a master",
        PYTORCH,
        _pytorch({"Master": (1, "OnFailure"), "Worker": (2, "OnFailure")}),
        3,
        MOVED,
        MOVED,
        (
            "simple.yaml",
            "cpu-demo/demo.yaml",
            "deepspeed-demo/pytorch_deepspeed_demo.yaml",
            "mnist/v1/pytorch_job_mnist_gloo.yaml",
            "mnist/v1/pytorch_job_mnist_mpi.yaml",
            "mnist/v1/pytorch_job_mnist_nccl.yaml",
            "smoke-dist/pytorch_job_sendrecv.yaml",
        ),
    ),
    Example(
        "PyTorchJob with workers alone",
        PYTORCH,
        _pytorch({"Worker": (2, None)}),
        2,
        MOVED,
        MOVED,
        ("elastic/echo/echo.yaml", "elastic/imagenet/imagenet.yaml"),
    ),
    Example(
        "PyTorchJob that never restarts",
        PYTORCH,
        _pytorch({"Master": (1, "Never"), "Worker": (1, "Never")}),
        2,
        RESTARTED,
        RESTARTED,
    ),
    Example(
        "PyTorchJob that restarts by exit code",
        PYTORCH,
        _pytorch({"Worker": (2, "ExitCode")}),
        2,
        RESTARTED,
        MOVED,
    ),
    Example(
        "HyperPodPyTorchJob with restarts",
        HYPERPOD,
        _hyperpod(restartPolicy={"maxFullJobRestarts": 10}),
        2,
        OPERATOR,
        LEFT_TO_HYPERPOD,
        ("the guide of HyperPod's training operator",),
    ),
    Example(
        "HyperPodPyTorchJob without restarts",
        HYPERPOD,
        _hyperpod(),
        2,
        RESTARTED,
        LEFT_TO_HYPERPOD,
        ("`hyp create hyp-pytorch-job` without `--max-retry`",),
    ),
)
