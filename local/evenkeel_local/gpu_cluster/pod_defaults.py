"""Defaults of a pod's spec.

Source: `pkg/apis/core/v1/defaults.go` of Kubernetes 1.33. Requests default to limits in pods only, not in the template
of a Job or Deployment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evenkeel_local.gpu_cluster.errors import Obj

READABLE_BY_ALL = 0o644
PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
TOKEN_SECONDS = 3600


def default_pod_spec(spec: Obj) -> None:
    """Set the defaults of pods and pod templates."""
    for field, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
    ):
        spec.setdefault(field, value)
    spec.setdefault("securityContext", {})
    if name := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = name
    for volume in spec.get("volumes") or ():
        _default_volume(volume)
    for container in _containers(spec):
        _default_container(container, on_host=bool(spec.get("hostNetwork")))


def default_pod(spec: Obj) -> None:
    """Set the defaults of pods."""
    default_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in _containers(spec):
        resources = container["resources"]
        for name, amount in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(name, amount)


def _containers(spec: Obj) -> Iterator[Obj]:
    yield from spec.get("containers") or ()
    yield from spec.get("initContainers") or ()


def _default_container(container: Obj, *, on_host: bool) -> None:
    image = str(container.get("image") or "")
    is_latest = ":" not in image.rsplit("/", 1)[-1] or image.endswith(":latest")
    container.setdefault("imagePullPolicy", "Always" if is_latest else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if on_host and port.get("containerPort"):
            port.setdefault("hostPort", port["containerPort"])
    for variable in container.get("env") or ():
        if field := (variable.get("valueFrom") or {}).get("fieldRef"):
            field.setdefault("apiVersion", "v1")
        if resource := (variable.get("valueFrom") or {}).get("resourceFieldRef"):
            resource.setdefault("divisor", "0")
    for kind in PROBES:
        if (probe := container.get(kind)) is not None:
            for field, value in PROBE.items():
                probe.setdefault(field, value)
            _default_request(probe.get("httpGet"))
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict):
            _default_request(handler.get("httpGet"))


def _default_request(request: Obj | None) -> None:
    if request is not None:
        request.setdefault("path", "/")
        request.setdefault("scheme", "HTTP")


def _default_volume(volume: Obj) -> None:
    sources = [value for name, value in volume.items() if name != "name" and value is not None]
    if not sources:
        volume["emptyDir"] = {}
    for kind in ("configMap", "secret", "downwardAPI", "projected"):
        if volume.get(kind) is not None:
            volume[kind].setdefault("defaultMode", READABLE_BY_ALL)
    if volume.get("hostPath") is not None:
        volume["hostPath"].setdefault("type", "")
    downward: list[Any] = [volume.get("downwardAPI")]
    for source in (volume.get("projected") or {}).get("sources") or ():
        downward.append(source.get("downwardAPI"))
        if token := source.get("serviceAccountToken"):
            token.setdefault("expirationSeconds", TOKEN_SECONDS)
    for source in filter(None, downward):
        for item in source.get("items") or ():
            if field := item.get("fieldRef"):
                field.setdefault("apiVersion", "v1")
