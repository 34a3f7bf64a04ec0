"""Stand-ins for three training operators: JobSet, Kubeflow's training operator, and HyperPod's training operator.

Modelled: pods or Jobs of each replica, ranks and addresses in the environment. Suspension, restarts up to their limit,
conditions, the deletion of pods after the end. Not modelled: elastic sizes, success and start-up policies, spares,
log monitoring, process restarts inside a pod.

Sources: kubernetes-sigs/jobset, `pkg/controllers/jobset_controller.go`; kubeflow/training-operator, branch release-1.9,
`pkg/controller.v1/pytorch`. HyperPod's operator is not published: its pods follow the names in the examples of
aws/sagemaker-hyperpod-cli, and their environment follows Kubeflow's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.custom_kinds import resource_definition
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.objects import (
    controller_of,
    has_ended,
    is_deleting,
    is_true,
    owner_reference,
)
from evenkeel_local.gpu_cluster.registry import Registry, set_condition
from evenkeel_local.gpu_cluster.store import ResourceType, StoreChange, clone, name_of, namespace_of
from evenkeel_local.gpu_cluster.work_queue import Controller

JOB_SETS = ResourceType("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
PYTORCH_JOBS = ResourceType("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
HYPERPOD_PYTORCH_JOBS = ResourceType("sagemaker.amazonaws.com", "v1", "hyperpodpytorchjobs", "HyperPodPyTorchJob")
KUBEFLOW = "training.kubeflow.org"
JOB_SET = "jobset.sigs.k8s.io"
MASTER_PORT = 23456
KUBEFLOW_CONTAINER = "pytorch"
RETRY_SECONDS = 1.0
FIRST_RETRYABLE_CODE = 128
"""Exit codes from here on are retried under the restart policy `ExitCode`."""


def definitions() -> list[Obj]:
    """Return the custom resource definitions of the three kinds."""
    state = [("State", '.status.conditions[?(@.status=="True")].type')]
    return [
        resource_definition(rt.group, rt.plural, rt.kind, version=rt.version, scope="Namespaced", columns=state)
        for rt in (JOB_SETS, PYTORCH_JOBS, HYPERPOD_PYTORCH_JOBS)
    ]


class TrainingOperator(Controller):
    """An operator of one kind of workload. It creates missing pods or Jobs, and sets the workload's conditions."""

    completed = "Completed"
    """Condition of an object that ended well."""

    def _on_other_change(self, change: StoreChange) -> None:
        owner = controller_of(change.new)
        if owner is not None and owner["kind"] == self.kind.kind:
            self._queue.add(namespace_of(change.new), owner["name"])

    def sync(self, namespace: str, name: str) -> None:
        """Compare one object with its parts, and act on the difference."""
        obj = self._store.find(self.kind.key, namespace, name)
        if obj is None or is_deleting(obj):
            return
        owned_by_name = {name_of(document): document for _, document in self._store.owned_by(obj["metadata"]["uid"])}
        if is_true(obj, self.completed) or is_true(obj, "Failed"):
            self._clean_up(obj, owned_by_name.values())
            return
        status = clone(obj.get("status") or {})
        set_condition(status, "Suspended", "True" if self._is_suspended(obj) else "False", "Suspended")
        try:
            self._advance(obj, status, owned_by_name)
        except ApiError as refusal:
            self._registry.record(obj, "FailedCreate", refusal.message, "Warning", self.kind.kind)
            self._queue.add_later(obj, RETRY_SECONDS)
        if status != obj.get("status"):
            self._registry.change(obj, lambda obj: obj.update(status=status))

    def _is_suspended(self, obj: Obj) -> bool:
        return bool((obj["spec"].get("runPolicy") or {}).get("suspend"))

    @abstractmethod
    def _advance(self, obj: Obj, status: Obj, objects_by_name: dict[str, Obj]) -> None:
        """Create the missing objects, and set the conditions of the status."""

    def _clean_up(self, obj: Obj, owned_objects: Iterable[Obj]) -> None:
        """Delete the pods after the end, as the policy of the object says."""
        policy = (obj["spec"].get("runPolicy") or {}).get("cleanPodPolicy") or "None"
        for document in owned_objects:
            if policy == "All" or (policy == "Running" and not has_ended(document)):
                self._delete(document)

    def _delete(self, document: Obj) -> None:
        if not is_deleting(document):
            self._registry.remove(document)

    def _restart(self, obj: Obj, status: Obj, owned_objects: Iterable[Obj]) -> None:
        """Delete all objects for another try."""
        status["restarts"] = int(status.get("restarts") or 0) + 1
        self._registry.record(obj, "Restarting", f"Restart {status['restarts']}", source=self.kind.kind)
        for document in owned_objects:
            self._delete(document)

    def _create_service(self, obj: Obj, name: str, selector: dict[str, str]) -> None:
        """Create a headless Service, unless one has the name."""
        if self._store.find(catalogue.SERVICES.key, namespace_of(obj), name) is not None:
            return
        body = {
            "metadata": {"name": name, "ownerReferences": [owner_reference(obj)]},
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector},
        }
        self._registry.create(catalogue.SERVICES, namespace_of(obj), body)

    def _create_pod(self, obj: Obj, name: str, template: Obj, labels: dict[str, str], env: dict[str, str]) -> None:
        spec = clone(template["spec"])
        for container in spec["containers"]:
            if self._is_trainer(container):
                container.setdefault("env", []).extend({"name": key, "value": value} for key, value in env.items())
        spec.setdefault("hostname", name)
        metadata = clone(template.get("metadata") or {})
        metadata |= {"name": name, "ownerReferences": [owner_reference(obj)]}
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
        self._registry.create(catalogue.PODS, namespace_of(obj), {"metadata": metadata, "spec": spec})

    def _is_trainer(self, container: Obj) -> bool:
        return True


