"""Tables for `kubectl get`.

Source: `pkg/printers/internalversion/printers.go` of Kubernetes 1.33. Custom resources define their own columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.objects import condition_of, is_deleting, is_true, labels_of
from evenkeel_local.gpu_cluster.store import ResourceType, TypeKey, name_of

NONE = "<none>"
UNKNOWN = "<unknown>"
_INDEXED = re.compile(r"^([^\[]*)\[(?:(\d+)|\?\(@\.([\w]+)\s*==\s*[\"']([^\"']+)[\"']\))\]$")


@dataclass(frozen=True)
class PrinterColumn:
    """A column of a kind's table; columns of priority 1 show with `-o wide`."""

    name: str
    cell: Callable[[Obj], Any]
    type: str = "string"
    priority: int = 0


def is_table_requested(accept: str) -> bool:
    """Whether the client asked for a table."""
    return "as=Table" in accept


def table_of(rt: ResourceType, objects: list[Obj], metadata: Obj, include: str) -> Obj:
    """Return a `meta.k8s.io/v1` Table of objects."""
    columns = [*_columns(rt), WIDE_NAME] if rt.key == catalogue.EVENTS.key else [NAME, *_columns(rt)]
    rows: list[Obj] = []
    for obj in objects:
        row: Obj = {"cells": [column.cell(obj) for column in columns]}
        if include == "Object":
            row["object"] = obj
        elif include != "None":
            partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
            row["object"] = {**partial, "metadata": obj["metadata"]}
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": "name" if column.cell is name_of else "",
                "description": "",
                "priority": column.priority,
            }
            for column in columns
        ],
        "rows": rows,
    }


def _columns(rt: ResourceType) -> tuple[PrinterColumn, ...]:
    if rt.custom:
        return tuple(_custom_column(spec) for spec in rt.columns) or (AGE,)
    return COLUMNS.get(rt.key, (AGE,))


# Ages


