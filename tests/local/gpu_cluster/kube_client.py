"""A plain client of the Kubernetes API, and builders of request bodies."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import urllib3

from tests.waiting import until

Json = dict[str, Any]
T = TypeVar("T")

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON_PATCH, APPLY = "application/json-patch+json", "application/apply-patch+yaml"
PODS, NODES, JOBS = "/api/v1/namespaces/default/pods", "/api/v1/nodes", "/apis/batch/v1/namespaces/default/jobs"
SERVICES, CONFIG_MAPS = "/api/v1/namespaces/default/services", "/api/v1/namespaces/default/configmaps"


def eventually(look: Callable[[], T | None], what: str, seconds: float = 15.0) -> T:
    """Poll until `look` returns a true value, and return it."""
    value = until(look, what, seconds)
    assert value is not None
    return value


class KubeApiError(Exception):
    """The API answered with a failed Status."""

    def __init__(self, code: int, status: Json, headers: dict[str, str]) -> None:
        super().__init__(f"{code} {status.get('reason')}: {status.get('message')}")
        self.code = code
        self.reason = status.get("reason")
        self.status = status
        self.headers = headers


class KubeClient:
    """Sends requests with one token."""

    def __init__(self, url: str, ca_pem: str, token: str) -> None:
        self.url = url
        self.token = token
        self._headers: dict[str, str] = {}
        self._pool = urllib3.PoolManager(ssl_context=ssl.create_default_context(cadata=ca_pem), retries=False)

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()

    @contextmanager
    def acting_as(self, user: str) -> Iterator[None]:
        """Send the following requests as another user."""
        self._headers = {"Impersonate-User": user}
        try:
            yield
        finally:
            self._headers = {}

    @contextmanager
    def accepting(self, media: str) -> Iterator[None]:
        """Request the following answers in another media type."""
        self._headers = {"Accept": media}
        try:
            yield
        finally:
            self._headers = {}

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """Return the decoded answer; raise `KubeApiError` for a failure."""
        data = body if isinstance(body, bytes | str) else None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type, **self._headers}
        answer = self._pool.request(method, self.url + path, body=data, headers=headers, timeout=30)
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        decoded: Any = json.loads(answer.data) if is_json else answer.data.decode()
        if answer.status >= 400:
            raise KubeApiError(answer.status, decoded if is_json else {}, dict(answer.headers))
        return decoded

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def create(self, path: str, body: Json) -> Json:
        return dict(self.call("POST", path, body))

    def delete(self, path: str, options: Json | None = None) -> Json:
        return dict(self.call("DELETE", path, options))

    def patch(self, path: str, body: Any, content_type: str = MERGE) -> Json:
        return dict(self.call("PATCH", path, body, content_type))

    def status_of(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> KubeApiError:
        """Make a call that must be refused, and return the refusal."""
        try:
            answer = self.call(method, path, body, content_type)
        except KubeApiError as refused:
            return refused
        raise AssertionError(f"{method} {path} was not refused: {answer}")

    def watch(self, path: str, seconds: int = 5) -> Iterator[Json]:
        """Yield watch events until the server ends the watch."""
        joined = f"{path}{'&' if '?' in path else '?'}watch=true&timeoutSeconds={seconds}"
        answer = self._pool.request(
            "GET",
            self.url + joined,
            headers={"Authorization": f"Bearer {self.token}"},
            preload_content=False,
            timeout=urllib3.Timeout(connect=5, read=seconds + 10),
        )
        try:
            if answer.status >= 400:
                raise KubeApiError(answer.status, json.loads(answer.data), dict(answer.headers))
            rest = b""
            for chunk in answer.stream(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield json.loads(line)
        finally:
            answer.close()

    def items(self, path: str) -> list[Json]:
        return list(self.get(path)["items"])

    def until(self, path: str, test: Callable[[Json], Any], what: str, seconds: float = 15.0) -> Json:
        """Wait until an object passes the test, and return it."""
        return eventually(lambda: obj if test(obj := self.get(path)) else None, what, seconds)

    def until_gone(self, path: str, seconds: float = 15.0) -> None:
        """Wait until an object is deleted."""

        def gone() -> bool:
            try:
                self.get(path)
            except KubeApiError as refused:
                return refused.code == 404
            return False

        eventually(gone, f"{path} to be gone", seconds)


def a_pod(name: str, *command: str, gpus: int = 0, **spec: Any) -> Json:
    """Return a pod with one container; without a command it has no process and runs until deleted."""
    container: Json = {"name": "main", "image": "registry.invalid/main:1", "resources": {}}
    if command:
        container["command"] = list(command)
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 2, **spec},
    }


def a_claim(name: str) -> Json:
    """Return a claim of a shared file system."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1200Gi"}}}
    return {"metadata": {"name": name}, "spec": spec}


def a_job(name: str, *command: str, completions: int = 1, gpus: int = 0, spec: Json | None = None, **pod: Any) -> Json:
    """Return an Indexed Job as Evenkeel makes it: no retries, and only failed pods are replaced."""
    template = a_pod(name, *command, gpus=gpus, **pod)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completions": completions,
            "parallelism": completions,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "template": {"metadata": {"labels": {"app": name}}, "spec": template["spec"]},
            **(spec or {}),
        },
    }


def condition(obj: Json, kind: str) -> str | None:
    """Return the status of an object's condition."""
    for entry in obj.get("status", {}).get("conditions") or ():
        if entry["type"] == kind:
            return str(entry["status"])
    return None
