"""The process that serves the cluster: options, listeners, certificates, signals and saved state."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme
from aiohttp import web

from evenkeel_local.gpu_cluster import snapshots
from evenkeel_local.gpu_cluster.api_server import tls_context
from evenkeel_local.gpu_cluster.aws_api import ApiAccess
from evenkeel_local.gpu_cluster.cluster import GpuCluster
from evenkeel_local.gpu_cluster.config import ClusterConfig
from evenkeel_local.gpu_cluster.control import Control
from evenkeel_local.gpu_cluster.engine import EngineClient
from evenkeel_local.gpu_cluster.host_names import only_local_names
from evenkeel_local.gpu_cluster.kubelet import remove_folder
from evenkeel_local.gpu_cluster.processes import ProcessGuard

LOOPBACK = "127.0.0.1"
SAVE_SECONDS = 1.0


@dataclass
class TcpPorts:
    """The ports of the three listeners; 0 means any free port."""

    aws: int = 0
    kubernetes: int = 0
    control: int = 0


@dataclass
class ClusterOptions:
    """The options of the process."""

    config: ClusterConfig
    run_dir: Path
    ports: TcpPorts = field(default_factory=TcpPorts)
    engine_endpoint: str | None = None
    credentials: Mapping[str, str] = field(default_factory=dict)
    state_file: Path | None = None
    data_dir: Path | None = None


class ClusterProcess:
    """The process of the simulated cluster: its certificates, listeners, signals and saved state."""

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

    async def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Run until a signal or a request to the control address ends it.

        Args:
            on_ready: Called when the cluster serves requests.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request_stop)
        await self.start()
        if on_ready is not None:
            on_ready()
        try:
            await self._stop.wait()
        finally:
            await self.stop()

    def request_stop(self) -> None:
        """Let the process end."""
        self._stop.set()

    async def start(self) -> None:
        """Open the listeners, start the cluster and write the state file."""
        run_dir = self._options.run_dir
        for folder in (run_dir, self._options.data_dir):
            if folder is not None:
                snapshots.lock_folder(folder)
        self._guard.start()
        ports = self._options.ports
        sockets = [_listen(port) for port in (ports.aws, ports.kubernetes, ports.control)]
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
        self._start_cluster(snapshots.read_snapshot(data_dir) if data_dir is not None else None)
        if data_dir is not None:
            self._saving = asyncio.create_task(self._save_periodically(data_dir))
        await self._serve(self._delegate("aws_api"), sockets[0])
        await self._serve(self._delegate("api_server"), sockets[1], tls_context(certificate, key))
        await self._serve(Control(self).application(), sockets[2])
        if self._options.state_file is not None:
            temporary_file = self._options.state_file.with_suffix(".tmp")
            temporary_file.touch(mode=0o600)
            temporary_file.write_text(json.dumps(self.state(), indent=2))
            temporary_file.replace(self._options.state_file)

    def _delegate(self, part: str) -> web.Application:
        """Return an application that passes each request to the current cluster; a reset replaces the cluster."""

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
        # A data folder keeps the certificates, so that clients can trust the same authority after a restart.
        folder = self._options.data_dir or run_dir
        certificate, key, ca = folder / "apiserver.pem", folder / "apiserver.key", folder / "ca.pem"
        if not (self._options.data_dir and ca.exists()):
            authority = trustme.CA()
            leaf = authority.issue_cert(LOOPBACK, "localhost", "kubernetes", "kubernetes.default")
            key.touch(mode=0o600)
            leaf.private_key_pem.write_to_path(str(key))
            for number, blob in enumerate(leaf.cert_chain_pems):
                blob.write_to_path(str(certificate), append=number > 0)
            # This file is written last: if it exists, the other two exist.
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
            ApiAccess(self._urls["kubernetesUrl"], self._ca_pem, self._admin_token),
        )
        cluster.store.continue_after(after_revision)
        return cluster

    def _start_cluster(self, snapshot: dict[str, Any] | None) -> None:
        if snapshot is not None:
            snapshots.restore_snapshot(self.cluster, snapshot)
        self.cluster.start(is_restored=snapshot is not None)

    def state(self) -> dict[str, Any]:
        """Return the content of the state file: what a client needs to know."""
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
        saved_revision = 0
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            if self.cluster.store.revision != saved_revision:
                saved_revision = self.cluster.store.revision
                snapshots.write_snapshot(folder, snapshots.take_snapshot(self.cluster))

    async def reset(self, snapshot: dict[str, Any] | None = None) -> None:
        """Restart the cluster at the same addresses, empty or from a snapshot.

        Raises:
            SnapshotRefused: the snapshot cannot be restored; the cluster continues unchanged.
        """
        if snapshot is not None:
            snapshots.restore_snapshot(self._create_cluster(), snapshot)
        entries, identities = self.cluster.access_entries, self.cluster.pod_identities
        await self.cluster.stop()
        remove_folder(self._options.run_dir / "pods")
        self.cluster = self._create_cluster(self.cluster.store.revision)
        self.cluster.access_entries[:] = entries
        self.cluster.pod_identities[:] = identities
        self._start_cluster(snapshot)

    async def stop(self) -> None:
        """Stop the cluster with its listeners and all its processes."""
        if self._saving is not None and self._options.data_dir is not None:
            self._saving.cancel()
            snapshots.write_snapshot(self._options.data_dir, snapshots.take_snapshot(self.cluster))
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
    """Return the admin's token in the data folder; empty without one."""
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
    except OSError as failure:
        sock.close()
        raise OSError(f"port {port} of {LOOPBACK}: {failure.strerror}") from failure
    sock.listen(256)
    return sock