def age_text(moment: str | None) -> str:
    """Return how long ago a time was, as kubectl writes it."""
    if not moment:
        return UNKNOWN
    return duration_text((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())


def duration_text(seconds: float) -> str:
    """Write a duration. Source: `HumanDuration` of `k8s.io/apimachinery/pkg/util/duration`."""
    full_seconds = int(seconds)
    if full_seconds < -1:
        return "<invalid>"
    if full_seconds < 0:
        return "0s"
    if full_seconds < 120:
        return f"{full_seconds}s"
    minutes = full_seconds // 60
    if minutes < 10:
        return f"{minutes}m{full_seconds % 60}s" if full_seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 365 * 2:
        return f"{days}d"
    years = days // 365
    return f"{years}y{days % 365}d" if years < 8 and days % 365 else f"{years}y"


NAME = PrinterColumn("Name", name_of)
WIDE_NAME = PrinterColumn("Name", name_of, priority=1)
AGE = PrinterColumn("Age", lambda obj: age_text(obj["metadata"].get("creationTimestamp")))


# Pods


def pod_status(pod: Obj) -> str:
    """Return the STATUS column of a pod."""
    status = pod.get("status") or {}
    reason = str(status.get("reason") or status.get("phase") or "Unknown")
    for number, container in enumerate(status.get("initContainerStatuses") or ()):
        terminated_state = (container.get("state") or {}).get("terminated")
        if terminated_state and terminated_state.get("exitCode") == 0:
            continue
        waiting_reason = ((container.get("state") or {}).get("waiting") or {}).get("reason")
        if terminated_state:
            reason = f"Init:{terminated_state.get('reason') or 'Error'}"
        elif waiting_reason and waiting_reason not in ("PodInitializing", "ContainerCreating"):
            reason = f"Init:{waiting_reason}"
        else:
            reason = f"Init:{number}/{len(pod['spec'].get('initContainers') or ())}"
        break
    else:
        for container in reversed(status.get("containerStatuses") or []):
            state = container.get("state") or {}
            if (state.get("waiting") or {}).get("reason"):
                reason = state["waiting"]["reason"]
            elif state.get("terminated"):
                reason = state["terminated"].get("reason") or f"ExitCode:{state['terminated'].get('exitCode')}"
    if is_deleting(pod):
        return "Terminating"
    return reason


def _pod_ready(pod: Obj) -> str:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return f"{sum(1 for item in statuses if item.get('ready'))}/{len(pod['spec'].get('containers') or ())}"


def _pod_restarts(pod: Obj) -> str:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    count = sum(int(item.get("restartCount") or 0) for item in statuses)
    ends = [((item.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for item in statuses]
    last_end = max((end for end in ends if end), default=None)
    return f"{count} ({age_text(last_end)} ago)" if count and last_end else str(count)


# Nodes


def _node_status(node: Obj) -> str:
    ready = condition_of(node, "Ready")
    parts = ["Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"]
    if (node.get("spec") or {}).get("unschedulable"):
        parts.append("SchedulingDisabled")
    return ",".join(parts)


def _node_roles(node: Obj) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = labels_of(node)
    roles = sorted(key[len(prefix) :] for key in labels if key.startswith(prefix) and key != prefix)
    return ",".join(roles) or NONE


def _node_info(field: str) -> Callable[[Obj], str]:
    return lambda node: str(((node.get("status") or {}).get("nodeInfo") or {}).get(field) or UNKNOWN)


def _node_address(kind: str) -> Callable[[Obj], str]:
    def find(node: Obj) -> str:
        for address in (node.get("status") or {}).get("addresses") or ():
            if address["type"] == kind:
                return str(address["address"])
        return NONE

    return find


# Jobs


def _job_status(job: Obj) -> str:
    for kind in ("Complete", "Failed"):
        if is_true(job, kind):
            return kind
    if is_deleting(job):
        return "Terminating"
    for kind in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if is_true(job, kind):
            return kind
    return "Running"


def _job_completions(job: Obj) -> str:
    succeeded_pods = int((job.get("status") or {}).get("succeeded") or 0)
    completions, parallelism = job["spec"].get("completions"), int(job["spec"].get("parallelism") or 0)
    if completions is not None:
        return f"{succeeded_pods}/{completions}"
    return f"{succeeded_pods}/1 of {parallelism}" if parallelism > 1 else f"{succeeded_pods}/1"


def _job_duration(job: Obj) -> str:
    status = job.get("status") or {}
    if not status.get("startTime"):
        return ""
    end = status.get("completionTime")
    if not end:
        return age_text(status["startTime"])
    took = datetime.fromisoformat(end) - datetime.fromisoformat(status["startTime"])
    return duration_text(took.total_seconds())


def _template(part: str) -> Callable[[Obj], str]:
    return lambda obj: ",".join(str(item.get(part) or "") for item in obj["spec"]["template"]["spec"]["containers"])


def _selector(obj: Obj) -> str:
    selector = (obj.get("spec") or {}).get("selector") or {}
    labels = selector.get("matchLabels", selector)
    return ",".join(f"{key}={value}" for key, value in labels.items() if isinstance(value, str)) or NONE


# The rest


def _ports(service: Obj) -> str:
    parts = [
        f"{port.get('port')}{':' + str(port['nodePort']) if port.get('nodePort') else ''}/{port.get('protocol', 'TCP')}"
        for port in (service.get("spec") or {}).get("ports") or ()
    ]
    return ",".join(parts) or NONE


def _subjects(kind: str) -> Callable[[Obj], str]:
    def listed(binding: Obj) -> str:
        chosen_subjects = [subject for subject in binding.get("subjects") or () if subject.get("kind") == kind]
        if kind == "ServiceAccount":
            return ", ".join(f"{subject.get('namespace')}/{subject['name']}" for subject in chosen_subjects)
        return ", ".join(subject["name"] for subject in chosen_subjects)

    return listed


def _spec_field(field: str, default: Any = "") -> Callable[[Obj], Any]:
    def value(obj: Obj) -> Any:
        value = (obj.get("spec") or {}).get(field)
        return default if value is None else value

    return value


def _status_field(field: str, default: Any = "") -> Callable[[Obj], Any]:
    return lambda obj: (obj.get("status") or {}).get(field, default)


def _event_source(event: Obj) -> str:
    source = event.get("source") or {}
    parts = [source.get("component") or event.get("reportingComponent"), source.get("host")]
    return ", ".join(str(text) for text in parts if text)


def _event_object(event: Obj) -> str:
    about = event.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


_BINDING = (
    PrinterColumn("Role", lambda obj: f"{obj['roleRef']['kind']}/{obj['roleRef']['name']}"),
    AGE,
    PrinterColumn("Users", _subjects("User"), priority=1),
    PrinterColumn("Groups", _subjects("Group"), priority=1),
    PrinterColumn("ServiceAccounts", _subjects("ServiceAccount"), priority=1),
)
_TEMPLATE = (
    PrinterColumn("Containers", _template("name"), priority=1),
    PrinterColumn("Images", _template("image"), priority=1),
    PrinterColumn("Selector", _selector, priority=1),
)
_CREATED = (PrinterColumn("Created At", lambda obj: obj["metadata"].get("creationTimestamp"), "date"),)

COLUMNS: dict[TypeKey, tuple[PrinterColumn, ...]] = {
    catalogue.PODS.key: (
        PrinterColumn("Ready", _pod_ready),
        PrinterColumn("Status", pod_status),
        PrinterColumn("Restarts", _pod_restarts),
        AGE,
        PrinterColumn("IP", _status_field("podIP", NONE), priority=1),
        PrinterColumn("Node", _spec_field("nodeName", NONE), priority=1),
        PrinterColumn("Nominated Node", _status_field("nominatedNodeName", NONE), priority=1),
        PrinterColumn("Readiness Gates", lambda _: NONE, priority=1),
    ),
    catalogue.NODES.key: (
        PrinterColumn("Status", _node_status),
        PrinterColumn("Roles", _node_roles),
        AGE,
        PrinterColumn("Version", _node_info("kubeletVersion")),
        PrinterColumn("Internal-IP", _node_address("InternalIP"), priority=1),
        PrinterColumn("External-IP", _node_address("ExternalIP"), priority=1),
        PrinterColumn("OS-Image", _node_info("osImage"), priority=1),
        PrinterColumn("Kernel-Version", _node_info("kernelVersion"), priority=1),
        PrinterColumn("Container-Runtime", _node_info("containerRuntimeVersion"), priority=1),
    ),
    catalogue.JOBS.key: (
        PrinterColumn("Status", _job_status),
        PrinterColumn("Completions", _job_completions),
        PrinterColumn("Duration", _job_duration),
        AGE,
        *_TEMPLATE,
    ),
    catalogue.DEPLOYMENTS.key: (
        PrinterColumn(
            "Ready", lambda obj: f"{_status_field('readyReplicas', 0)(obj)}/{_spec_field('replicas', 0)(obj)}"
        ),
        PrinterColumn("Up-to-date", _status_field("updatedReplicas", 0), "integer"),
        PrinterColumn("Available", _status_field("availableReplicas", 0), "integer"),
        AGE,
        *_TEMPLATE,
    ),
    catalogue.REPLICA_SETS.key: (
        PrinterColumn("Desired", _spec_field("replicas", 0), "integer"),
        PrinterColumn("Current", _status_field("replicas", 0), "integer"),
        PrinterColumn("Ready", _status_field("readyReplicas", 0), "integer"),
        AGE,
        *_TEMPLATE,
    ),
    catalogue.SERVICES.key: (
        PrinterColumn("Type", _spec_field("type")),
        PrinterColumn("Cluster-IP", _spec_field("clusterIP", NONE)),
        PrinterColumn("External-IP", lambda _: NONE),
        PrinterColumn("Port(s)", _ports),
        AGE,
        PrinterColumn("Selector", _selector, priority=1),
    ),
    catalogue.NAMESPACES.key: (PrinterColumn("Status", _status_field("phase")), AGE),
    catalogue.CONFIG_MAPS.key: (
        PrinterColumn("Data", lambda obj: str(len(obj.get("data") or {}) + len(obj.get("binaryData") or {}))),
        AGE,
    ),
    catalogue.SECRETS.key: (
        PrinterColumn("Type", lambda obj: obj.get("type", "Opaque")),
        PrinterColumn("Data", lambda obj: str(len(obj.get("data") or {}))),
        AGE,
    ),
    catalogue.SERVICE_ACCOUNTS.key: (PrinterColumn("Secrets", lambda obj: str(len(obj.get("secrets") or ()))), AGE),
    catalogue.EVENTS.key: (
        PrinterColumn(
            "Last Seen", lambda obj: age_text(obj.get("lastTimestamp") or obj["metadata"].get("creationTimestamp"))
        ),
        PrinterColumn("Type", lambda obj: obj.get("type", "")),
        PrinterColumn("Reason", lambda obj: obj.get("reason", "")),
        PrinterColumn("Object", _event_object),
        PrinterColumn("Source", _event_source, priority=1),
        PrinterColumn("Message", lambda obj: str(obj.get("message") or "").strip()),
        PrinterColumn("First Seen", lambda obj: age_text(obj.get("firstTimestamp")), priority=1),
        PrinterColumn("Count", lambda obj: str(obj.get("count") or 1), priority=1),
    ),
    catalogue.LEASES.key: (PrinterColumn("Holder", _spec_field("holderIdentity")), AGE),
    catalogue.BUDGETS.key: (
        PrinterColumn("Min Available", lambda obj: str(_spec_field("minAvailable", "N/A")(obj))),
        PrinterColumn("Max Unavailable", lambda obj: str(_spec_field("maxUnavailable", "N/A")(obj))),
        PrinterColumn("Allowed Disruptions", _status_field("disruptionsAllowed", 0), "integer"),
        AGE,
    ),
    catalogue.PRIORITY_CLASSES.key: (
        PrinterColumn("Value", lambda obj: obj.get("value", 0), "integer"),
        PrinterColumn("Global-Default", lambda obj: bool(obj.get("globalDefault")), "boolean"),
        AGE,
        PrinterColumn("PreemptionPolicy", lambda obj: obj.get("preemptionPolicy", "")),
    ),
    catalogue.ROLES.key: _CREATED,
    catalogue.CLUSTER_ROLES.key: _CREATED,
    catalogue.ROLE_BINDINGS.key: _BINDING,
    catalogue.CLUSTER_ROLE_BINDINGS.key: _BINDING,
    catalogue.DEFINITIONS.key: _CREATED,
}


# Custom resources


def _custom_column(spec: Obj) -> PrinterColumn:
    path, kind = str(spec["jsonPath"]), str(spec.get("type") or "string")

    def cell(obj: Obj) -> Any:
        value = at_path(obj, path)
        if value is None:
            return "" if kind in ("string", "date") else None
        if kind == "date":
            return age_text(str(value))
        return json.dumps(value) if isinstance(value, dict | list) else value

    return PrinterColumn(str(spec["name"]), cell, "string" if kind == "date" else kind, int(spec.get("priority") or 0))


def at_path(obj: Any, path: str) -> Any:
    """Read a simple JSONPath such as `.status.conditions[?(@.type=="Ready")].status`; None if it does not exist."""
    for segment in _parts(path):
        match = _INDEXED.match(segment)
        name = match.group(1) if match else segment
        if name:
            obj = obj.get(name) if isinstance(obj, dict) else None
        if match and isinstance(obj, list):
            if match.group(2) is not None:
                index = int(match.group(2))
                obj = obj[index] if index < len(obj) else None
            else:
                field, wanted_value = match.group(3), match.group(4)
                obj = next((item for item in obj if str(item.get(field)) == wanted_value), None)
        if obj is None:
            return None
    return obj


def _parts(path: str) -> list[str]:
    parts, depth, segment = [], 0, ""
    is_escaped = False
    for char in path.lstrip("."):
        if is_escaped:
            segment += char
            is_escaped = False
        elif char == "\\":
            is_escaped = True
        elif char == "." and depth == 0:
            parts.append(segment)
            segment = ""
        else:
            depth += {"[": 1, "]": -1}.get(char, 0)
            segment += char
    return [*parts, segment] if segment else parts
