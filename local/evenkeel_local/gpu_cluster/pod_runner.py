"""A pod on a node: its containers from start to end, and the status that the kubelet reports."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from evenkeel_local.gpu_cluster import catalogue, exec_session, processes, volumes
from evenkeel_local.gpu_cluster.admission import GPU
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.exec_session import ExecSession
from evenkeel_local.gpu_cluster.objects import has_ended, labels_of
from evenkeel_local.gpu_cluster.processes import ProcessGuard, RunningProcess
from evenkeel_local.gpu_cluster.quantities import parse_quantity
from evenkeel_local.gpu_cluster.registry import set_condition, timestamp
from evenkeel_local.gpu_cluster.store import Store, clone, name_of, namespace_of

NAME_WAIT_SECONDS = 30.0
NAME_POLL_SECONDS = 0.05
_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_.-]*)\))")
_POD_NAME = re.compile(
    r"^(?P<host>[a-z0-9]([-a-z0-9]*[a-z0-9])?)\.(?P<service>[a-z0-9]([-a-z0-9]*[a-z0-9])?)"
    r"(\.(?P<namespace>[a-z0-9]([-a-z0-9]*[a-z0-9])?)(\.svc(\.cluster\.local)?)?)?\.?$"
)


class PodHost(Protocol):
    """The machine, as a pod worker uses it."""

    guard: ProcessGuard

    def environment(self, pod: Obj) -> dict[str, str]:
        """Return the variables that every container of a pod starts with."""

    def folder(self, pod: Obj) -> Path:
        """Return the pod's folder."""

    def shared_folder(self) -> Path:
        """Return the folder of the volumes that pods share."""

    def report(self, worker: PodRunner) -> None:
        """Report a changed pod status."""

    def record_process(self, worker: PodRunner, container: ContainerRun, process: RunningProcess) -> None:
        """Record a process that was started."""

    def record_event(self, worker: PodRunner, reason: str, message: str, kind: str = "Normal") -> None:
        """Record an event about the pod."""


@dataclass
class ContainerRun:
    """The progress of a container, in the terms of `containerStatuses`."""

    spec: Obj
    is_init: bool
    container_id: str = ""
    state: Obj = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: Obj = field(default_factory=dict)
    restarts: int = 0
    started: bool = False
    running: RunningProcess | None = None
    pause_ended: asyncio.Event | None = None
    runs: int = 0
    has_visitors: bool = False  # whether `exec` ran a command in this container

    @property
    def name(self) -> str:
        """The container's name in its pod."""
        return str(self.spec["name"])

    @property
    def uses_gpu(self) -> bool:
        """Whether it requests GPUs."""
        return GPU in ((self.spec.get("resources") or {}).get("limits") or {})

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it has not ended."""
        end_state = self.state.get("terminated")
        return int(end_state["exitCode"]) if end_state else None

    def status(self) -> Obj:
        """Return its entry in the pod's status."""
        return {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": "",
            "containerID": f"process://{self.container_id}" if self.container_id else "",
            "state": clone(self.state),
            "lastState": clone(self.last_state),
            "ready": "running" in self.state or (self.is_init and self.exit_code == 0),
            "started": "running" in self.state,
            "restartCount": self.restarts,
        }


