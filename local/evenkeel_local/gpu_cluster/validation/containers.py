"""Checks of a pod's containers: names, images, environment, mounts, ports, probes and resources.

Source: `pkg/apis/core/validation` of Kubernetes 1.33.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.quantities import parse_quantity
from evenkeel_local.gpu_cluster.validation import names
from evenkeel_local.gpu_cluster.validation.causes import (
    Cause,
    at_least_zero,
    duplicate,
    forbidden,
    invalid,
    not_found,
    not_supported,
    one_of,
    required,
)

STANDARD_RESOURCES = frozenset(
    {"cpu", "memory", "ephemeral-storage", "storage", "pods", "services", "secrets", "configmaps", "resourcequotas"}
)
CONTAINER_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})
HUGE_PAGES = "hugepages-"
ENV_FIELDS = (
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
OTHER_FIELDS = ("metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName", "status.phase")
SUBSCRIPT = re.compile(r"^metadata\.(annotations|labels)\['([^']*)'\]$")
CHOICES = {
    "terminationMessagePolicy": ("FallbackToLogsOnError", "File"),
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
}
SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef")
ACTIONS = ("exec", "httpGet", "tcpSocket", "grpc")


def check_containers(spec: Obj, path: str) -> Iterator[Cause]:
    """Yield the problems of the containers of a pod's spec."""
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    if not spec.get("containers"):
        yield required(f"{path}.containers")
    names: set[str] = set()
    host_ports: set[tuple[Any, ...]] = set()
    for field in ("containers", "initContainers"):
        for number, container in enumerate(spec.get(field) or ()):
            at, name = f"{path}.{field}[{number}]", container.get("name") or ""
            yield from _check_container(container, volumes, at)
            if name in names and name:
                yield duplicate(f"{at}.name", name)
            names.add(name)
            yield from _check_ports(container.get("ports") or (), f"{at}.ports", bool(spec.get("hostNetwork")))
            if field == "containers":
                yield from _check_host_ports(container.get("ports") or (), f"{at}.ports", host_ports)


def _check_container(container: Obj, volumes: set[Any], at: str) -> Iterator[Cause]:
    name, image = container.get("name") or "", container.get("image") or ""
    yield from names.check_required(f"{at}.name", name, names.label_errors)
    if not image:
        yield required(f"{at}.image")
    elif image != image.strip():
        yield invalid(f"{at}.image", image, "must not have leading or trailing whitespace")
    for field, choices in CHOICES.items():
        yield from one_of(f"{at}.{field}", container.get(field), choices)
    yield from _check_environment(container, at)
    yield from _check_mounts(container, volumes, at)
    yield from check_resources(container.get("resources") or {}, f"{at}.resources")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(probe) is not None:
            yield from _check_probe(container[probe], f"{at}.{probe}")


# Environment


