"""The kubelet of one machine: node registration, heartbeats, pods, logs, and network partitions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from evenkeel_local.gpu_cluster import catalogue, errors, processes
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.exec_session import Begin, ExecSession
from evenkeel_local.gpu_cluster.objects import has_ended, is_deleting, is_true
from evenkeel_local.gpu_cluster.pod_runner import ContainerRun, MissingReference, PodRunner, terminated_state
from evenkeel_local.gpu_cluster.processes import ProcessGuard, RunningProcess
from evenkeel_local.gpu_cluster.registry import Registry, micro_timestamp, set_condition, timestamp
from evenkeel_local.gpu_cluster.store import Store, clone, name_of, namespace_of

LEASE_NAMESPACE = "kube-node-lease"
LOG_POLL_SECONDS = 0.1
KEPT_PROCESSES = 500
NODE_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)

Variables = Callable[[Obj], dict[str, str]]


@dataclass(frozen=True)
class StartedContainer:
    """A process that this node started; the record stays after its end."""

    pod: Obj
    container: str
    uses_gpu: bool
    running: RunningProcess


class Kubelet:
    """Runs the pods that are bound to its node while it can reach the API."""

    def __init__(
        self,
        name: str,
        registry: Registry,
        guard: ProcessGuard,
        run_dir: Path,
        heartbeat_seconds: float,
        restart_backoff: float,
        variables: Variables,
    ) -> None:
        self.name = name
        self.guard = guard
        self.is_connected = False
        self.is_on = False
        self.host_ip = ""
        self.workers: dict[str, PodRunner] = {}
        self.started: deque[StartedContainer] = deque(maxlen=KEPT_PROCESSES)
        self._registry = registry
        self._store: Store = registry.store
        self._pods_dir = run_dir / "pods"
        self._heartbeat_seconds = heartbeat_seconds
        self._restart_backoff = restart_backoff
        self._variables = variables
        self._beating: asyncio.Task[None] | None = None
        self._finished: set[str] = set()

    # Power and network

    def boot(self, node: Obj) -> None:
        """Start on a new machine or after a reboot: register the node, report lost pods, run bound pods."""
        self.is_on = self.is_connected = True
        self._register(node)
        self._report_lost_pods()
        self._send_heartbeat()
        self._beating = asyncio.create_task(self._heartbeats(), name=f"heartbeats of {self.name}")
        self.sync_all()

    def shut_down(self) -> None:
        """Mark the node NotReady, as a reboot by systemd does, and kill every process."""
        if self.is_connected:
            self._change_node(lambda node: _ready_condition(node, "False", "KubeletNotReady", "node is shutting down"))
        self.power_off()

    def power_off(self) -> None:
        """Stop immediately and kill every process, without a report: the machine is gone."""
        self.is_on = self.is_connected = False
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        for worker in self.workers.values():
            worker.power_off()
        self.workers.clear()

    def partition(self) -> None:
        """Lose the network: no heartbeats and no reports. The processes keep running."""
        self.is_connected = False

    def rejoin(self) -> None:
        """Reach the API again: report the state of the pods, and end pods that were deleted meanwhile."""
        if not self.is_on or self.is_connected:
            return
        self.is_connected = True
        self._send_heartbeat()
        for worker in list(self.workers.values()):
            pod = self._store.find(catalogue.PODS.key, namespace_of(worker.pod), name_of(worker.pod))
            if pod is None or pod["metadata"]["uid"] != worker.uid:
                worker.stop(0)
            else:
                self.report(worker)
        self.sync_all()

    # The node object

    def _register(self, node: Obj) -> None:
        self.host_ip = next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP")
        registered_node = self._store.find(catalogue.NODES.key, "", self.name)
        if registered_node is None:
            self._registry.create(catalogue.NODES, "", node, trusted=True)
        boot_id = node["status"]["nodeInfo"]["bootID"]

        def update(obj: Obj) -> None:
            # A client may have created the object before the machine registered. Then it has only the client's fields.
            if "nodeInfo" not in obj.get("status", {}):
                obj["status"] = {**node["status"], **obj.get("status", {})}
                obj["spec"] = {**node["spec"], **obj.get("spec", {})}
                obj["metadata"]["labels"] = {**node["metadata"]["labels"], **obj["metadata"].get("labels", {})}
            status = obj["status"]
            status["nodeInfo"] = {**status["nodeInfo"], "bootID": boot_id}
            for kind, value, reason, message in NODE_CONDITIONS:
                set_condition(status, kind, value, reason, message, {"lastHeartbeatTime": timestamp()})

        self._change_node(update)

    def _change_node(self, change: Callable[[Obj], None]) -> None:
        self._registry.mutate(catalogue.NODES, "", self.name, change)

    def _send_heartbeat(self) -> None:
        now = micro_timestamp()
        spec = {
            "holderIdentity": self.name,
            "leaseDurationSeconds": max(int(self._heartbeat_seconds * 4), 1),
            "renewTime": now,
        }
        if self._store.find(catalogue.LEASES.key, LEASE_NAMESPACE, self.name) is None:
            node = self._store.find(catalogue.NODES.key, "", self.name)
            lease: Obj = {"metadata": {"name": self.name}, "spec": spec}
            if node is not None:
                lease["metadata"]["ownerReferences"] = [
                    {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": node["metadata"]["uid"]}
                ]
            with contextlib.suppress(ApiError):
                self._registry.create(catalogue.LEASES, LEASE_NAMESPACE, lease)
        else:
            self._registry.mutate(catalogue.LEASES, LEASE_NAMESPACE, self.name, lambda obj: obj.update(spec=spec))
        node = self._store.find(catalogue.NODES.key, "", self.name)
        if node is not None and not is_true(node, "Ready"):
            self._change_node(lambda obj: _ready_condition(obj, "True", "KubeletReady", NODE_CONDITIONS[3][3]))

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            if self.is_connected:
                self._send_heartbeat()

    # Pods

    def sync_all(self) -> None:
        """Sync every pod that is bound to this node."""
        if self.is_connected:
            for pod in self._store.pods_on(self.name):
                self.sync(pod)

    def sync(self, pod: Obj) -> None:
        """Start a pod that is bound to this node, or end a pod that is being deleted."""
        if not self.is_connected:
            return
        uid = pod["metadata"]["uid"]
        worker = self.workers.get(uid)
        is_being_deleted = is_deleting(pod)
        if worker is None:
            if is_being_deleted:
                self._confirm_deletion(pod)
            elif not has_ended(pod):
                self._run(pod)
            return
        if is_being_deleted:
            grace = pod["metadata"].get("deletionGracePeriodSeconds") or 0
            worker.stop(float(grace))
            if worker.is_over:
                self._confirm_deletion(pod)

    def removed(self, pod: Obj) -> None:
        """End a pod whose object was removed by a forced deletion."""
        worker = self.workers.get(pod["metadata"]["uid"])
        if worker is None or not self.is_connected:
            return
        if worker.is_over:
            self.workers.pop(worker.uid, None)
        else:
            worker.stop(0)

    def _run(self, pod: Obj) -> None:
        folder = self.folder(pod)
        for subfolder in ("root", "logs", "tmp"):
            (folder / subfolder).mkdir(parents=True, exist_ok=True)
        worker = PodRunner(pod, self, self._store, self._restart_backoff)
        self.workers[worker.uid] = worker
        self.report(worker)
        worker.start()

    def _confirm_deletion(self, pod: Obj) -> None:
        self.workers.pop(pod["metadata"]["uid"], None)
        try:
            uid = pod["metadata"]["uid"]
            self._registry.remove(pod, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
        except ApiError as refusal:
            if refusal.code not in (404, 409):
                raise

    def _report_lost_pods(self) -> None:
        """Report pods from before a reboot as failed: their processes are gone."""
        for pod in self._store.pods_on(self.name):
            if has_ended(pod):
                continue
            began = pod["status"].get("startTime") or timestamp()
            if pod["spec"]["restartPolicy"] != "Never" and not is_deleting(pod):
                continue

            def fail(obj: Obj, began: str = began) -> None:
                status = obj["status"]
                status["phase"] = "Failed"
                ended_state = terminated_state(255, "Unknown", began)
                for container in status.get("containerStatuses") or ():
                    if "terminated" not in container["state"]:
                        container["state"], container["ready"], container["started"] = clone(ended_state), False, False
                for kind in ("Ready", "ContainersReady"):
                    set_condition(status, kind, "False", "PodFailed", "", {"lastProbeTime": None})

            self._registry.change(pod, fail)

    # For pod workers

    def folder(self, pod: Obj) -> Path:
        """Return the pod's folder: its working directory, logs and temporary files."""
        return self._pods_dir / str(pod["metadata"]["uid"])

    def shared_folder(self) -> Path:
        """Return the folder of the volumes that pods of all nodes share."""
        return self._pods_dir.parent / "volumes"

    def environment(self, pod: Obj) -> dict[str, str]:
        """Return the variables of every container. They contain nothing of the cluster's own environment."""
        root = self.folder(pod)
        path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])
        return {
            "PATH": path,
            "HOME": str(root / "root"),
            "TMPDIR": str(root / "tmp"),
            "LANG": "C.UTF-8",
            "HOSTNAME": pod["spec"].get("hostname") or name_of(pod),
            "PYTHONUNBUFFERED": "1",
            **self._variables(pod),
        }

    def report(self, worker: PodRunner) -> None:
        """Write a pod's state to the API, unless a partition prevents it."""
        if not self.is_connected or self.workers.get(worker.uid) is not worker:
            return
        pod = self._store.find(catalogue.PODS.key, namespace_of(worker.pod), name_of(worker.pod))
        if pod is None or pod["metadata"]["uid"] != worker.uid:
            if worker.is_over:
                self.workers.pop(worker.uid, None)
            return
        ip = str(pod["status"].get("podIP") or "")
        stored_pod = self._registry.change(pod, lambda obj: worker.write_status(obj["status"], ip, self.host_ip))
        if stored_pod is not None and worker.is_over and is_deleting(stored_pod):
            self._confirm_deletion(stored_pod)

    def record_process(self, worker: PodRunner, container: ContainerRun, process: RunningProcess) -> None:
        """Record a process that was started."""
        self.started.append(StartedContainer(worker.pod, container.name, container.uses_gpu, process))

    def record_event(self, worker: PodRunner, reason: str, message: str, kind: str = "Normal") -> None:
        """Record an event about a pod, if the API is reachable."""
        if self.is_connected:
            self._registry.record(worker.pod, reason, message, kind, "kubelet")

    # Faults

    def gpu_error(self) -> int:
        """Abort the processes that use GPUs, as a CUDA error does; kill them half a second later."""
        hit = sum(worker.signal_gpu_processes(signal.SIGABRT) for worker in self.workers.values())
        asyncio.get_running_loop().call_later(0.5, self._kill_gpu_processes)
        return hit

    def _kill_gpu_processes(self) -> None:
        for worker in self.workers.values():
            worker.signal_gpu_processes(signal.SIGKILL)


