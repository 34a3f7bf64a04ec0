"""The cluster: its objects, controllers, machines and APIs."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from evenkeel_local.gpu_cluster import catalogue, rbac, training_operators
from evenkeel_local.gpu_cluster.access_entries_api import AccessEntriesApi
from evenkeel_local.gpu_cluster.api_server import ApiServer, Authenticator
from evenkeel_local.gpu_cluster.aws_api import ApiAccess, AwsApi
from evenkeel_local.gpu_cluster.aws_auth import AwsAuth, EngineAuth, NoAuth
from evenkeel_local.gpu_cluster.call_faults import CallFaults
from evenkeel_local.gpu_cluster.catalogue import ResourceCatalogue
from evenkeel_local.gpu_cluster.cluster_events import ClusterEvents
from evenkeel_local.gpu_cluster.config import AccessEntry, ClusterConfig, PodIdentity
from evenkeel_local.gpu_cluster.deployment_controller import DeploymentController
from evenkeel_local.gpu_cluster.disruption_controller import DisruptionController
from evenkeel_local.gpu_cluster.endpoints_controller import EndpointsController
from evenkeel_local.gpu_cluster.engine import EngineClient
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.event_bus import EngineEventBus
from evenkeel_local.gpu_cluster.faults import FaultInjector
from evenkeel_local.gpu_cluster.garbage_collector import GarbageCollector
from evenkeel_local.gpu_cluster.health_agent import HealthAgent
from evenkeel_local.gpu_cluster.hyperpod import HyperPod
from evenkeel_local.gpu_cluster.job_controller import JobController
from evenkeel_local.gpu_cluster.karpenter_model import Karpenter
from evenkeel_local.gpu_cluster.kube_auth import EksAuthenticator, StaticAuthenticator
from evenkeel_local.gpu_cluster.kubelet import ExecRunner, Kubelet, KubeletDirectory, LogReader
from evenkeel_local.gpu_cluster.machines import MachineFleet
from evenkeel_local.gpu_cluster.metrics import MetricsServer
from evenkeel_local.gpu_cluster.node_controller import NodeController
from evenkeel_local.gpu_cluster.node_groups import AutoScalingGroups
from evenkeel_local.gpu_cluster.processes import CLUSTER_MARK, ProcessGuard
from evenkeel_local.gpu_cluster.registry import Registry
from evenkeel_local.gpu_cluster.replica_set_controller import ReplicaSetController
from evenkeel_local.gpu_cluster.scheduler import PodScheduler
from evenkeel_local.gpu_cluster.store import Store, StoreChange, name_of, namespace_of

NAMESPACES = ("default", "kube-system", "kube-node-lease", "kube-public")
_log = logging.getLogger(__name__)

RESTART_SECONDS = 0.2


class Noticing(Protocol):
    """A controller that queues objects which change."""

    @property
    def run(self) -> Callable[[], Coroutine[Any, Any, None]]:
        """Work until cancelled."""
        ...

    def notice_all(self) -> None:
        """Queue every object that exists."""
        ...


class GpuCluster:
    """A set of objects, controllers and machines; a reset creates a new one."""

    def __init__(
        self,
        config: ClusterConfig,
        run_dir: Path,
        guard: ProcessGuard,
        mark: str,
        engine: EngineClient | None,
        access: ApiAccess,
    ) -> None:
        self.config = config
        self.store = Store(config.watch_history)
        self.types = ResourceCatalogue()
        self.registry = Registry(self.store, self.types)
        self.call_faults = CallFaults()
        self.access_entries: list[AccessEntry] = list(config.access_entries)
        self.pod_identities: list[PodIdentity] = list(config.pod_identities)
        self.bus = EngineEventBus(config, engine)
        self._mark = mark
        self._guard = guard
        self._run_dir = run_dir
        self._kubernetes_url = access.url
        self._next_address = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self.registry.new_address = self._new_address
        self.events = ClusterEvents(config, self.bus)
        self.directory = KubeletDirectory(self._new_kubelet)
        self.fleet = MachineFleet(config, self.registry, self.directory)
        self.fleet.events = self.events
        self.agent = HealthAgent(self.fleet, self.registry, self.bus)
        self.fleet.on_rebooted = self.agent.recheck_after_reboot
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
        authenticator: Authenticator = StaticAuthenticator(access.admin_token, open_to_all=engine is None)
        if engine is not None:
            callers = EngineAuth(engine, config.account, config.region, config.auth_cache_seconds)
            aws_auth = callers
            authenticator = EksAuthenticator(
                access.admin_token, engine, callers, config.eks_cluster_name, self.access_entries
            )
        self.karpenter: Karpenter | None = None
        if config.karpenter is not None:
            self.karpenter = Karpenter(config, config.karpenter, self.registry, self.directory, self.bus)
        operators = training_operators.OPERATORS if config.training_operators else ()
        self.operators = tuple(operator(self.registry) for operator in operators)
        self.groups = AutoScalingGroups(config, self.registry, self.directory)
        self.faults = FaultInjector(self.fleet, self.store, self.agent, self.bus, self.karpenter, self.groups)
        logs = LogReader(self.directory.of_pod, self.store, run_dir)
        executor = ExecRunner(self.directory.of_pod)
        metrics_server = MetricsServer(self.directory, self.store)
        authorizer = rbac.RbacAuthorizer(self.store)
        self.api_server = ApiServer(
            self.registry, authenticator, authorizer, logs, executor, metrics_server, self.call_faults
        )
        entries = AccessEntriesApi(config, self.access_entries)
        self.aws_api = AwsApi(config, self.hyperpod, aws_auth, self.call_faults, access, self.groups, entries)
        self.store.listen(self._notify_kubelet)
        self.store.listen(self._create_service_account)

    def start(self, *, is_restored: bool = False) -> None:
        """Start the controllers and the machines.

        Args:
            is_restored: Whether the cluster was restored from a snapshot. Otherwise the objects that every cluster
                begins with are created.
        """
        if not is_restored:
            self._create_first_objects()
        controllers_of_cluster: tuple[Noticing, ...] = (
            self.scheduler,
            self.jobs,
            self.replica_sets,
            self.deployments,
            self.endpoints,
        )
        noticing: tuple[Noticing, ...] = (*controllers_of_cluster, *self.operators)
        controllers = [controller.run for controller in noticing]
        controllers += [self.nodes.run, self.garbage.run, self.disruption.run]
        controllers.append(self.garbage.collect_pods)
        if self.karpenter is not None:
            controllers.append(self.karpenter.run)
        if self.groups.groups:
            controllers.append(self.groups.run)
        for controller in controllers:
            self._tasks.append(asyncio.create_task(_run_controller(controller)))
        if not is_restored:
            self.fleet.start()
        else:
            for noticer in noticing:
                noticer.notice_all()
            self.fleet.resume()

    def _create_first_objects(self) -> None:
        for name in NAMESPACES:
            self.registry.create(catalogue.NAMESPACES, "", {"metadata": {"name": name}})
        for obj in rbac.bootstrap_roles():
            rt = self.types.by_kind(obj["apiVersion"], obj["kind"])
            if rt is not None:
                self.registry.create(rt, "", obj)
        for name, value in (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)):
            metadata = {"name": name, "uid": secrets.token_hex(16), "creationTimestamp": "2025-01-01T00:00:00Z"}
            rt = catalogue.PRIORITY_CLASSES
            self.store.create(rt, {"apiVersion": rt.api_version, "kind": rt.kind, "metadata": metadata, "value": value})
        if self.karpenter is not None:
            self.karpenter.install()
        if self.operators:
            training_operators.install(self.registry)

    async def stop(self) -> None:
        """Stop the controllers, switch off the machines, and drop the watches."""
        self.api_server.drop_watches()
        self.bus.stop()
        self.fleet.stop()
        if self.karpenter is not None:
            self.karpenter.stop()
        self.groups.stop()
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
        """Create the default service account of every new namespace."""
        if change.key == catalogue.NAMESPACES.key and change.kind == "ADDED":
            try:
                self.registry.create(catalogue.SERVICE_ACCOUNTS, name_of(change.new), {"metadata": {"name": "default"}})
            except ApiError as refusal:
                if refusal.code not in (403, 404, 409):
                    raise

    def _new_address(self) -> str:
        """Return a free loopback address for a pod; its second part differs between the clusters of one machine."""
        second = 64 + os.getpid() % 128
        while True:
            self._next_address = self._next_address % 64_000 + 1
            address = f"127.{second}.{self._next_address // 250}.{self._next_address % 250 + 1}"
            if self.store.count(catalogue.PODS.key) < 32_000 or not self._is_in_use(address):
                return address

    def _is_in_use(self, address: str) -> bool:
        return any(pod["status"].get("podIP") == address for pod in self.store.each(catalogue.PODS.key))

    def _new_kubelet(self, node: str) -> Kubelet:
        delays = self.config.delays
        return Kubelet(
            node,
            self.registry,
            self._guard,
            self._run_dir,
            delays.heartbeat,
            delays.restart_backoff,
            self._variables,
        )

    def _variables(self, pod: Obj) -> dict[str, str]:
        host, _, port = self._kubernetes_url.removeprefix("https://").partition(":")
        env = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, CLUSTER_MARK: self._mark}
        for identity in self.pod_identities:
            account = pod["spec"].get("serviceAccountName") or "default"
            if identity.namespace == namespace_of(pod) and identity.service_account == account:
                env.update(identity.env)
        return env


async def _run_controller(controller: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a controller. Log its failure and restart it, as Kubernetes restarts a controller's pod."""
    while True:
        try:
            await controller()
        except Exception:  # noqa: BLE001 (the outermost frame of a controller)
            _log.exception("a controller failed and restarts: %s", controller)
        await asyncio.sleep(RESTART_SECONDS)
