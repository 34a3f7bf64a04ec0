"""Start a cluster as a process of its own, and call its control address."""

from __future__ import annotations

import base64
import http
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

READY_SECONDS = 30.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.02

Json = dict[str, Any]


class HasEnvironment(Protocol):
    """Credentials that have environment variables."""

    def environment(self) -> Mapping[str, str]:
        """Return `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and perhaps `AWS_SESSION_TOKEN`."""


class ClusterFailed(Exception):
    """The cluster did not start, or its control address refused a call."""


class ClusterHandle:
    """A running cluster."""

    def __init__(self, process: subprocess.Popen[bytes], state: Json) -> None:
        self._process = process
        self.state = state
        self.sagemaker_url: str = state["sagemakerUrl"]
        self.eks_url: str = state["eksUrl"]
        self.kubernetes_url: str = state["kubernetesUrl"]
        self.control_url: str = state["controlUrl"]
        self.ca_pem: str = state["caPem"]
        self.admin_token: str = state["adminToken"]
        self.cluster_name: str = state["clusterName"]
        self.cluster_arn: str = state["clusterArn"]
        self.eks_cluster_name: str = state["eksClusterName"]

    @property
    def pid(self) -> int:
        """The process id of the cluster, which is also its process group."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def port_options(self) -> list[str]:
        """Return the options with which another process uses the addresses of this one."""
        urls = {"--aws-port": self.sagemaker_url, "--kubernetes-port": self.kubernetes_url}
        urls["--control-port"] = self.control_url
        return [word for option, url in urls.items() for word in (option, str(urlsplit(url).port))]

    def control(self, method: str, path: str, body: Json | None = None, timeout: float = 10.0) -> Json:
        """Call the control address: `control("POST", "faults", {...})`.

        Raises:
            ClusterFailed: the request failed; the message is the cluster's.
        """
        data = json.dumps(body).encode() if body is not None else None
        url = f"{self.control_url}/control/{path.lstrip('/')}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        answer = json.loads(_send_request(request, f"{method} {path}", timeout) or b"{}")
        return answer if isinstance(answer, dict) else {}

    def nodes(self) -> list[Json]:
        """Return every node, as the control address shows it."""
        return list(self.control("GET", "nodes")["nodes"])

    def processes(self) -> list[Json]:
        """Return every container process that runs."""
        return list(self.control("GET", "processes?running=true")["processes"])

    def inject(self, fault: str, **options: Any) -> Json:
        """Inject a fault; return it with the node that it hit."""
        return self.control("POST", "faults", {"fault": fault, **options})

    def clear(self, fault_id: str) -> Json:
        """Clear a fault."""
        return self.control("DELETE", f"faults/{fault_id}")

    def put_pod_identity(self, namespace: str, service_account: str, env: Mapping[str, str]) -> None:
        """Set environment variables of the pods of a service account."""
        self.control("PUT", f"pod-identities/{namespace}/{service_account}", {"env": dict(env)})

    def put_access_entry(
        self, principal_arn: str, groups: Iterable[str] = (), username: str | None = None, policies: Iterable[str] = ()
    ) -> None:
        """Set the EKS access entry of an IAM principal."""
        body: Json = {"kubernetesGroups": list(groups), "accessPolicies": list(policies)}
        if username is not None:
            body["username"] = username
        self.control("PUT", f"access-entries/{principal_arn}", body)

    def apply(self, documents: Iterable[Json]) -> None:
        """Create or update Kubernetes objects as the admin.

        Idempotent: yes, by server-side apply.

        Raises:
            ClusterFailed: the API refused an object; the message is the API's.
        """
        for document in documents:
            self.control("POST", "apply", dict(document))

    def get(self, path: str) -> Json:
        """Read Kubernetes objects as the admin, by their path.

        Raises:
            ClusterFailed: the API refused.
        """
        document: Json = json.loads(self._ask("GET", path))
        return document

    def delete(self, path: str) -> None:
        """Delete a Kubernetes object as the admin, by its path.

        Idempotent: yes, a missing object is no error.

        Raises:
            ClusterFailed: the API refused.
        """
        self._ask("DELETE", path, fine=(http.HTTPStatus.NOT_FOUND,))

    def _ask(self, method: str, path: str, fine: tuple[int, ...] = ()) -> bytes:
        request = urllib.request.Request(
            self.kubernetes_url + path, headers={"Authorization": f"Bearer {self.admin_token}"}, method=method
        )
        return _send_request(request, f"{method} {path}", 10.0, self.ca_pem, fine)

    def kubeconfig(self, token: str | None = None) -> Json:
        """Return a kubeconfig for kubectl and helm; kubectl reads JSON where it reads YAML.

        Args:
            token: The bearer token; the admin's by default.
        """
        name, ca = self.eks_cluster_name, base64.b64encode(self.ca_pem.encode()).decode()
        cluster = {"server": self.kubernetes_url, "certificate-authority-data": ca}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": token or self.admin_token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": "admin"}}],
            "current-context": name,
        }

    def stop(self) -> None:
        """Stop the cluster with all its processes, and wait for the end. Idempotent: yes."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __enter__(self) -> Self:
        """Use the cluster for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the cluster at the end of the block."""
        self.stop()