class JobSetOperator(TrainingOperator):
    """JobSet: a Job for each replica. If one fails, all are created again, up to `maxRestarts`."""

    kind = JOB_SETS

    def _is_suspended(self, obj: Obj) -> bool:
        return bool(obj["spec"].get("suspend"))

    def _advance(self, obj: Obj, status: Obj, objects_by_name: dict[str, Obj]) -> None:
        jobs = [document for document in objects_by_name.values() if document["kind"] == "Job"]
        if any(is_true(job, "Failed") for job in jobs):
            if jobs_to_restart := self._jobs_to_restart(obj, status, jobs):
                self._restart(obj, status, jobs_to_restart)
            else:
                set_condition(status, "Failed", "True", "FailedJobs", "jobset failed due to one or more job failures")
            return
        jobs_wanted = {job["metadata"]["name"]: job for job in self._jobs(obj, int(status.get("restarts") or 0))}
        if all(name in objects_by_name and is_true(objects_by_name[name], "Complete") for name in jobs_wanted):
            set_condition(status, "Completed", "True", "AllJobsCompleted", "jobset completed successfully")
            return
        network = obj["spec"].get("network") or {}
        if network.get("enableDNSHostnames", True):
            service = network.get("subdomain") or name_of(obj)
            self._create_service(obj, service, {f"{JOB_SET}/jobset-name": name_of(obj)})
        for name, job in jobs_wanted.items():
            if name not in objects_by_name:
                self._registry.create(catalogue.JOBS, namespace_of(obj), job)
            elif bool(objects_by_name[name]["spec"].get("suspend")) != self._is_suspended(obj):
                suspension = {"suspend": self._is_suspended(obj)}
                self._registry.change(objects_by_name[name], lambda stored_job: stored_job["spec"].update(suspension))  # noqa: B023 (at once)

    def _jobs_to_restart(self, obj: Obj, status: Obj, jobs: list[Obj]) -> list[Obj]:
        """Return the Jobs that the first matching rule of the failure policy restarts; none if the JobSet fails."""
        policy = obj["spec"].get("failurePolicy") or {}
        failed_job = next(job for job in jobs if is_true(job, "Failed"))
        action = next((rule["action"] for rule in policy.get("rules") or () if _rule_matches(rule, failed_job)), "")
        jobs_to_restart = [failed_job] if action.startswith("RestartJob") and "JobSet" not in action else jobs
        if action.endswith("IgnoreMaxRestarts"):
            return jobs_to_restart
        counted_restarts = int(status.get("restartsCountTowardsMax") or 0)
        if action == "FailJobSet" or counted_restarts >= int(policy.get("maxRestarts") or 0):
            return []
        status["restartsCountTowardsMax"] = counted_restarts + 1
        return jobs_to_restart

    def _jobs(self, obj: Obj, restarts: int) -> Iterable[Obj]:
        network = obj["spec"].get("network") or {}
        for replicated_job in obj["spec"]["replicatedJobs"]:
            for index in range(_replicas(replicated_job)):
                template = clone(replicated_job["template"])
                labels = {
                    f"{JOB_SET}/jobset-name": name_of(obj),
                    f"{JOB_SET}/replicatedjob-name": replicated_job["name"],
                    f"{JOB_SET}/job-index": str(index),
                    f"{JOB_SET}/restart-attempt": str(restarts),
                }
                metadata = template.get("metadata") or {}
                pods = template["spec"]["template"].setdefault("metadata", {})
                pods["labels"] = {**(pods.get("labels") or {}), **labels}
                template["spec"].setdefault("completionMode", "Indexed")
                template["spec"]["template"]["spec"].setdefault("restartPolicy", "OnFailure")
                template["spec"]["suspend"] = self._is_suspended(obj)
                if network.get("enableDNSHostnames", True):
                    template["spec"]["template"]["spec"]["subdomain"] = network.get("subdomain") or name_of(obj)
                yield {
                    "metadata": {
                        **metadata,
                        "name": f"{name_of(obj)}-{replicated_job['name']}-{index}",
                        "labels": {**(metadata.get("labels") or {}), **labels},
                        "ownerReferences": [owner_reference(obj)],
                    },
                    "spec": template["spec"],
                }

    def _clean_up(self, obj: Obj, owned_objects: Iterable[Obj]) -> None:
        for document in owned_objects:
            if document["kind"] == "Job" and not (is_true(document, "Failed") or is_true(document, "Complete")):
                self._delete(document)

    def _delete(self, document: Obj) -> None:
        if not is_deleting(document):
            self._registry.remove(document, {"propagationPolicy": "Foreground"})