class KubeletDirectory:
    """The kubelets of all nodes."""

    def __init__(self, new_kubelet: Callable[[str], Kubelet]) -> None:
        self._new_kubelet = new_kubelet
        self._kubelets: dict[str, Kubelet] = {}

    def create(self, node: str) -> Kubelet:
        """Create and add the kubelet of a node."""
        kubelet = self._kubelets[node] = self._new_kubelet(node)
        return kubelet

    def remove(self, node: str) -> None:
        """Remove a node's kubelet."""
        self._kubelets.pop(node, None)

    def find(self, node: str) -> Kubelet | None:
        """Return a node's kubelet, or None."""
        return self._kubelets.get(node)

    def of_pod(self, pod: Obj) -> Kubelet | None:
        """Return the kubelet of a pod's node, or None."""
        return self._kubelets.get(pod["spec"].get("nodeName") or "")

    def all(self) -> list[Kubelet]:
        """Return every kubelet."""
        return list(self._kubelets.values())


class LogReader:
    """Reads the output of containers from their log files."""

    def __init__(self, kubelet_of: Callable[[Obj], Kubelet | None], store: Store, run_dir: Path) -> None:
        self._kubelet_of = kubelet_of
        self._store = store
        self._pods_dir = run_dir / "pods"

    async def stream(
        self, pod: Obj, container: str, *, follow: bool, previous: bool, timestamps: bool
    ) -> AsyncIterator[bytes]:
        """Yield a container's output; with `follow`, until the container ended.

        With `timestamps`, each line begins with the time at which it was written.

        Raises:
            ApiError: 400 while the container has not started.
        """
        kubelet = self._kubelet_of(pod)
        if kubelet is not None and not kubelet.is_connected:
            host = f"{kubelet.host_ip}:10250"
            message = f'Get "https://{host}/containerLogs/": dial tcp {host}: i/o timeout'
            raise ApiError(500, "InternalError", message)
        worker = kubelet.workers.get(pod["metadata"]["uid"]) if kubelet is not None else None
        folder = self._pods_dir / str(pod["metadata"]["uid"]) / "logs"
        files = sorted(folder.glob(f"{container}.*.log"), key=lambda path: int(path.suffixes[-2][1:]))
        if not files and (worker is None or not pod["status"].get("containerStatuses")):
            message = f'container "{container}" in pod "{name_of(pod)}" is waiting to start: ContainerCreating'
            raise errors.bad_request(message)
        if previous and len(files) < 2:
            message = f'previous terminated container "{container}" in pod "{name_of(pod)}" not found'
            raise errors.bad_request(message)
        if not files:
            yield b""
            return
        file = files[-2 if previous else -1]
        with file.open("rb") as output:
            stamp = _LineStamps(file) if timestamps else bytes
            yield stamp(output.read())
            while follow and not previous and self._is_container_running(worker, container):
                await asyncio.sleep(LOG_POLL_SECONDS)
                if data := output.read():
                    yield stamp(data)
            if data := output.read():
                yield stamp(data)

    def _is_container_running(self, worker: PodRunner | None, name: str) -> bool:
        if worker is None or worker.is_over:
            return False
        runs: list[ContainerRun] = [item for item in worker.containers + worker.init_containers if item.name == name]
        return bool(runs) and "terminated" not in runs[0].state


