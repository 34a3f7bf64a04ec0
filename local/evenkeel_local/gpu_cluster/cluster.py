"""The whole cluster: what it is made of, its three listeners, and its life as a process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme
from aiohttp import web

from evenkeel_local.gpu_cluster import catalogue, rbac, snapshots
from evenkeel_local.gpu_cluster.api_server import ApiServer, Authenticator, tls_context
from evenkeel_local.gpu_cluster.aws_api import AwsApi
from evenkeel_local.gpu_cluster.aws_auth import AwsAuth, EngineAuth, NoAuth
from evenkeel_local.gpu_cluster.call_faults import CallFaults
from evenkeel_local.gpu_cluster.catalogue import ResourceCatalogue
from evenkeel_local.gpu_cluster.cluster_events import ClusterEvents
from evenkeel_local.gpu_cluster.config import AccessEntry, ClusterConfig, PodIdentity
from evenkeel_local.gpu_cluster.control import Control
from evenkeel_local.gpu_cluster.deployment_controller import DeploymentController
from evenkeel_local.gpu_cluster.disruption_controller import DisruptionController
from evenkeel_local.gpu_cluster.endpoints_controller import EndpointsController
from evenkeel_local.gpu_cluster.engine import EngineClient
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.event_bus import EventBus
from evenkeel_local.gpu_cluster.faults import FaultInjector
from evenkeel_local.gpu_cluster.garbage_collector import GarbageCollector
from evenkeel_local.gpu_cluster.health_agent import HealthAgent
from evenkeel_local.gpu_cluster.host_names import only_local_names
from evenkeel_local.gpu_cluster.hyperpod import HyperPod
from evenkeel_local.gpu_cluster.job_controller import JobController
from evenkeel_local.gpu_cluster.karpenter import Karpenter
from evenkeel_local.gpu_cluster.kube_auth import EksAuthenticator, StaticAuthenticator
from evenkeel_local.gpu_cluster.kubelet import ExecRunner, KubeletDirectory, LogReader, remove_folder
from evenkeel_local.gpu_cluster.machines import MachineFleet
from evenkeel_local.gpu_cluster.metrics import Metrics
from evenkeel_local.gpu_cluster.node_controller import NodeController
from evenkeel_local.gpu_cluster.processes import CLUSTER_MARK, ProcessGuard
from evenkeel_local.gpu_cluster.registry import Registry
from evenkeel_local.gpu_cluster.replica_set_controller import ReplicaSetController
from evenkeel_local.gpu_cluster.scheduler import PodScheduler
from evenkeel_local.gpu_cluster.store import Store, StoreChange, name_of, namespace_of

NAMESPACES = ("default", "kube-system", "kube-node-lease", "kube-public")
_log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
RESTART_SECONDS = 0.2
SAVE_SECONDS = 1.0


@dataclass
class Ports:
    """The three listeners' ports; 0 means any free one."""

    aws: int = 0
    kubernetes: int = 0
    control: int = 0


@dataclass
class ClusterOptions:
    """How the process was asked to run."""

    config: ClusterConfig
    run_dir: Path
    ports: Ports = field(default_factory=Ports)
    engine_endpoint: str | None = None
    credentials: Mapping[str, str] = field(default_factory=dict)
    state_file: Path | None = None
    data_dir: Path | None = None