def _check_environment(container: Obj, at: str) -> Iterator[Cause]:
    for number, variable in enumerate(container.get("env") or ()):
        variable_path, name = f"{at}.env[{number}]", variable.get("name") or ""
        yield from names.check_required(f"{variable_path}.name", name, names.environment_name_errors)
        if (source := variable.get("valueFrom")) is not None:
            yield from _check_source(variable, source, f"{variable_path}.valueFrom")
    for number, source in enumerate(container.get("envFrom") or ()):
        variable_path = f"{at}.envFrom[{number}]"
        if prefix := source.get("prefix"):
            yield from names.causes(f"{variable_path}.prefix", prefix, names.environment_name_errors(prefix))
        references = [field for field in ("configMapRef", "secretRef") if source.get(field) is not None]
        for reference in references:
            yield from _check_reference(source[reference].get("name") or "", f"{variable_path}.{reference}.name")
        if not references:
            yield invalid(variable_path, "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(references) > 1:
            yield invalid(variable_path, "", "may not have more than one field specified at a time")


def _check_source(variable: Obj, source: Obj, at: str) -> Iterator[Cause]:
    stated_sources = [field for field in SOURCES if source.get(field) is not None]
    if "fieldRef" in stated_sources:
        yield from _check_field(source["fieldRef"].get("fieldPath") or "", f"{at}.fieldRef")
    if "resourceFieldRef" in stated_sources:
        yield from _check_resource_field(source["resourceFieldRef"].get("resource") or "", f"{at}.resourceFieldRef")
    for field in ("configMapKeyRef", "secretKeyRef"):
        if field in stated_sources:
            key = source[field].get("key") or ""
            yield from _check_reference(source[field].get("name") or "", f"{at}.{field}.name")
            yield from names.check_required(f"{at}.{field}.key", key, names.config_key_errors)
    if not stated_sources:
        sources_text = f"{', '.join(f'`{source_name}`' for source_name in SOURCES[:-1])} or `{SOURCES[-1]}`"
        yield invalid(at, "", f"must specify one of: {sources_text}")
    if variable.get("value") and stated_sources:
        yield invalid(at, "", "may not be specified when `value` is not empty")
    elif len(stated_sources) > 1:
        yield invalid(at, "", "may not have more than one field specified at a time")


def _check_reference(name: str, field: str) -> Iterator[Cause]:
    if not name:
        yield required(field)
    else:
        yield from names.causes(field, name, names.subdomain_errors(name))


def _check_field(path: str, at: str) -> Iterator[Cause]:
    subscript = SUBSCRIPT.match(path)
    if not path:
        yield required(f"{at}.fieldPath")
    elif subscript is not None:
        key = subscript.group(2)
        yield from names.causes(at, key, names.qualified_name_errors(key.lower()))
    elif path in OTHER_FIELDS:
        yield not_supported(f"{at}.fieldPath", path, ENV_FIELDS)
    elif path not in ENV_FIELDS:
        message = f"error converting fieldPath: field label not supported: {path}"
        yield invalid(f"{at}.fieldPath", path, message)


def _check_resource_field(resource: str, at: str) -> Iterator[Cause]:
    choices = [
        f"{section}.{name}" for section in ("limits", "requests") for name in ("cpu", "ephemeral-storage", "memory")
    ]
    if not resource:
        yield required(f"{at}.resource")
    elif resource not in choices and f".{HUGE_PAGES}" not in resource:
        yield not_supported(f"{at}.resource", resource, choices)


# Mounts and ports


def _check_mounts(container: Obj, volumes: set[Any], at: str) -> Iterator[Cause]:
    paths: set[str] = set()
    for number, mount in enumerate(container.get("volumeMounts") or ()):
        mount_path, name, path = f"{at}.volumeMounts[{number}]", mount.get("name") or "", mount.get("mountPath") or ""
        if not name:
            yield required(f"{mount_path}.name")
        if name not in volumes:
            yield not_found(f"{mount_path}.name", name)
        if not path:
            yield required(f"{mount_path}.mountPath")
        if path in paths:
            yield invalid(f"{mount_path}.mountPath", path, "must be unique")
        paths.add(path)
        sub = mount.get("subPath") or ""
        if sub and mount.get("subPathExpr"):
            yield invalid(
                f"{mount_path}.subPathExpr", mount["subPathExpr"], "subPathExpr and subPath are mutually exclusive"
            )
        for field in ("subPath", "subPathExpr"):
            yield from _check_descending(mount.get(field) or "", f"{mount_path}.{field}")


def _check_descending(path: str, field: str) -> Iterator[Cause]:
    if path.startswith("/"):
        yield invalid(field, path, "must be a relative path")
    if ".." in path.split("/"):
        yield invalid(field, path, "must not contain '..'")


def _check_ports(ports: Any, path: str, on_host: bool) -> Iterator[Cause]:
    port_names: set[str] = set()
    for number, port in enumerate(ports):
        at, name, value = f"{path}[{number}]", port.get("name") or "", port.get("containerPort") or 0
        if name:
            reasons = names.port_name_errors(name)
            yield from names.causes(f"{at}.name", name, reasons)
            if not reasons and name in port_names:
                yield duplicate(f"{at}.name", name)
            port_names.add(name)
        yield from names.check_required(f"{at}.containerPort", value, names.port_number_errors)
        if host := port.get("hostPort"):
            yield from names.causes(f"{at}.hostPort", host, names.port_number_errors(host))
            if on_host and host != value:
                yield invalid(f"{at}.hostPort", host, "must match `containerPort` when `hostNetwork` is true")
        yield from one_of(f"{at}.protocol", port.get("protocol"), ("SCTP", "TCP", "UDP"))


def _check_host_ports(ports: Any, path: str, used_ports: set[tuple[Any, ...]]) -> Iterator[Cause]:
    for number, port in enumerate(ports):
        if host := port.get("hostPort"):
            use = (port.get("protocol") or "TCP", port.get("hostIP") or "", host)
            if use in used_ports:
                yield duplicate(f"{path}[{number}].hostPort", "/".join(map(str, use)))
            used_ports.add(use)


def _check_probe(probe: Obj, at: str) -> Iterator[Cause]:
    actions = [action for action in ACTIONS if probe.get(action) is not None]
    if not actions:
        yield required(at, "must specify a handler type")
    for action in actions[1:]:
        yield forbidden(f"{at}.{action}", "may not specify more than 1 handler type")
    if "exec" in actions and not probe["exec"].get("command"):
        yield required(f"{at}.exec.command")
    for action in ("httpGet", "tcpSocket"):
        if action in actions and isinstance(port := probe[action].get("port"), int):
            yield from names.causes(f"{at}.{action}.port", port, names.port_number_errors(port))
    for field in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        yield from at_least_zero(f"{at}.{field}", probe.get(field))


# Resources


def check_resources(resources: Obj, at: str) -> Iterator[Cause]:
    """Yield the problems of a container's limits and requests."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for section, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            field = f"{at}.{section}[{name}]"
            yield from check_resource_name(name, field)
            if "/" not in name and name not in CONTAINER_RESOURCES and not name.startswith(HUGE_PAGES):
                yield invalid(field, name, "must be a standard resource for containers")
            yield from check_amount(name, amount, field)
            if section == "requests":
                yield from _check_against_limit(name, amount, limits, at)


def check_resource_name(name: str, field: str) -> Iterator[Cause]:
    """Yield the problems of the name of a resource."""
    reasons = names.qualified_name_errors(name)
    yield from names.causes(field, name, reasons)
    if not reasons and "/" not in name and name not in STANDARD_RESOURCES and not name.startswith(HUGE_PAGES):
        yield invalid(field, name, "must be a standard resource type or fully qualified")


def check_amount(name: str, amount: Any, field: str) -> Iterator[Cause]:
    """Yield the problems of the amount of a resource."""
    try:
        value = parse_quantity(amount)
    except ValueError as error:
        yield invalid(field, amount, str(error))
        return
    if value < 0:
        yield invalid(field, amount, "must be greater than or equal to 0")
    if is_extended(name) and value != int(value):
        yield invalid(field, amount, "must be an integer")


def _check_against_limit(name: str, amount: Any, limits: Obj, at: str) -> Iterator[Cause]:
    in_full = is_extended(name) or name.startswith(HUGE_PAGES)
    if name not in limits:
        if in_full:
            yield required(f"{at}.limits", "Limit must be set for non overcommitable resources")
        return
    value, limit = parse_quantity(amount), parse_quantity(limits[name])
    if in_full and value != limit:
        yield invalid(f"{at}.requests", amount, f"must be equal to {name} limit of {limits[name]}")
    elif value > limit:
        yield invalid(f"{at}.requests", amount, f"must be less than or equal to {name} limit of {limits[name]}")


def is_extended(name: str) -> bool:
    """Whether a resource is counted in whole units, such as GPUs and network adapters."""
    return "/" in name and not name.partition("/")[0].endswith("kubernetes.io")
