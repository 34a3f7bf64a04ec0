"""The control address: the state of the cluster, faults and settings. Only drills and tests use it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, Protocol

from aiohttp import web
from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from evenkeel_local.gpu_cluster import catalogue, snapshots
from evenkeel_local.gpu_cluster.call_faults import CallFault
from evenkeel_local.gpu_cluster.cluster import GpuCluster
from evenkeel_local.gpu_cluster.config import AccessEntry, PodIdentity, error_text
from evenkeel_local.gpu_cluster.errors import ApiError
from evenkeel_local.gpu_cluster.faults import ROWS, InvalidFault
from evenkeel_local.gpu_cluster.kubelet import Kubelet, StartedContainer
from evenkeel_local.gpu_cluster.machines import Machine
from evenkeel_local.gpu_cluster.node_controller import ready_value
from evenkeel_local.gpu_cluster.objects import controller_of, is_deleting, labels_of
from evenkeel_local.gpu_cluster.store import name_of, namespace_of

Json = dict[str, Any]
CALL_EFFECTS = ("latency", "error", "throttle", "lost-reply", "drop-watch")


class ControlledHost(Protocol):
    """The process, as the control address uses it."""

    cluster: GpuCluster

    def state(self) -> Json: ...

    async def reset(self, snapshot: Json | None = None) -> None: ...

    def request_stop(self) -> None: ...


class Control:
    """The paths of the control address."""

    def __init__(self, host: ControlledHost) -> None:
        self._host = host

    @property
    def _cluster(self) -> GpuCluster:
        return self._host.cluster

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(middlewares=[_answer_errors_plainly], client_max_size=512 * 1024 * 1024)
        app.add_routes(
            [
                web.get("/control/health", self._health),
                web.get("/control/state", self._state),
                web.get("/control/nodes", self._nodes),
                web.get("/control/pods", self._pods),
                web.get("/control/processes", self._processes),
                web.get("/control/counters", self._counters),
                web.get("/control/provider-calls", self._provider_calls),
                web.get("/control/events", self._events),
                web.post("/control/events", self._send_event),
                web.get("/control/faults", self._list_faults),
                web.post("/control/faults", self._inject),
                web.delete("/control/faults/{id}", self._clear),
                web.get("/control/call-faults", self._list_call_faults),
                web.post("/control/call-faults", self._add_call_fault),
                web.delete("/control/call-faults/{id}", self._remove_call_fault),
                web.post("/control/failing-nodes", self._failing_nodes),
                web.post("/control/capacity", self._capacity),
                web.post("/control/hidden-nodes", self._hidden_nodes),
                web.post("/control/failing-checks", self._failing_checks),
                web.post("/control/status", self._status),
                web.post("/control/cluster-events", self._cluster_event),
                web.post("/control/offerings", self._offering),
                web.get("/control/access-entries", self._get_access_entries),
                web.put("/control/access-entries", self._put_access_entries),
                web.put("/control/access-entries/{arn:.+}", self._put_access_entry),
                web.put("/control/pod-identities", self._put_pod_identities),
                web.put("/control/pod-identities/{namespace}/{account}", self._put_pod_identity),
                web.post("/control/watches/drop", self._drop_watches),
                web.post("/control/compact", self._compact),
                web.post("/control/apply", self._apply),
                web.get("/control/snapshot", self._snapshot),
                web.put("/control/snapshot", self._restore),
                web.post("/control/reset", self._reset),
                web.post("/control/shutdown", self._shutdown),
            ]
        )
        return app

    # State

    async def _health(self, http: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _state(self, http: web.Request) -> web.Response:
        return web.json_response(self._host.state())

    async def _nodes(self, http: web.Request) -> web.Response:
        fleet = self._cluster.fleet
        node_documents = [self._node(machine) for machine in fleet.machines]
        if http.query.get("retired") == "true":
            node_documents += [{**self._node(machine), "retired": True} for machine in fleet.retired]
        return web.json_response({"nodes": node_documents})

    def _node(self, machine: Machine) -> Json:
        node = self._cluster.store.find(catalogue.NODES.key, "", machine.node_name)
        kubelet, spec = machine.kubelet, node["spec"] if node is not None else {}
        workers = kubelet.workers.values() if kubelet is not None else ()
        return {
            "name": machine.node_name,
            "instanceId": machine.instance_id,
            "nodeLogicalId": machine.logical_id,
            "instanceGroup": machine.group,
            "launchTime": machine.launch_time,
            "bootId": machine.boot_id,
            "status": machine.status,
            "message": machine.message,
            "operation": machine.operation,
            "unhealthy": list(machine.unhealthy) if machine.unhealthy else None,
            "connected": kubelet is not None and kubelet.is_connected,
            "ready": ready_value(node) if node is not None else None,
            "unschedulable": bool(spec.get("unschedulable")),
            "taints": [taint["key"] for taint in spec.get("taints") or ()],
            "pods": [f"{namespace_of(pod)}/{name_of(pod)}" for pod in self._cluster.store.pods_on(machine.node_name)],
            "processes": sum(len(worker.processes) for worker in workers),
        }

    async def _pods(self, http: web.Request) -> web.Response:
        pod_documents = [
            {
                "namespace": namespace_of(pod),
                "name": name_of(pod),
                "uid": pod["metadata"]["uid"],
                "node": pod["spec"].get("nodeName"),
                "phase": pod["status"].get("phase"),
                "podIp": pod["status"].get("podIP"),
                "terminating": is_deleting(pod),
                "labels": labels_of(pod),
            }
            for pod in self._cluster.store.all(catalogue.PODS.key)
        ]
        return web.json_response({"pods": pod_documents})

    async def _processes(self, http: web.Request) -> web.Response:
        """List container processes, with ended processes; `job` and `running=true` filter the list."""
        job, running_only = http.query.get("job"), http.query.get("running") == "true"
        fleet, process_documents = self._cluster.fleet, []
        kubelets = [machine.kubelet for machine in fleet.retired if machine.kubelet is not None]
        for kubelet in [*kubelets, *self._cluster.directory.all()]:
            for started_container in kubelet.started:
                entry = self._process(kubelet, started_container)
                if job and entry["job"] != job and not entry["job"].startswith(f"{job}-"):
                    continue
                if not running_only or entry["endedAt"] is None:
                    process_documents.append(entry)
        return web.json_response({"processes": process_documents})

    def _process(self, kubelet: Kubelet, started_container: StartedContainer) -> Json:
        owner, process = controller_of(started_container.pod), started_container.running
        return {
            "pid": process.group,
            "namespace": namespace_of(started_container.pod),
            "job": owner["name"] if owner is not None else "",
            "pod": name_of(started_container.pod),
            "podUid": started_container.pod["metadata"]["uid"],
            "container": started_container.container,
            "node": kubelet.name,
            "instanceId": kubelet.name.removeprefix("hyperpod-"),
            "usesGpu": started_container.uses_gpu,
            "startedAt": process.started_at.isoformat(),
            "endedAt": process.ended_at.isoformat() if process.ended_at is not None else None,
            "behindPartition": process.ended_at is None and not kubelet.is_connected,
        }

    async def _counters(self, http: web.Request) -> web.Response:
        """Count the calls: accepted repairs per instance, refused calls by code, every operation by name."""
        accepted: dict[str, dict[str, int]] = {"reboot": {}, "replace": {}, "delete": {}}
        refused_counts: dict[str, int] = {}
        for call in self._cluster.fleet.calls:
            if call.accepted:
                counts = accepted[call.action.lower()]
                counts[call.instance_id] = counts.get(call.instance_id, 0) + 1
            else:
                refused_counts[call.code] = refused_counts.get(call.code, 0) + 1
        return web.json_response(
            {"accepted": accepted, "refused": refused_counts, "calls": self._cluster.call_faults.counts}
        )

    async def _provider_calls(self, http: web.Request) -> web.Response:
        return web.json_response({"calls": [_camel_keys(asdict(call)) for call in self._cluster.fleet.calls]})

    async def _events(self, http: web.Request) -> web.Response:
        return web.json_response({"events": list(self._cluster.bus.sent)})

    # Faults

    async def _send_event(self, http: web.Request) -> web.Response:
        body = await _read_body(http)
        resources = body.get("resources") or [self._cluster.config.cluster_arn]
        self._cluster.bus.send(str(body["detailType"]), body["detail"], resources, int(body.get("copies", 1)))
        return web.json_response({}, status=202)

    async def _list_faults(self, http: web.Request) -> web.Response:
        rows = [{"fault": row.name, "does": row.effect, "repairedBy": row.repaired_by} for row in ROWS.values()]
        injected_documents = [item.to_json() for item in self._cluster.faults.injected.values()]
        return web.json_response({"rows": rows, "injected": injected_documents})

    async def _inject(self, http: web.Request) -> web.Response:
        body = await _read_body(http)
        injected_fault = self._cluster.faults.inject(str(body.get("fault") or ""), body)
        return web.json_response(injected_fault.to_json(), status=201)

    async def _clear(self, http: web.Request) -> web.Response:
        return web.json_response(self._cluster.faults.clear(http.match_info["id"]).to_json())

    async def _list_call_faults(self, http: web.Request) -> web.Response:
        faults = self._cluster.call_faults
        rules = [_camel_keys(asdict(rule)) for rule in faults.rules]
        return web.json_response({"callFaults": rules, "counts": faults.counts})

    async def _add_call_fault(self, http: web.Request) -> web.Response:
        body = await _read_body(http)
        if body.get("effect") not in CALL_EFFECTS:
            raise InvalidFault(f"effect must be one of {', '.join(CALL_EFFECTS)}")
        if unknown := set(body) - ({field.name for field in fields(CallFault)} - {"id", "hits"}):
            raise InvalidFault(f"a call fault has no {', '.join(sorted(unknown))}")
        fault = TypeAdapter(CallFault).validate_python(body)
        if fault.times is not None and fault.times < 1:
            raise InvalidFault("times must be at least 1, or null for every call")
        return web.json_response({"callFaultId": self._cluster.call_faults.add(fault)}, status=201)

    async def _remove_call_fault(self, http: web.Request) -> web.Response:
        was_removed = self._cluster.call_faults.remove(http.match_info["id"])
        return web.json_response({"removed": was_removed}, status=200 if was_removed else 404)

    async def _failing_nodes(self, http: web.Request) -> web.Response:
        body = await _read_body(http)
        self._cluster.hyperpod.failing_nodes[str(body["instanceId"])] = str(body.get("message") or "")
        return web.json_response({}, status=201)

    async def _capacity(self, http: web.Request) -> web.Response:
        body = await _read_body(http)
        group, machines = str(body["instanceGroup"]), body.get("machines")
        if group not in self._cluster.fleet.groups:
            raise InvalidFault(f"there is no instance group {group!r}")
        if machines is not None and (not isinstance(machines, int) or machines < 0):
            raise InvalidFault("machines must be a number from 0 on, or null for no limit")
        self._cluster.fleet.capacity[group] = machines
        self._cluster.fleet.recheck_pending()
        return web.json_response({"instanceGroup": group, "machines": machines})

    async def _hidden_nodes(self, http: web.Request) -> web.Response:
        """Hide a node from the lists, as happens between the attempts of a replacement."""
        body = await _read_body(http)
        machine = self._cluster.fleet.by_instance(str(body["instanceId"]))
        if machine is None:
            raise InvalidFault(f"there is no instance {body['instanceId']!r}")
        machine.is_visible = not bool(body.get("hidden", True))
        return web.json_response({"instanceId": machine.instance_id, "hidden": not machine.is_visible})

    async def _failing_checks(self, http: web.Request) -> web.Response:
        """Let the next deep health check of an instance fail; HyperPod then reboots or replaces it."""
        body = await _read_body(http)
        repair = str(body.get("repair", "replace"))
        if repair not in ("reboot", "replace"):
            raise InvalidFault("repair must be reboot or replace")
        self._cluster.hyperpod.running.failing_checks[str(body["instanceId"])] = repair
        return web.json_response({}, status=201)

    async def _status(self, http: web.Request) -> web.Response:
        """Override a status: of the cluster, an instance group, a quota or a scheduler configuration."""
        body, hyperpod = await _read_body(http), self._cluster.hyperpod
        if "softwareUpdate" in body:
            hyperpod.running.software_status[str(body["instanceGroup"])] = str(body["softwareUpdate"])
        elif "instanceGroup" in body:
            hyperpod.group_status_override[str(body["instanceGroup"])] = str(body["status"])
        elif "id" in body:
            item = hyperpod.quotas.items.get(body["id"]) or hyperpod.schedulers.items.get(body["id"])
            if item is None:
                raise InvalidFault(f"there is nothing with id {body['id']!r}")
            item.status, item.failure = str(body["status"]), str(body.get("failure") or "")
        else:
            hyperpod.status_override = body["status"]
            hyperpod.announce_status()
        return web.json_response({})

    async def _cluster_event(self, http: web.Request) -> web.Response:
        """Record a HyperPod cluster event that the cluster does not produce itself."""
        body = await _read_body(http)
        about = (body.get(key) for key in ("metadata", "instanceGroup", "instanceId"))
        level = str(body.get("level", "Info"))
        event = self._cluster.events.record(str(body["resourceType"]), str(body["description"]), level, *about)
        return web.json_response({"eventId": event["EventId"]}, status=201)

    async def _offering(self, http: web.Request) -> web.Response:
        """Set the number of machines of an offering."""
        body, karpenter = await _read_body(http), self._cluster.karpenter
        if karpenter is None:
            raise InvalidFault("this cluster runs no Karpenter")
        key = (str(body["instanceType"]), str(body["zone"]), str(body["capacityType"]))
        karpenter.machines_left[key] = int(body["machines"])
        return web.json_response({})

    # Settings

    async def _get_access_entries(self, http: web.Request) -> web.Response:
        entry_documents = [entry.model_dump(mode="json", by_alias=True) for entry in self._cluster.access_entries]
        return web.json_response({"accessEntries": entry_documents})

    async def _put_access_entries(self, http: web.Request) -> web.Response:
        body = await _read_body(http)
        self._cluster.access_entries[:] = [AccessEntry.model_validate(item) for item in body["accessEntries"]]
        return web.json_response({"accessEntries": len(self._cluster.access_entries)})

    async def _put_pod_identities(self, http: web.Request) -> web.Response:
        body = await _read_body(http)
        self._cluster.pod_identities[:] = [PodIdentity.model_validate(item) for item in body["podIdentities"]]
        return web.json_response({"podIdentities": len(self._cluster.pod_identities)})

    async def _put_access_entry(self, http: web.Request) -> web.Response:
        entry = AccessEntry.model_validate({**await _read_body(http), "principalArn": http.match_info["arn"]})
        entries = self._cluster.access_entries
        entries[:] = [access_entry for access_entry in entries if access_entry.principal_arn != entry.principal_arn] + [
            entry
        ]
        return web.json_response(entry.model_dump(mode="json", by_alias=True))

    async def _put_pod_identity(self, http: web.Request) -> web.Response:
        namespace, account = http.match_info["namespace"], http.match_info["account"]
        body = await _read_body(http)
        identity = PodIdentity(namespace=namespace, service_account=account, env=body["env"])
        identities = self._cluster.pod_identities
        pod_identities = [item for item in identities if (item.namespace, item.service_account) != (namespace, account)]
        identities[:] = [*pod_identities, identity]
        return web.json_response({"namespace": namespace, "serviceAccount": account, "variables": sorted(identity.env)})

    # The whole cluster

    async def _apply(self, http: web.Request) -> web.Response:
        """Apply one Kubernetes object as the admin."""
        stored_object = self._cluster.registry.apply(await _read_body(http), manager="control")
        return web.json_response(stored_object, status=200)

    async def _drop_watches(self, http: web.Request) -> web.Response:
        return web.json_response({"dropped": self._cluster.api_server.drop_watches()})

    async def _compact(self, http: web.Request) -> web.Response:
        self._cluster.store.forget_history()
        return web.json_response({"resourceVersion": str(self._cluster.store.revision)})

    async def _snapshot(self, http: web.Request) -> web.Response:
        return web.json_response(snapshots.take_snapshot(self._cluster))

    async def _restore(self, http: web.Request) -> web.Response:
        await self._host.reset(await _read_body(http))
        return web.json_response({"status": "ok"})

    async def _reset(self, http: web.Request) -> web.Response:
        await self._host.reset()
        return web.json_response({"status": "ok"})

    async def _shutdown(self, http: web.Request) -> web.Response:
        self._host.request_stop()
        return web.json_response({"status": "stopping"}, status=202)


async def _read_body(http: web.Request) -> Json:
    try:
        body = await http.json()
    except json.JSONDecodeError as error:
        raise InvalidFault(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidFault("the body must be an object")
    return body


def _camel_keys(fields: Json) -> Json:
    return {to_camel(name): value for name, value in fields.items()}


@web.middleware
async def _answer_errors_plainly(request: web.Request, handler: Any) -> web.StreamResponse:
    """Answer a refused request with a message, and refuse requests of web pages."""
    if "Origin" in request.headers:
        return web.json_response({"error": "the control address is not for browsers"}, status=403)
    try:
        response: web.StreamResponse = await handler(request)
    except ApiError as refusal:
        return web.json_response({"error": refusal.message}, status=refusal.code)
    except (InvalidFault, snapshots.SnapshotRefused) as refusal:
        return web.json_response({"error": str(refusal)}, status=400)
    except KeyError as error:
        return web.json_response({"error": f"the body needs {error}"}, status=400)
    except ValidationError as wrong:
        return web.json_response({"error": error_text(wrong)}, status=400)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed):
        message = f"the control address has no {request.method} {request.path}"
        return web.json_response({"error": f"{message}; docs/local-gpu-cluster.md lists what it has"}, status=404)
    except (ValueError, TypeError) as wrong:
        return web.json_response({"error": str(wrong)}, status=400)
    return response