class GpuCluster:
    """One set of objects, controllers and machines; a reset makes another."""

    def __init__(
        self,
        config: ClusterConfig,
        run_dir: Path,
        guard: ProcessGuard,
        mark: str,
        engine: EngineClient | None,
        admin_token: str,
        kubernetes_url: str,
        ca_pem: str,
    ) -> None:
        self.config = config
        self.store = Store(config.watch_history)
        self.types = ResourceCatalogue()
        self.registry = Registry(self.store, self.types)
        self.call_faults = CallFaults()
        self.access_entries: list[AccessEntry] = list(config.access_entries)
        self.pod_identities: list[PodIdentity] = list(config.pod_identities)
        self.bus = EventBus(config, engine)
        self._mark = mark
        self._kubernetes_url = kubernetes_url
        self._next_address = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self.registry.new_address = self._new_address
        self.events = ClusterEvents(config, self.bus)
        self.directory = KubeletDirectory()
        self.fleet = MachineFleet(config, self.registry, guard, run_dir, self._variables, self.directory)
        self.fleet.events = self.events
        self.agent = HealthAgent(self.fleet, self.registry, self.bus)
        self.fleet.on_rebooted = self.agent.rebooted
        self.store.listen(self.agent.notice)
        self.hyperpod = HyperPod(self.fleet, self.registry, self.events)
        delays = config.delays
        self.scheduler = PodScheduler(self.registry)
        self.jobs = JobController(self.registry, delays.restart_backoff)
        self.replica_sets = ReplicaSetController(self.registry)
        self.deployments = DeploymentController(self.registry)
        self.endpoints = EndpointsController(self.registry)
        self.nodes = NodeController(self.registry, delays.node_monitor_grace, delays.eviction_toleration)
        self.disruption = DisruptionController(self.registry)
        self.garbage = GarbageCollector(self.registry, delays.pod_gc)
        aws_auth: AwsAuth = NoAuth()
        authenticator: Authenticator = StaticAuthenticator(admin_token, open_to_all=engine is None)
        if engine is not None:
            callers = EngineAuth(engine, config.account, config.region, config.auth_cache_seconds)
            aws_auth = callers
            authenticator = EksAuthenticator(admin_token, engine, callers, config.eks_cluster_name, self.access_entries)
        self.karpenter: Karpenter | None = None
        if config.karpenter is not None:
            self.karpenter = Karpenter(
                config,
                config.karpenter,
                self.registry,
                self.directory,
                guard,
                run_dir,
                self._variables,
                self.bus,
            )
        self.faults = FaultInjector(self.fleet, self.store, self.agent, self.bus, self.karpenter)
        logs = LogReader(self.directory.of_pod, self.store, run_dir)
        executor = ExecRunner(self.directory.of_pod)
        measured = Metrics(self.directory, self.store)
        authorizer = rbac.RbacAuthorizer(self.store)
        self.api_server = ApiServer(
            self.registry, authenticator, authorizer, logs, executor, measured, self.call_faults
        )
        self.aws_api = AwsApi(config, self.hyperpod, aws_auth, self.call_faults, kubernetes_url, ca_pem)
        self.store.listen(self._notify_kubelet)
        self.store.listen(self._create_service_account)

    def start(self, snapshot: dict[str, Any] | None = None) -> None:
        """Create what every cluster begins with, or take up a snapshot; start the controllers and the machines."""
        if snapshot is None:
            self._create_first_objects()
        else:
            snapshots.restore(self, snapshot)
        controllers = [
            self.scheduler.run,
            self.jobs.run,
            self.replica_sets.run,
            self.deployments.run,
            self.endpoints.run,
            self.nodes.run,
            self.garbage.run,
            self.disruption.run,
            self.garbage.collect_pods,
        ]
        if self.karpenter is not None:
            controllers.append(self.karpenter.run)
        for controller in controllers:
            self._tasks.append(asyncio.create_task(_run_controller(controller)))
        if snapshot is None:
            self.fleet.start()
        else:
            self.scheduler.notice_all()
            self.jobs.notice_all()
            self.replica_sets.notice_all()
            self.deployments.notice_all()
            self.endpoints.notice_all()
            self.fleet.resume()

    def _create_first_objects(self) -> None:
        for name in NAMESPACES:
            self.registry.create(catalogue.NAMESPACES, "", {"metadata": {"name": name}})
        for obj in rbac.bootstrap_roles():
            rt = self.types.by_kind(obj["apiVersion"], obj["kind"])
            if rt is not None:
                self.registry.create(rt, "", obj)
        for name, value in (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)):
            pc: Obj = {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
            pc["metadata"].update(uid=secrets.token_hex(16), creationTimestamp="2025-01-01T00:00:00Z")
            self.store.create(catalogue.PRIORITY_CLASSES, pc)
        if self.karpenter is not None:
            self.karpenter.install()

    async def stop(self) -> None:
        """Stop the controllers, switch off the machines, break the watches."""
        self.api_server.drop_watches()
        self.bus.stop()
        self.fleet.stop()
        if self.karpenter is not None:
            self.karpenter.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _notify_kubelet(self, change: StoreChange) -> None:
        if change.key != catalogue.PODS.key:
            return
        kubelet = self.directory.of_pod(change.new)
        if kubelet is None:
            return
        if change.kind == "DELETED":
            kubelet.removed(change.new)
        else:
            kubelet.sync(change.new)

    def _create_service_account(self, change: StoreChange) -> None:
        """Give every namespace the service account that its pods run as."""
        if change.key == catalogue.NAMESPACES.key and change.kind == "ADDED":
            try:
                self.registry.create(catalogue.SERVICE_ACCOUNTS, name_of(change.new), {"metadata": {"name": "default"}})
            except ApiError as refused:
                if refused.code not in (403, 404, 409):
                    raise

    def _new_address(self) -> str:
        """Return a loopback address of its own for a pod; the second part differs between clusters of one machine."""
        second = 64 + os.getpid() % 128
        while True:
            self._next_address = self._next_address % 64_000 + 1
            address = f"127.{second}.{self._next_address // 250}.{self._next_address % 250 + 1}"
            if self.store.count(catalogue.PODS.key) < 32_000 or not self._is_taken(address):
                return address

    def _is_taken(self, address: str) -> bool:
        return any(pod["status"].get("podIP") == address for pod in self.store.each(catalogue.PODS.key))

    def _variables(self, pod: Obj) -> dict[str, str]:
        host, _, port = self._kubernetes_url.removeprefix("https://").partition(":")
        env = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, CLUSTER_MARK: self._mark}
        for identity in self.pod_identities:
            account = pod["spec"].get("serviceAccountName") or "default"
            if identity.namespace == namespace_of(pod) and identity.service_account == account:
                env.update(identity.env)
        return env