class PodOperator(TrainingOperator):
    """An operator that creates pods itself."""

    def _advance(self, obj: Obj, status: Obj, owned_by_name: dict[str, Obj]) -> None:
        pods = {name: document for name, document in owned_by_name.items() if document["kind"] == "Pod"}
        if not self._is_suspended(obj):
            self._advance_pods(obj, status, pods)
            return
        for pod in pods.values():
            self._delete(pod)

    @abstractmethod
    def _advance_pods(self, obj: Obj, status: Obj, pods: dict[str, Obj]) -> None:
        """Create missing pods, and set the conditions of the status."""


class PyTorchOperator(PodOperator):
    """Kubeflow's operator for PyTorchJob: pods `<job>-master-0` and `<job>-worker-<n>`, each with its Service."""

    kind = PYTORCH_JOBS
    completed = "Succeeded"

    def _advance_pods(self, obj: Obj, status: Obj, pods: dict[str, Obj]) -> None:
        replicas = obj["spec"]["pytorchReplicaSpecs"]
        size = sum(_replicas(replica) for replica in replicas.values())
        deciding_role = "Master" if "Master" in replicas else "Worker"
        for group, replica in replicas.items():
            for index in range(_replicas(replica)):
                name = f"{name_of(obj)}-{group.lower()}-{index}"
                if name not in pods:
                    self._create(obj, name, group, index, size)
                    continue
                pod = pods[name]
                if _failed_finally(pod, replica.get("restartPolicy") or "OnFailure"):
                    set_condition(status, "Failed", "True", "PyTorchJobFailed", f"pod {name} failed")
                elif pod["status"].get("phase") == "Failed":
                    self._delete(pod)  # created again in the next step
        succeeded_pods = [
            pod
            for name, pod in pods.items()
            if f"-{deciding_role.lower()}-" in name and pod["status"].get("phase") == "Succeeded"
        ]
        if len(succeeded_pods) == _replicas(replicas[deciding_role]):
            set_condition(status, "Succeeded", "True", "PyTorchJobSucceeded")
        elif len(pods) == size and all(pod["status"].get("phase") == "Running" for pod in pods.values()):
            set_condition(status, "Running", "True", "PyTorchJobRunning")

    def _create(self, obj: Obj, name: str, group: str, index: int, size: int) -> None:
        specs = obj["spec"]["pytorchReplicaSpecs"][group]
        labels = {
            f"{KUBEFLOW}/job-name": name_of(obj),
            f"{KUBEFLOW}/operator-name": "pytorchjob-controller",
            f"{KUBEFLOW}/replica-type": group.lower(),
            f"{KUBEFLOW}/replica-index": str(index),
            **({f"{KUBEFLOW}/job-role": "master"} if group == "Master" else {}),
        }
        env = {"PYTHONUNBUFFERED": "1"}
        if "Master" in obj["spec"]["pytorchReplicaSpecs"]:
            env |= {
                "MASTER_PORT": str(MASTER_PORT),
                "MASTER_ADDR": f"{name_of(obj)}-master-0",
                "WORLD_SIZE": str(size),
                "RANK": str(index + (group == "Worker")),
            }
        template = clone(specs["template"])
        policy = specs.get("restartPolicy") or "OnFailure"
        template["spec"]["restartPolicy"] = "Never" if policy == "ExitCode" else policy
        self._create_service(obj, name, {key: labels[key] for key in labels if "operator" not in key})
        self._create_pod(obj, name, template, labels, env)

    def _is_trainer(self, container: Obj) -> bool:
        return bool(container["name"] == KUBEFLOW_CONTAINER)