def _send_request(
    request: urllib.request.Request, call: str, timeout: float, ca_pem: str | None = None, fine: tuple[int, ...] = ()
) -> bytes:
    """Send a request to loopback, without a proxy. For an error status in `fine`, return nothing.

    Raises:
        ClusterFailed: the request failed, or the cluster refused it; the message is the cluster's.
    """
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if ca_pem is not None:
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cadata=ca_pem)))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout) as response:
            body: bytes = response.read()
            return body
    except urllib.error.HTTPError as refusal:
        with refusal:
            if refusal.code not in fine:
                raise ClusterFailed(f"{call}: {refusal.code} {refusal.read().decode()}") from refusal
            return b""
    except OSError as failure:
        raise ClusterFailed(f"{call}: {failure}") from failure


def start(
    config: Mapping[str, Any],
    run_dir: Path | str,
    engine_endpoint: str | None = None,
    credentials: Mapping[str, str] | HasEnvironment | None = None,
    data_dir: Path | str | None = None,
    after: ClusterHandle | None = None,
) -> ClusterHandle:
    """Start a cluster in a process group of its own, and wait until it is ready. It ends with this process.

    Args:
        config: The configuration document (`config.ClusterConfig`), camelCase.
        run_dir: A folder for the cluster's files; created if it does not exist.
        engine_endpoint: The AWS emulator. Without it, every request is allowed, and events are only recorded.
        credentials: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and perhaps `AWS_SESSION_TOKEN` of the cluster itself.
        data_dir: Keeps the state across restarts; by default the state is in memory.
        after: A cluster that has ended, whose addresses this one reuses.

    Raises:
        ClusterFailed: the cluster did not start; the message holds its output.
    """
    folder = Path(run_dir).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    config_file, state_file, log_file = folder / "config.json", folder / "state.json", folder / "cluster.log"
    config_file.write_text(json.dumps(config))
    state_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "evenkeel_local.gpu_cluster", "--config", str(config_file)]
    command += ["--run-dir", str(folder), "--state-file", str(state_file)]
    command += ["--engine-endpoint", engine_endpoint] if engine_endpoint else ["--no-auth"]
    command.append("--stop-with-stdin")
    command += ["--data", str(data_dir)] if data_dir is not None else []
    command += after.port_options() if after is not None else []
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    if credentials is not None:
        env.update(credentials if isinstance(credentials, Mapping) else credentials.environment())
    with log_file.open("ab" if after is not None else "wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=env, start_new_session=True
        )
    deadline = time.monotonic() + READY_SECONDS
    while not state_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
            raise ClusterFailed(f"the cluster did not start:\n{log_file.read_text()[-4000:]}")
        time.sleep(POLL_SECONDS)
    return ClusterHandle(process, json.loads(state_file.read_text()))