class _LineStamps:
    """Adds to each line of a log its time, for one part of the log after another."""

    def __init__(self, log: Path) -> None:
        self._file = processes.times_file(log)
        self._offset = 0
        self._begins_line = True

    def __call__(self, data: bytes) -> bytes:
        """Return the next part of the log, with the time of each line that begins in it."""
        entry_fields = [entry.split(" ") for entry in self._file.read_text().splitlines()]
        offsets = [int(offset) for offset, _ in entry_fields]
        stamped_lines = b""
        for line in data.splitlines(keepends=True):
            if self._begins_line:
                stamped_lines += entry_fields[bisect_right(offsets, self._offset) - 1][1].encode() + b" "
            stamped_lines += line
            self._offset += len(line)
            self._begins_line = line.endswith(b"\n")
        return stamped_lines


class ExecRunner:
    """Runs commands in containers for the API server."""

    def __init__(self, kubelet_of: Callable[[Obj], Kubelet | None]) -> None:
        self._kubelet_of = kubelet_of

    def prepare(self, pod: Obj, name: str, command: list[str], *, tty: bool, stdin: bool) -> Begin:
        """Return a function that starts a command in a container.

        Raises:
            ApiError: 500 if the node does not answer or the container does not run.
        """
        kubelet = self._kubelet_of(pod)
        if kubelet is None or not kubelet.is_connected:
            host = f"{kubelet.host_ip if kubelet is not None else pod['status'].get('hostIP') or ''}:10250"
            raise ApiError(500, "InternalError", f"error dialing backend: dial tcp {host}: i/o timeout")
        worker = kubelet.workers.get(pod["metadata"]["uid"])
        containers = [*worker.containers, *worker.init_containers] if worker is not None else []
        container = next((item for item in containers if item.name == name and "running" in item.state), None)
        if worker is None or container is None:
            raise ApiError(500, "InternalError", f'unable to upgrade connection: container not found ("{name}")')
        found_worker, found_container = worker, container

        async def begin() -> ExecSession:
            try:
                return await found_worker.execute(found_container, command, tty=tty, stdin=stdin)
            except (OSError, MissingReference) as failure:
                message = f'exec failed: unable to start container process: exec: "{command[0]}": {failure}'
                raise ApiError(500, "InternalError", f"Internal error occurred: {message}") from failure

        return begin


def _ready_condition(node: Obj, value: str, reason: str, message: str) -> None:
    set_condition(node["status"], "Ready", value, reason, message, {"lastHeartbeatTime": timestamp()})


def remove_folder(folder: Path) -> None:
    """Remove a folder with its content. Idempotent: yes."""
    shutil.rmtree(folder, ignore_errors=True)