class PodRunner:
    """Runs one pod on one node until it ends or is stopped."""

    def __init__(self, pod: Obj, node: PodHost, store: Store, restart_backoff: float) -> None:
        self.pod = pod
        self.uid = str(pod["metadata"]["uid"])
        self.phase = "Pending"
        self.started_at = timestamp()
        self.is_stopping = False
        self.is_over = False
        self._node = node
        self._store = store
        self._restart_backoff = restart_backoff
        spec = pod["spec"]
        self.init_containers = [ContainerRun(item, True) for item in spec.get("initContainers") or ()]
        self.containers = [ContainerRun(item, False) for item in spec["containers"]]
        self._task: asyncio.Task[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        self._deadline: float | None = None
        self._ended = asyncio.Event()

    @property
    def processes(self) -> list[tuple[ContainerRun, RunningProcess]]:
        """The running containers with their processes."""
        container_runs = [*self.init_containers, *self.containers]
        return [(item, item.running) for item in container_runs if item.running is not None]

    def start(self) -> None:
        """Start the containers."""
        self._task = asyncio.create_task(self._run(), name=f"pod {name_of(self.pod)}")

    async def _run(self) -> None:
        try:
            for container in self.init_containers:
                if not await self._run_init(container):
                    return
            if not self.is_stopping:
                self.phase = "Running"
                await asyncio.gather(*(self._run_container(container) for container in self.containers))
        finally:
            if not self.is_over:
                self._finish()

    def _must_stop(self) -> bool:
        """Return whether to stop. Call it again after every wait."""
        return self.is_stopping

    def _finish(self) -> None:
        self.is_over = True
        self._ended.set()
        for container in [*self.init_containers, *self.containers]:
            if "waiting" in container.state or "running" in container.state:
                message = "the container was never started"
                container.state = terminated_state(137, "ContainerStatusUnknown", timestamp(), message)
        ended_well = all(container.exit_code == 0 for container in [*self.init_containers, *self.containers])
        self.phase = "Succeeded" if ended_well else "Failed"
        self._node.report(self)

    async def _run_init(self, container: ContainerRun) -> bool:
        while not self._must_stop():
            await self._run_once(container)
            if container.exit_code == 0:
                return True
            if self.pod["spec"]["restartPolicy"] == "Never" or self._must_stop():
                return False
            await self._back_off(container)
        return False

    async def _run_container(self, container: ContainerRun) -> None:
        policy = self.pod["spec"]["restartPolicy"]
        while not self._must_stop():
            await self._run_once(container)
            restarts = policy == "Always" or (policy == "OnFailure" and container.exit_code != 0)
            if self._must_stop() or not restarts:
                return
            await self._back_off(container)

    async def _back_off(self, container: ContainerRun) -> None:
        """Wait before a container restarts. The first restart does not wait; then the delay doubles, up to 30-fold."""
        container.last_state = container.state
        delay = 0.0 if container.restarts == 0 else self._restart_backoff * min(2 ** (container.restarts - 1), 30)
        if delay:
            self._node.record_event(
                self, "BackOff", f"Back-off restarting failed container {container.name}", "Warning"
            )
            message = f"back-off {delay:g}s restarting failed container={container.name} pod={name_of(self.pod)}"
            container.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
            self._node.report(self)
            await asyncio.sleep(delay)
        container.restarts += 1

    async def _run_once(self, container: ContainerRun) -> None:
        """Run a container's command once, from start to end."""
        container.container_id = f"{self.uid}-{container.name}-{container.runs}"
        container.runs += 1
        command = [*(container.spec.get("command") or ()), *(container.spec.get("args") or ())]
        if not command:
            await self._pause(container)
            return
        began = timestamp()
        try:
            argv, env = await self._resolve_command(container, command)
            if self._must_stop():
                container.state = terminated_state(137, "Error", began)
                return
            root = self._node.folder(self.pod) / "root"
            process = await processes.start_process(
                argv, env, root, self.log_file(container), container.container_id, self._node.guard
            )
        except OSError as failure:
            text = f"failed to start container: {failure.strerror}: {failure.filename}"
            self._node.record_event(self, "Failed", text, "Warning")
            container.state = terminated_state(128, "StartError", began, text)
            self._node.report(self)
            return
        except MissingReference as error:
            container.state = {"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}}
            self._node.report(self)
            await asyncio.sleep(max(self._restart_backoff, 0.2))
            if not self._must_stop():
                await self._run_once(container)
            return
        container.running = process
        self._node.record_process(self, container, process)
        self._node.record_event(self, "Started", f"Started container {container.name}")
        container.state = {"running": {"startedAt": timestamp()}}
        self._node.report(self)
        if self._must_stop():
            process.terminate()
        code = await process.wait()
        container.running = None
        reason, message = "Completed" if code == 0 else "Error", self._termination_message(container, code)
        container.state = terminated_state(code, reason, began, message)
        self._node.report(self)

    async def _resolve_command(self, container: ContainerRun, command: list[str]) -> tuple[list[str], dict[str, str]]:
        """Return a command and its environment, with the paths of volumes rewritten."""
        env = await self._environment(container)
        mounted_folders = volumes.prepare_volumes(
            self.pod, container.spec, self._node.folder(self.pod), self._node.shared_folder(), self._data
        )
        env = {name: volumes.rewrite_path(text, mounted_folders) for name, text in env.items()}
        return [volumes.rewrite_path(expand_variables(word, env), mounted_folders) for word in command], env

    async def execute(self, container: ContainerRun, command: list[str], *, tty: bool, stdin: bool) -> ExecSession:
        """Start another command in a running container.

        Raises:
            OSError: the command cannot be started.
        """
        container.has_visitors = True
        argv, env = await self._resolve_command(container, command)
        root = self._node.folder(self.pod) / "root"
        root.mkdir(parents=True, exist_ok=True)
        return await exec_session.start_session(
            argv, env, root, container.container_id, self._node.guard, tty=tty, stdin=stdin
        )

    def _termination_message(self, container: ContainerRun, code: int) -> str:
        """Return the end of the log of a failed container, if its termination message policy asks for it.

        Source: the kubelet keeps the last 80 lines, of at most 2,048 bytes.
        """
        if code == 0 or container.spec.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return ""
        tail = self.log_file(container).read_bytes()[-2048:].decode("utf-8", "replace")
        return "".join(tail.splitlines(keepends=True)[-80:])

    async def _pause(self, container: ContainerRun) -> None:
        """Run a container without a command: it has no process, and runs until it is stopped."""
        container.pause_ended = asyncio.Event()
        container.state = {"running": {"startedAt": timestamp()}}
        began = timestamp()
        self._node.report(self)
        if not self._must_stop():
            await container.pause_ended.wait()
        if container.has_visitors:
            processes.kill_container(container.container_id)
        container.state = terminated_state(0, "Completed", began)
        container.pause_ended = None

    def log_file(self, container: ContainerRun, *, previous: bool = False) -> Path:
        """Return the log file of a container's current or previous run."""
        run_number = container.runs - 1 - int(previous)
        return self._node.folder(self.pod) / "logs" / f"{container.name}.{max(run_number, 0)}.log"

    # Ending

    def stop(self, grace_seconds: float) -> None:
        """End the pod: SIGTERM now, SIGKILL after the grace period. A second call can only shorten it."""
        self.is_stopping = True
        now = asyncio.get_running_loop().time()
        deadline = now + grace_seconds
        if self._deadline is not None and deadline >= self._deadline:
            return
        is_first_stop = self._deadline is None
        self._deadline = deadline
        if is_first_stop:
            self._stop_task = asyncio.create_task(self._stop())

    async def _stop(self) -> None:
        for container in self.containers:
            if container.pause_ended is not None:
                container.pause_ended.set()
        for container, process in self.processes:
            self._node.record_event(self, "Killing", f"Stopping container {container.name}")
            process.terminate()
        loop = asyncio.get_running_loop()
        while (
            not self._ended.is_set()
            and self._deadline is not None
            and (seconds_left := self._deadline - loop.time()) > 0
        ):
            # Short waits: a second deletion may shorten the grace period.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), min(0.05, seconds_left))
        for _, process in self.processes:
            process.kill()
        if self._task is not None and not self.is_over:
            _, pending_tasks = await asyncio.wait([self._task], timeout=1.0)
            if pending_tasks:
                self._task.cancel()

    def power_off(self) -> None:
        """Kill every process at once, without a report: the machine is gone."""
        self.is_stopping = True
        self.is_over = True
        self._ended.set()
        for _, process in self.processes:
            process.kill()
        for container in self.containers:
            if container.pause_ended is not None:
                container.pause_ended.set()

    def signal_gpu_processes(self, how: int) -> int:
        """Send a signal to the containers that use GPUs; return their number."""
        hit = [process for container, process in self.processes if container.uses_gpu]
        for process in hit:
            process.send_signal(how)
        return len(hit)

    def crash(self, exit_code: int) -> bool:
        """End the process of one container as if it had exited with a code; return whether one ran."""
        for container, process in self.processes:
            if not container.is_init:
                process.forced_exit_code = exit_code
                process.send_signal(signal.SIGKILL)
                return True
        return False

    # Reporting

    def write_status(self, status: Obj, ip: str, host_ip: str) -> None:
        """Put the pod's state into a `status` object."""
        status["phase"] = self.phase
        status["hostIP"], status["hostIPs"] = host_ip, [{"ip": host_ip}]
        status["podIP"], status["podIPs"] = ip, [{"ip": ip}]
        status["startTime"] = self.started_at
        status["containerStatuses"] = [container.status() for container in self.containers]
        if self.init_containers:
            status["initContainerStatuses"] = [container.status() for container in self.init_containers]
        over = self.phase in ("Succeeded", "Failed")
        ready = self.phase == "Running" and all("running" in container.state for container in self.containers)
        is_initialized = all(container.exit_code == 0 for container in self.init_containers)
        names = [container.name for container in self.containers if "running" not in container.state]
        unready = "PodCompleted" if self.phase == "Succeeded" else "PodFailed" if over else "ContainersNotReady"
        message = "" if over else f"containers with unready status: [{' '.join(names)}]"
        _set_condition(status, "PodReadyToStartContainers", not over, "", "")
        _set_condition(status, "Initialized", is_initialized, "" if is_initialized else "ContainersNotInitialized", "")
        _set_condition(status, "Ready", ready, "" if ready else unready, "" if ready else message)
        _set_condition(status, "ContainersReady", ready, "" if ready else unready, "" if ready else message)

    # Environment

    async def _environment(self, container: ContainerRun) -> dict[str, str]:
        env = dict(self._node.environment(self.pod))
        for source in container.spec.get("envFrom") or ():
            env.update(self._env_from(source))
        for entry in container.spec.get("env") or ():
            value = entry.get("value")
            if value is None and entry.get("valueFrom"):
                resolved_value = self._value_from(entry["valueFrom"], container)
                if resolved_value is None:
                    continue
                env[entry["name"]] = resolved_value
            else:
                env[entry["name"]] = expand_variables(str(value or ""), env)
        for name, text in env.items():
            env[name] = await self._resolve(text, is_host=name == "MASTER_ADDR")
        return env

    def _current(self) -> Obj:
        return self._store.find(catalogue.PODS.key, namespace_of(self.pod), name_of(self.pod)) or self.pod

    def _env_from(self, source: Obj) -> Mapping[str, str]:
        prefix = source.get("prefix") or ""
        for field_name, key in (("configMapRef", catalogue.CONFIG_MAPS.key), ("secretRef", catalogue.SECRETS.key)):
            ref = source.get(field_name)
            if ref:
                data = self._data(key, ref)
                return {prefix + name: value for name, value in (data or {}).items()}
        return {}

    def _data(self, key: tuple[str, str], ref: Obj) -> dict[str, str] | None:
        obj = self._store.find(key, namespace_of(self.pod), ref["name"])
        if obj is None:
            if ref.get("optional"):
                return None
            raise MissingReference(f'{key[1][:-1]} "{ref["name"]}" not found')
        data = {name: str(value) for name, value in (obj.get("data") or {}).items()}
        if key == catalogue.SECRETS.key:
            data = {name: base64.b64decode(value).decode("utf-8", "replace") for name, value in data.items()}
        return data

    def _value_from(self, source: Obj, container: ContainerRun) -> str | None:
        if ref := source.get("fieldRef"):
            return field_value(self._current(), ref["fieldPath"])
        if ref := source.get("resourceFieldRef"):
            section, _, name = ref["resource"].partition(".")
            amount = parse_quantity(((container.spec.get("resources") or {}).get(section) or {}).get(name, "0"))
            return str(math.ceil(amount / (parse_quantity(ref.get("divisor") or "0") or 1)))
        for kind, key in (("configMapKeyRef", catalogue.CONFIG_MAPS.key), ("secretKeyRef", catalogue.SECRETS.key)):
            if ref := source.get(kind):
                data = self._data(key, ref)
                if data is None or ref["key"] not in data:
                    if ref.get("optional"):
                        return None
                    raise MissingReference(f"couldn't find key {ref['key']} in {ref['name']}")
                return data[ref["key"]]
        return ""

    async def _resolve(self, text: str, *, is_host: bool) -> str:
        """Replace a pod's DNS name by the pod's address. If the service exists, wait for the pod.

        Args:
            text: Value of a variable.
            is_host: Whether it is a host, so that it may be the name of a Service with one pod.
        """
        match = _POD_NAME.match(text)
        namespace, host, service = namespace_of(self.pod), "", text
        if match is not None:
            namespace = match.group("namespace") or namespace
            host, service = match.group("host"), match.group("service")
        if match is None and not is_host:
            return text
        obj = self._store.find(catalogue.SERVICES.key, namespace, service)
        if obj is None:
            return text
        loop = asyncio.get_running_loop()
        deadline = loop.time() + NAME_WAIT_SECONDS
        while loop.time() < deadline and not self.is_stopping:
            for pod in self._store.each(catalogue.PODS.key):
                if namespace_of(pod) != namespace or has_ended(pod) or not pod["status"].get("podIP"):
                    continue
                spec = pod["spec"]
                is_named = (spec.get("hostname"), spec.get("subdomain")) == (host, service)
                if is_named if host else _is_selected(obj, pod):
                    return str(pod["status"]["podIP"])
            await asyncio.sleep(NAME_POLL_SECONDS)
        return text


def _is_selected(service: Obj, pod: Obj) -> bool:
    selector = (service.get("spec") or {}).get("selector") or {}
    return bool(selector) and selector.items() <= labels_of(pod).items()


class MissingReference(Exception):
    """A config map, secret or key that a container needs does not exist."""


def _set_condition(status: Obj, kind: str, value: bool, reason: str, message: str) -> None:
    """Set a pod condition; a true condition has no reason."""
    set_condition(status, kind, "True" if value else "False", reason, message, {"lastProbeTime": None})
    for condition in status["conditions"]:
        if condition["type"] == kind:
            for empty in [name for name in ("reason", "message") if not condition.get(name)]:
                condition.pop(empty, None)


def terminated_state(code: int, reason: str, began: str, message: str = "") -> Obj:
    """Return the state of a container that has ended."""
    ended_state: Obj = {"exitCode": code, "reason": reason, "startedAt": began, "finishedAt": timestamp()}
    if message:
        ended_state["message"] = message
    return {"terminated": ended_state}


def expand_variables(text: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by a variable. An unknown name stays as written; `$$` is a dollar sign."""

    def one(match: re.Match[str]) -> str:
        if match.group(1) == "$":
            return "$"
        return env.get(match.group(2), match.group(0))

    return _REFERENCE.sub(one, text)


def field_value(pod: Obj, path: str) -> str:
    """Read a field of the downward API, such as `metadata.labels['x']` or `status.podIP`."""
    match = re.match(r"^metadata\.(labels|annotations)\['(.+)'\]$", path)
    if match:
        return str((pod["metadata"].get(match.group(1)) or {}).get(match.group(2), ""))
    if path in ("metadata.labels", "metadata.annotations"):
        entries = pod["metadata"].get(path.split(".")[1]) or {}
        return "\n".join(f"{key}={json.dumps(value)}" for key, value in sorted(entries.items()))
    value: Any = pod
    for segment in path.split("."):
        value = value.get(segment) if isinstance(value, dict) else None
    return "" if value is None else str(value)