class HyperPodOperator(PodOperator):
    """HyperPod's operator: pods `<job>-<group>-<n>`. After a failed or lost pod, it starts all pods again."""

    kind = HYPERPOD_PYTORCH_JOBS

    def _advance_pods(self, obj: Obj, status: Obj, pods: dict[str, Obj]) -> None:
        specs = obj["spec"]["replicaSpecs"]
        names = [(f"{name_of(obj)}-{spec['name']}-{index}", spec) for spec in specs for index in range(_replicas(spec))]
        phases = [pods[name]["status"].get("phase") if name in pods else None for name, _ in names]
        if any(map(is_deleting, pods.values())):
            return  # a restart continues when the old pods are gone
        is_broken = "Failed" in phases or (is_true({"status": status}, "PodsRunning") and None in phases)
        if is_broken:
            set_condition(status, "PodsRunning", "False", "PodsFailed")
            policy = (obj["spec"].get("runPolicy") or {}).get("restartPolicy") or {}
            if int(status.get("restarts") or 0) < int(policy.get("maxFullJobRestarts") or 0):
                self._restart(obj, status, pods.values())
            else:
                set_condition(status, "Failed", "True", "PodsFailed")
        elif set(phases) == {"Succeeded"}:
            set_condition(status, "Completed", "True", "PodsCompleted")
        elif set(phases) <= {"Running", "Succeeded"}:
            set_condition(status, "PodsRunning", "True", "PodsRunning")
        else:
            self._create_missing(obj, names, pods)

    def _create_missing(self, obj: Obj, names: list[tuple[str, Obj]], pods: dict[str, Obj]) -> None:
        mark = {f"{self.kind.group}/job-name": name_of(obj)}
        self._create_service(obj, name_of(obj), mark)
        for rank, (name, replica_spec) in enumerate(names):
            if name in pods:
                continue
            template = clone(replica_spec["template"])
            template["spec"].setdefault("subdomain", name_of(obj))
            env = {
                "MASTER_PORT": str(MASTER_PORT),
                "MASTER_ADDR": f"{names[0][0]}.{template['spec']['subdomain']}",
                "WORLD_SIZE": str(len(names)),
                "RANK": str(rank),
            }
            self._create_pod(obj, name, template, mark, env)


OPERATORS: tuple[type[TrainingOperator], ...] = (JobSetOperator, PyTorchOperator, HyperPodOperator)


def install(registry: Registry) -> None:
    """Create the custom resource definitions."""
    for document in definitions():
        registry.create(catalogue.DEFINITIONS, "", document)


def _rule_matches(rule: Obj, job: Obj) -> bool:
    """Whether a rule of a JobSet's failure policy applies to a failed Job."""
    failure = next(condition for condition in job["status"]["conditions"] if condition["type"] == "Failed")
    names, reasons = rule.get("targetReplicatedJobs"), rule.get("onJobFailureReasons")
    name = job["metadata"]["labels"][f"{JOB_SET}/replicatedjob-name"]
    return (not names or name in names) and (not reasons or failure.get("reason") in reasons)


def _replicas(spec: Obj) -> int:
    return int(spec.get("replicas", 1))


def _failed_finally(pod: Obj, policy: str) -> bool:
    """Whether a pod's end fails its PyTorchJob.

    Under the policies `Always` and `OnFailure`, an ended pod does not end the job.
    """
    if pod["status"].get("phase") != "Failed" or policy in ("Always", "OnFailure"):
        return False
    if policy == "Never":
        return True
    states = ((status.get("state") or {}).get("terminated") for status in pod["status"].get("containerStatuses") or ())
    return not any(state and int(state.get("exitCode") or 0) >= FIRST_RETRYABLE_CODE for state in states)
