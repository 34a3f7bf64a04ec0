"""Faults of the fleet, one row each: what is broken, and what repairing or clearing it means."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.health_agent import HealthAgent
from evenkeel_local.gpu_cluster.machines import Fleet, Machine
from evenkeel_local.gpu_cluster.registry import controller_of
from evenkeel_local.gpu_cluster.store import Store, name_of, namespace_of

Json = dict[str, Any]

XID_79 = "NVRM: Xid (PCI:{pci}): 79, pid={pid}, name=python, GPU has fallen off the bus."


class FaultRefused(Exception):
    """The fault cannot be injected as asked; the message says why."""


@dataclass
class Injected:
    """A fault that was injected."""

    id: str
    fault: str
    node: str
    instance_id: str
    logical_id: str
    at: float
    options: Json
    is_cleared: bool = False
    effects: Json = field(default_factory=dict)
    clear: Callable[[], None] = lambda: None

    def to_json(self) -> Json:
        """Return what the control address tells of it."""
        return {
            "faultId": self.id,
            "fault": self.fault,
            "node": self.node,
            "instanceId": self.instance_id,
            "nodeLogicalId": self.logical_id,
            "at": self.at,
            "options": self.options,
            "cleared": self.is_cleared,
            **self.effects,
        }


@dataclass(frozen=True)
class FaultRow:
    """One kind of fault."""

    name: str
    does: str
    repaired_by: str
    inject: Callable[[FaultTable, Machine, Json, Injected], None]


class FaultTable:
    """Injects the faults of `ROWS` and keeps a list of what it did."""

    def __init__(self, fleet: Fleet, store: Store, agent: HealthAgent) -> None:
        self.fleet = fleet
        self.store = store
        self.agent = agent
        self.injected: dict[str, Injected] = {}
        self._numbers = itertools.count(1)
        self._random = random.Random()

    def inject(self, name: str, options: Json) -> Injected:
        """Inject a fault by name.

        Args:
            name: a row's name.
            options: `node` (an instance id, node name or slot) or `job` (`name` or `namespace/name`) chooses the node;
                without either, one that runs pods is chosen by chance. What else a row reads is in its text.

        Raises:
            FaultRefused: there is no such fault, node or job.
        """
        row = ROWS.get(name)
        if row is None:
            raise FaultRefused(f"there is no fault {name!r}; there are {', '.join(ROWS)}")
        machine = self._choose(options)
        injected = Injected(
            id=f"fault-{next(self._numbers)}",
            fault=name,
            node=machine.node_name,
            instance_id=machine.instance_id,
            logical_id=machine.logical_id,
            at=time.time(),
            options={key: value for key, value in options.items() if key != "fault"},
        )
        row.inject(self, machine, options, injected)
        self.injected[injected.id] = injected
        return injected

    def clear(self, fault_id: str) -> Injected:
        """Take a fault back as far as that is possible.

        Raises:
            FaultRefused: there is no such fault.
        """
        injected = self.injected.get(fault_id)
        if injected is None:
            raise FaultRefused(f"there is no injected fault {fault_id!r}")
        if not injected.is_cleared:
            injected.clear()
            injected.is_cleared = True
        return injected

    def _choose(self, options: Json) -> Machine:
        if wanted := options.get("node"):
            machine = self.fleet.by_instance(wanted) or self.fleet.by_node(wanted) or self.fleet.by_slot(wanted)
            if machine is None:
                raise FaultRefused(f"there is no node {wanted!r}")
            return machine
        nodes = sorted({str(pod["spec"]["nodeName"]) for pod in self._running(options.get("job"))})
        machines = [machine for node in nodes if (machine := self.fleet.by_node(node)) is not None]
        machines = [machine for machine in machines if machine.kubelet is not None and machine.kubelet.is_connected]
        if not machines:
            raise FaultRefused(f"no node runs a pod of {options.get('job') or 'any job'}")
        return self._random.choice(machines)

    def _running(self, job: str | None) -> list[Obj]:
        namespace, _, name = (job or "").rpartition("/")
        found: list[Obj] = []
        for pod in self.store.each(catalogue.PODS.key):
            owner = controller_of(pod)
            if not pod["spec"].get("nodeName") or pod["status"].get("phase") != "Running":
                continue
            if job and (owner is None or owner["name"] != name or (namespace and namespace_of(pod) != namespace)):
                continue
            found.append(pod)
        return found


def _gpu_xid79(table: FaultTable, machine: Machine, options: Json, injected: Injected) -> None:
    kubelet = machine.kubelet
    if kubelet is None:
        raise FaultRefused(f"node {machine.node_name} is not up")
    fault_type = str(options.get("faultType") or "NvidiaErrorTerminate")
    injected.effects = {"processesHit": kubelet.gpu_error(), "faultType": fault_type}
    message = XID_79.format(pci="0000:b9:00", pid=4242)
    table.fleet.later(
        table.fleet.config.delays.agent_detect,
        lambda: None if injected.is_cleared else table.agent.detect(machine, fault_type, "XidHardwareFailure", message),
    )

    def clear() -> None:
        if machine.unhealthy is not None and machine in table.fleet.machines:
            machine.unhealthy = None
            table.agent.healthy(machine)

    injected.clear = clear


def _node_lost(table: FaultTable, machine: Machine, options: Json, injected: Injected) -> None:
    kubelet = machine.kubelet
    if kubelet is None:
        raise FaultRefused(f"node {machine.node_name} is not up")
    running = [running for worker in kubelet.workers.values() for _, running in worker.processes]
    injected.effects = {"processesBehindPartition": len(running)}
    kubelet.partition()
    injected.clear = kubelet.rejoin


def _app_crash(table: FaultTable, machine: Machine, options: Json, injected: Injected) -> None:
    kubelet = machine.kubelet
    wanted = str(options.get("job") or "").rpartition("/")[2]
    for worker in kubelet.workers.values() if kubelet is not None else ():
        owner = controller_of(worker.pod)
        if wanted and (owner is None or owner["name"] != wanted):
            continue
        if worker.crash(int(options.get("exitCode", 1))):
            injected.effects = {"pod": f"{namespace_of(worker.pod)}/{name_of(worker.pod)}"}
            return
    raise FaultRefused(f"no process runs on node {machine.node_name}")


def _stuck_replace(table: FaultTable, machine: Machine, options: Json, injected: Injected) -> None:
    table.fleet.stuck_slots[machine.logical_id] = injected.id
    _gpu_xid79(table, machine, options, injected)

    def clear() -> None:
        table.fleet.stuck_slots.pop(machine.logical_id, None)
        table.fleet.let_go()

    injected.clear = clear


ROWS: dict[str, FaultRow] = {
    row.name: row
    for row in (
        FaultRow(
            "gpu-xid79",
            "A GPU falls off the bus: the processes that use GPUs on the node abort, the health agent marks the node "
            "and sends its event. Option `faultType`: NvidiaErrorTerminate (default, a replacement is due) or "
            "NvidiaErrorReboot.",
            "reboot or replace, as the fault type says",
            _gpu_xid79,
        ),
        FaultRow(
            "node-lost",
            "The node is cut off: no heartbeats, no reports, no news from the API, and no health event. Its processes "
            "go on running, whatever is deleted, until the machine is rebooted, replaced or gone. Clearing heals it.",
            "reboot or replace",
            _node_lost,
        ),
        FaultRow(
            "app-crash",
            "One training process ends with an exit code (option `exitCode`, default 1); the node is fine.",
            "nothing to repair",
            _app_crash,
        ),
        FaultRow(
            "stuck-replace",
            "As gpu-xid79, and the replacement stays Pending for want of capacity until the fault is cleared.",
            "clearing the fault",
            _stuck_replace,
        ),
    )
}