async def _run_controller(controller: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a controller; one that breaks says so in the log and begins again, as a controller's pod would."""
    while True:
        try:
            await controller()
        except Exception:  # noqa: BLE001 (the outermost frame of a controller)
            _log.exception("a controller broke and begins again: %s", controller)
        await asyncio.sleep(RESTART_SECONDS)


class Host:
    """The process: certificates, listeners, signals, and the cluster that they serve now."""

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._config = options.config
        self._mark = secrets.token_hex(8)
        self._guard = ProcessGuard(self._mark)
        self._admin_token = _load_token(options.data_dir) or secrets.token_urlsafe(32)
        self._engine: EngineClient | None = None
        self._warming: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._runners: list[web.AppRunner] = []
        self._stop = asyncio.Event()
        self._urls: dict[str, str] = {}
        self._ca_pem = ""
        self.cluster: GpuCluster

    async def run(self) -> None:
        """Run until a signal or a call to the control address ends it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request_stop)
        await self.start()
        try:
            await self._stop.wait()
        finally:
            await self.stop()

    def request_stop(self) -> None:
        """End the process soon."""
        self._stop.set()

    async def start(self) -> None:
        """Open the listeners, start the cluster and write the state file."""
        run_dir = self._options.run_dir
        for folder in (run_dir, self._options.data_dir):
            if folder is not None:
                snapshots.claim(folder)
        self._guard.start()
        sockets = [
            _listen(port)
            for port in (self._options.ports.aws, self._options.ports.kubernetes, self._options.ports.control)
        ]
        aws, kubernetes, control = (f"{LOOPBACK}:{sock.getsockname()[1]}" for sock in sockets)
        self._urls = {
            "sagemakerUrl": f"http://{aws}",
            "eksUrl": f"http://{aws}",
            "kubernetesUrl": f"https://{kubernetes}",
            "controlUrl": f"http://{control}",
        }
        certificate, key = self._certificates(run_dir)
        if self._options.engine_endpoint:
            self._engine = EngineClient(self._options.engine_endpoint, self._options.credentials, self._config.region)
            await self._engine.open()
            self._warming = asyncio.create_task(self._engine.warm_up())
        self.cluster = self._create_cluster()
        data_dir = self._options.data_dir
        self.cluster.start(snapshots.read(data_dir) if data_dir is not None else None)
        if data_dir is not None:
            self._saving = asyncio.create_task(self._save_periodically(data_dir))
        await self._serve(self._delegate("aws_api"), sockets[0])
        await self._serve(self._delegate("api_server"), sockets[1], tls_context(certificate, key))
        await self._serve(Control(self).application(), sockets[2])
        if self._options.state_file is not None:
            written = self._options.state_file.with_suffix(".tmp")
            written.touch(mode=0o600)
            written.write_text(json.dumps(self.state(), indent=2))
            written.replace(self._options.state_file)

    def _delegate(self, part: str) -> web.Application:
        """Return an application that hands each request to the cluster of the moment; a reset changes which that is."""

        async def handle(http: web.Request) -> web.StreamResponse:
            answer: web.StreamResponse = await getattr(self.cluster, part).handle(http)
            return answer

        app = web.Application(client_max_size=4 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", handle)
        return app

    async def _serve(self, app: web.Application, sock: socket.socket, tls: Any = None) -> None:
        app.middlewares.insert(0, only_local_names)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await runner.setup()
        await web.SockSite(runner, sock, ssl_context=tls).start()
        self._runners.append(runner)

    def _certificates(self, run_dir: Path) -> tuple[str, str]:
        # With a data folder they outlive the process: clients keep the authority for as long as they live.
        folder = self._options.data_dir or run_dir
        certificate, key, ca = folder / "apiserver.pem", folder / "apiserver.key", folder / "ca.pem"
        if not (self._options.data_dir and ca.exists()):
            authority = trustme.CA()
            leaf = authority.issue_cert(LOOPBACK, "localhost", "kubernetes", "kubernetes.default")
            key.touch(mode=0o600)
            leaf.private_key_pem.write_to_path(str(key))
            for number, blob in enumerate(leaf.cert_chain_pems):
                blob.write_to_path(str(certificate), append=number > 0)
            # The last of the three to be written, so that it vouches for the others.
            authority.cert_pem.write_to_path(str(ca))
        if self._options.data_dir:
            _save_token(self._options.data_dir, self._admin_token)
        self._ca_pem = ca.read_text()
        (run_dir / "ca.pem").write_text(self._ca_pem)
        return str(certificate), str(key)

    def _create_cluster(self, after_revision: int = 0) -> GpuCluster:
        cluster = GpuCluster(
            self._config,
            self._options.run_dir,
            self._guard,
            self._mark,
            self._engine,
            self._admin_token,
            self._urls["kubernetesUrl"],
            self._ca_pem,
        )
        cluster.store.continue_after(after_revision)
        return cluster

    def state(self) -> dict[str, Any]:
        """Return what a client needs to know; it is what the state file holds."""
        return {
            "pid": os.getpid(),
            **self._urls,
            "caPem": self._ca_pem,
            "adminToken": self._admin_token,
            "clusterName": self._config.cluster_name,
            "clusterArn": self._config.cluster_arn,
            "eksClusterName": self._config.eks_cluster_name,
            "eksClusterArn": self._config.eks_arn,
            "region": self._config.region,
            "runDir": str(self._options.run_dir),
            "authenticated": self._engine is not None,
            "startedAt": time.time(),
        }

    async def _save_periodically(self, folder: Path) -> None:
        saved = 0
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            if self.cluster.store.revision != saved:
                saved = self.cluster.store.revision
                snapshots.write(folder, snapshots.take(self.cluster))

    async def reset(self, snapshot: dict[str, Any] | None = None) -> None:
        """End everything that runs and begin anew, or from a snapshot, at the same addresses.

        Raises:
            SnapshotRefused: the snapshot cannot be taken up; the cluster goes on as it was.
        """
        if snapshot is not None:
            snapshots.restore(self._create_cluster(), snapshot)
        entries, identities = self.cluster.access_entries, self.cluster.pod_identities
        await self.cluster.stop()
        remove_folder(self._options.run_dir / "pods")
        self.cluster = self._create_cluster(self.cluster.store.revision)
        self.cluster.access_entries[:] = entries
        self.cluster.pod_identities[:] = identities
        self.cluster.start(snapshot)

    async def stop(self) -> None:
        """Stop the cluster and its listeners; nothing that it started is left."""
        if self._saving is not None and self._options.data_dir is not None:
            self._saving.cancel()
            snapshots.write(self._options.data_dir, snapshots.take(self.cluster))
        await self.cluster.stop()
        for runner in self._runners:
            await runner.cleanup()
        if self._warming is not None:
            self._warming.cancel()
        if self._engine is not None:
            await self._engine.close()
        self._guard.stop()
        remove_folder(self._options.run_dir / "pods")
        if self._options.state_file is not None:
            self._options.state_file.unlink(missing_ok=True)


def _load_token(folder: Path | None) -> str:
    """Return the admin's token that a former process left in the data folder; empty where there is none."""
    path = folder / "admin-token" if folder else None
    return path.read_text() if path is not None and path.exists() else ""


def _save_token(folder: Path, token: str) -> None:
    path = folder / "admin-token"
    path.touch(mode=0o600)
    path.write_text(token)


def _listen(port: int) -> socket.socket:
    """Return a listening socket on the loopback address.

    Raises:
        OSError: the port is taken.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((LOOPBACK, port))
    except OSError as failed:
        sock.close()
        raise OSError(f"port {port} of {LOOPBACK}: {failed.strerror}") from failed
    sock.listen(256)
    return sock
