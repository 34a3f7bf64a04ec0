"""Faults that can be injected into the fleet: the effect of each, and the action that repairs or clears it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Literal

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.cluster_events import EventPublisher
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.health_agent import HealthAgent
from evenkeel_local.gpu_cluster.karpenter_model import Instance, Karpenter
from evenkeel_local.gpu_cluster.kubelet import Kubelet
from evenkeel_local.gpu_cluster.machines import BOOT_FAILURES, FailingBoots, HardwareFault, Machine, MachineFleet
from evenkeel_local.gpu_cluster.node_groups import AutoScalingGroups, GroupInstance
from evenkeel_local.gpu_cluster.objects import controller_of
from evenkeel_local.gpu_cluster.store import Store, name_of, namespace_of

Json = dict[str, Any]
Node = Machine | Instance

REBALANCE = "EC2 Instance Rebalance Recommendation"
RESERVATION_ENDS = "EC2 Capacity Reservation Instance Interruption Warning"
HEALTH = "AWS Health Event"
NODE_OPTIONS = ("node", "job", "instanceGroup", "zone")
NodeKind = Literal["hyperpod", "burst", "group"]
OWNERS: dict[NodeKind, str] = {"hyperpod": "HyperPod's", "burst": "Karpenter's", "group": "a group's"}


@dataclass(frozen=True)
class Xid:
    """An Xid: its text in the driver's log line, whether it ends GPU work, and HyperPod's fault type."""

    text: str
    ends_work: bool = True
    fault_type: str = ""
    """Empty if HyperPod does not mark the node. AWS publishes no table: the types are assumed."""


XIDS: dict[int, Xid] = {
    13: Xid("Graphics Engine Exception"),
    31: Xid("MMU Fault"),
    48: Xid("An uncorrectable double bit error (DBE) has been detected", fault_type="NvidiaErrorReboot"),
    63: Xid("Row Remapper: New row marked for remapping, reset gpu to activate.", ends_work=False),
    64: Xid("Row Remapper: Failed to remap a row", fault_type="NvidiaErrorTerminate"),
    74: Xid("NVLink: fatal error detected", fault_type="NvidiaErrorReboot"),
    79: Xid("GPU has fallen off the bus.", fault_type="NvidiaErrorTerminate"),
    94: Xid("Contained: memory error"),
    95: Xid("Uncontained: memory error", fault_type="NvidiaErrorReboot"),
    119: Xid("Timeout waiting for RPC from GSP", fault_type="NvidiaErrorReboot"),
}


class InvalidFault(Exception):
    """The fault cannot be injected; the message says why."""


@dataclass
class InjectedFault:
    """An injected fault."""

    id: str
    fault: str
    node: str
    instance_id: str
    logical_id: str
    at: float
    options: Json
    cleared: asyncio.Event = field(default_factory=asyncio.Event)
    effects: Json = field(default_factory=dict)
    clear: Callable[[], None] = lambda: None

    @property
    def is_cleared(self) -> bool:
        """Whether it was cleared."""
        return self.cleared.is_set()

    async def wait_cleared(self, seconds: float) -> None:
        """Wait for some seconds, or until the fault is cleared."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.cleared.wait(), seconds)

    def to_json(self) -> Json:
        """Return the fault as the control address shows it."""
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
class FaultDefinition:
    """A kind of fault, and the kinds of nodes that it can hit: HyperPod, Karpenter (`burst`), and node groups.

    A fault of a group or zone gets its group or zone from the option of that name, or from the node.
    """

    name: str
    effect: str
    repaired_by: str
    inject: Callable[[FaultInjector, Node, Json, InjectedFault], None]
    options: tuple[str, ...] = ()
    node_kinds: tuple[NodeKind, ...] = ("hyperpod", "burst", "group")


class FaultInjector:
    """Injects the faults of `ROWS`, and keeps a list of them."""

    def __init__(
        self,
        fleet: MachineFleet,
        store: Store,
        agent: HealthAgent,
        bus: EventPublisher,
        karpenter: Karpenter | None,
        groups: AutoScalingGroups,
    ) -> None:
        self.fleet = fleet
        self.store = store
        self.agent = agent
        self.bus = bus
        self.karpenter = karpenter
        self.groups = groups
        self.injected: dict[str, InjectedFault] = {}
        self._numbers = itertools.count(1)
        self._random = random.Random()

    def inject(self, name: str, options: Json) -> InjectedFault:
        """Inject a fault by name.

        Args:
            name: The name of a row.
            options: `node` (an instance id, node name, slot or NodeClaim) or `job` (`name` or `namespace/name`) chooses
                the node. Without them, a random node with pods is chosen. The text of a row lists its other options.

        Raises:
            InvalidFault: there is no such fault, node or job.
        """
        row = ROWS.get(name)
        if row is None:
            raise InvalidFault(f"unknown fault {name!r}; known faults: {', '.join(ROWS)}")
        if unknown_fields := sorted(set(options) - {"fault", *NODE_OPTIONS, *row.options}):
            raise InvalidFault(
                f"{name} has no option {', '.join(unknown_fields)}; it has {', '.join((*NODE_OPTIONS, *row.options))}"
            )
        node = self._choose_node(row, options)
        injected_fault = InjectedFault(
            id=f"fault-{next(self._numbers)}",
            fault=name,
            node=node.node_name,
            instance_id=node.instance_id,
            logical_id=node.logical_id if isinstance(node, Machine) else "",
            at=time.time(),
            options={key: value for key, value in options.items() if key != "fault"},
        )
        row.inject(self, node, options, injected_fault)
        self.injected[injected_fault.id] = injected_fault
        return injected_fault

    def clear(self, fault_id: str) -> InjectedFault:
        """Clear a fault as far as possible. Idempotent: yes, a cleared fault stays cleared.

        Raises:
            InvalidFault: there is no such fault.
        """
        injected_fault = self.injected.get(fault_id)
        if injected_fault is None:
            raise InvalidFault(f"there is no injected fault {fault_id!r}")
        if not injected_fault.is_cleared:
            injected_fault.cleared.set()
            injected_fault.clear()
        return injected_fault

    # Choosing

    def all_nodes(self) -> list[Node]:
        """Return every node that is up."""
        burst: list[Instance] = self.karpenter.instances if self.karpenter is not None else []
        every: list[Node] = [*self.fleet.machines, *burst, *self.groups.instances]
        return [node for node in every if node.kubelet is not None and node.kubelet.is_on]

    def _choose_node(self, row: FaultDefinition, options: Json) -> Node:
        nodes = [node for node in self.all_nodes() if _node_kind(node) in row.node_kinds]
        if node_option := options.get("node"):
            named_nodes = [node for node in self.all_nodes() if node_option in _node_names(node)]
            if not named_nodes:
                raise InvalidFault(f"there is no node {node_option!r} that is up")
            if named_nodes[0] not in nodes:
                raise InvalidFault(
                    f"{row.name} cannot hit {node_option!r}: it is for {OWNERS[row.node_kinds[0]]} nodes"
                )
            return named_nodes[0]
        for option, of in (("instanceGroup", _group_of), ("zone", self.zone_of)):
            if node_option := options.get(option):
                nodes = [node for node in nodes if of(node) == node_option]
                if not nodes:
                    raise InvalidFault(f"there is no node up in {option} {node_option!r}")
                return nodes[0]
        busy_node_names = {str(pod["spec"]["nodeName"]) for pod in self._running_pods(options.get("job"))}
        nodes = [node for node in nodes if node.node_name in busy_node_names and kubelet_of(node).is_connected]
        if not nodes:
            raise InvalidFault(
                f"no node runs a pod of {options.get('job') or 'any job'}: wait until a job runs, or choose a node"
            )
        return self._random.choice(nodes)

    def zone_of(self, node: Node) -> str:
        """Return the Availability Zone that a node is in."""
        if isinstance(node, Machine):
            return self.fleet.groups[node.group].availability_zone
        return node.offering.zone

    def is_present(self, node: Node) -> bool:
        """Whether the machine still exists."""
        return node in self.fleet.machines if isinstance(node, Machine) else not node.ended

    def _running_pods(self, job: str | None) -> list[Obj]:
        namespace, _, name = (job or "").rpartition("/")
        documents: list[Obj] = []
        for pod in self.store.each(catalogue.PODS.key):
            owner = controller_of(pod)
            if not pod["spec"].get("nodeName") or pod["status"].get("phase") != "Running":
                continue
            if job and (owner is None or owner["name"] != name or (namespace and namespace_of(pod) != namespace)):
                continue
            documents.append(pod)
        return documents


def _node_kind(node: Node) -> NodeKind:
    if isinstance(node, GroupInstance):
        return "group"
    return "hyperpod" if isinstance(node, Machine) else "burst"


def _node_names(node: Node) -> tuple[str, str, str]:
    return node.instance_id, node.node_name, node.logical_id if isinstance(node, Machine) else node.claim


def _group_of(node: Node) -> str:
    return node.group if isinstance(node, Machine | GroupInstance) else ""


def kubelet_of(node: Node) -> Kubelet:
    """Return the kubelet of a node that is up.

    Raises:
        InvalidFault: the node is down.
    """
    if node.kubelet is None:
        raise InvalidFault(f"node {node.node_name} is not up")
    return node.kubelet


def _number_option(options: Json, name: str, default: float, minimum: float = 0.0) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < minimum:
        raise InvalidFault(f"{name} must be a number, at least {minimum:g}")
    return value


# GPUs


def _inject_xid(injector: FaultInjector, node: Node, options: Json, injected_fault: InjectedFault) -> None:
    code = int(_number_option(options, "code", 79, minimum=1))
    xid = XIDS.get(code, Xid("Unknown Error", ends_work=False))
    fault_type = str(options.get("faultType", xid.fault_type))
    line = f"NVRM: Xid (PCI:0000:b9:00): {code}, pid=4242, name=python, {xid.text}"
    injected_fault.effects = {
        "processesHit": kubelet_of(node).gpu_error() if xid.ends_work else 0,
        "xid": code,
        "faultType": fault_type,
    }
    if not fault_type:
        return
    fault = HardwareFault(fault_type, str(options.get("faultReason", "XidHardwareFailure")), line)
    if isinstance(node, Machine) and options.get("survivesReboot"):
        node.lasting = fault

    def find() -> None:
        if injected_fault.is_cleared or not injector.is_present(node):
            return
        if isinstance(node, Machine):
            injector.agent.detect(node, fault)
        else:
            injector.agent.mark_accelerator(node.node_name, f"NvidiaXID{code}Error", line)

    def clear() -> None:
        if not injector.is_present(node):
            return
        if isinstance(node, Machine):
            node.lasting = None
            injector.agent.clear_marks(node)
        else:
            injector.agent.mark_accelerator(node.node_name, "NvidiaAcceleratedHardwareIsReady", "", ready=True)

    injected_fault.clear = clear
    injector.fleet.call_later(injector.fleet.config.delays.agent_detect, find)


def _inject_stuck_replace(injector: FaultInjector, node: Node, options: Json, injected_fault: InjectedFault) -> None:
    assert isinstance(node, Machine), "the row hits only HyperPod's nodes"
    injector.fleet.stuck_slots[node.logical_id] = injected_fault.id
    _inject_xid(injector, node, options, injected_fault)

    def clear() -> None:
        injector.fleet.stuck_slots.pop(node.logical_id, None)
        injector.fleet.recheck_pending()

    injected_fault.clear = clear


def _inject_agent_silent(injector: FaultInjector, node: Node, options: Json, injected_fault: InjectedFault) -> None:
    assert isinstance(node, Machine), "the row hits only HyperPod's nodes"
    node.is_agent_silent = True

    def clear() -> None:
        node.is_agent_silent = False

    injected_fault.clear = clear


# Nodes


def _inject_node_lost(injector: FaultInjector, node: Node, options: Json, injected_fault: InjectedFault) -> None:
    kubelet = kubelet_of(node)
    process = [process for worker in kubelet.workers.values() for _, process in worker.processes]
    injected_fault.effects = {"processesBehindPartition": len(process)}
    kubelet.partition()
    injected_fault.clear = kubelet.rejoin


def _inject_node_flap(injector: FaultInjector, node: Node, options: Json, injected_fault: InjectedFault) -> None:
    kubelet, seconds = kubelet_of(node), _number_option(options, "seconds", 5.0)
    grace = injector.fleet.config.delays.node_monitor_grace

    async def flap() -> None:
        while injector.is_present(node) and not injected_fault.is_cleared:
            kubelet.partition()
            # The node becomes NotReady after the grace period. The seconds count from then on.
            await injected_fault.wait_cleared(grace + seconds)
            kubelet.rejoin()
            await injected_fault.wait_cleared(seconds)

    injected_fault.clear = kubelet.rejoin
    injector.fleet.run_in_background(flap())


def _inject_app_crash(injector: FaultInjector, node: Node, options: Json, injected_fault: InjectedFault) -> None:
    job_name = str(options.get("job") or "").rpartition("/")[2]
    for worker in kubelet_of(node).workers.values():
        owner = controller_of(worker.pod)
        if job_name and (owner is None or owner["name"] != job_name):
            continue
        if worker.crash(int(_number_option(options, "exitCode", 1))):
            injected_fault.effects = {"pod": f"{namespace_of(worker.pod)}/{name_of(worker.pod)}"}
            return
    raise InvalidFault(f"no process runs on node {node.node_name}")


def _inject_zone_outage(injector: FaultInjector, node: Node, options: Json, injected_fault: InjectedFault) -> None:
    zone = injector.zone_of(node)
    nodes_of_zone = [node_of_zone for node_of_zone in injector.all_nodes() if injector.zone_of(node_of_zone) == zone]
    for node_of_zone in nodes_of_zone:
        kubelet_of(node_of_zone).partition()
    _close_zone(injector, zone, closed=True)
    injected_fault.effects = {"zone": zone, "nodes": [node_of_zone.node_name for node_of_zone in nodes_of_zone]}

    def clear() -> None:
        _close_zone(injector, zone, closed=False)
        for other in nodes_of_zone:
            if injector.is_present(other):
                kubelet_of(other).rejoin()

    injected_fault.clear = clear


def _close_zone(injector: FaultInjector, zone: str, *, closed: bool) -> None:
    for zones in (
        injector.fleet.zones_out,
        *((injector.karpenter.zones_out,) if injector.karpenter is not None else ()),
    ):
        zones.append(zone) if closed else zones.remove(zone)
    injector.fleet.recheck_pending()


def _inject_boot_failing(injector: FaultInjector, node: Node, options: Json, injected_fault: InjectedFault) -> None:
    assert isinstance(node, Machine), "the row hits only HyperPod's nodes"
    stage = str(options.get("stage", "lifecycle"))
    times = None if options.get("times") is None else int(_number_option(options, "times", 1, minimum=1))
    if stage not in BOOT_FAILURES:
        raise InvalidFault(f"stage must be one of {', '.join(BOOT_FAILURES)}")
    failing_boots = FailingBoots(stage, times)
    injector.fleet.failing_boots[node.group] = failing_boots
    injected_fault.effects = {"instanceGroup": node.group, "stage": stage}

    def clear() -> None:
        if injector.fleet.failing_boots.get(node.group) is failing_boots:
            del injector.fleet.failing_boots[node.group]

    injected_fault.clear = clear


# Notices


def _inject_spot_reclaim(injector: FaultInjector, node: Node, options: Json, injected_fault: InjectedFault) -> None:
    karpenter, node = _burst_instance(injector, node)
    if node.offering.capacity_type != "spot":
        raise InvalidFault(f"node {node.node_name} is no spot node")
    karpenter.reclaim(node)


def _inject_rebalance(injector: FaultInjector, node: Node, options: Json, injected_fault: InjectedFault) -> None:
    _, node = _burst_instance(injector, node)
    injector.bus.send(REBALANCE, {"instance-id": node.instance_id}, [_ec2_arn(injector, node)])


def _inject_reservation_end(injector: FaultInjector, node: Node, options: Json, injected_fault: InjectedFault) -> None:
    karpenter, node = _burst_instance(injector, node)
    notice = karpenter.settings.spot_notice
    ends_at = datetime.now(UTC) + timedelta(seconds=notice)
    detail = {
        "instance-id": node.instance_id,
        "instance-action": "terminate",
        "instance-termination-time": f"{ends_at:%Y-%m-%dT%H:%M:%SZ}",
        "azId": "usw2-az1",
    }
    injector.bus.send(RESERVATION_ENDS, detail, [_ec2_arn(injector, node)])
    karpenter.end_after(node, notice)


def _burst_instance(injector: FaultInjector, node: Node) -> tuple[Karpenter, Instance]:
    assert injector.karpenter is not None, "the node is Karpenter's"
    assert isinstance(node, Instance), "the row hits only Karpenter's nodes"
    return injector.karpenter, node


def _ec2_arn(injector: FaultInjector, node: Node) -> str:
    config = injector.fleet.config
    return f"arn:aws:ec2:{config.region}:{config.account}:instance/{node.instance_id}"


def _inject_maintenance(injector: FaultInjector, node: Node, options: Json, injected_fault: InjectedFault) -> None:
    """Announce maintenance in AWS Health, and do it at its start time."""
    retires, seconds = bool(options.get("retires")), _number_option(options, "startsInSeconds", 10.0)
    service = "SAGEMAKER" if isinstance(node, Machine) else "EC2"
    maintenance = "INSTANCE_RETIREMENT" if retires else "SYSTEM_REBOOT_MAINTENANCE"
    code = f"AWS_{service}_{maintenance}_SCHEDULED"
    arn = f"arn:aws:health:{injector.fleet.config.region}::event/{service}/{code}/{code}_{uuid.uuid4()}"
    starts_at = datetime.now(UTC) + timedelta(seconds=seconds)
    injected_fault.effects = {"eventArn": arn, "eventTypeCode": code}

    def announce(status: str, entity: str) -> None:
        now = format_datetime(datetime.now(UTC), usegmt=True)
        config = injector.fleet.config
        detail: Json = {
            "eventArn": arn,
            "service": service,
            "eventTypeCode": code,
            "eventTypeCategory": "scheduledChange",
            "eventScopeCode": "ACCOUNT_SPECIFIC",
            "communicationId": f"{uuid.uuid4().hex[:20]}-1",
            "startTime": format_datetime(starts_at, usegmt=True),
            "lastUpdatedTime": now,
            "statusCode": status,
            "eventRegion": config.region,
            "eventDescription": [{"language": "en_US", "latestDescription": "Planned work on an instance."}],
            "affectedEntities": [{"entityValue": node.instance_id, "lastUpdatedTime": now, "status": entity}],
            "affectedAccount": config.account,
            "page": "1",
            "totalPages": "1",
            "backupEvent": "false",
        }
        injector.bus.send(HEALTH, detail, [node.instance_id])

    def begin() -> None:
        if injected_fault.is_cleared or not injector.is_present(node):
            return
        announce("closed", "RESOLVED")
        if isinstance(node, GroupInstance):
            injector.groups.terminate(node)
        elif isinstance(node, Instance):
            if injector.karpenter is not None:
                injector.karpenter.end_after(node, 0.0)
        elif node.operation is None:
            (injector.fleet.replace if retires else injector.fleet.reboot)(node)

    injected_fault.clear = lambda: announce("closed", "RESOLVED")
    announce("upcoming", "PENDING")
    injector.fleet.call_later(seconds, begin)


XID_OPTIONS = ("faultType", "faultReason", "survivesReboot")
ROWS: dict[str, FaultDefinition] = {
    row.name: row
    for row in (
        FaultDefinition(
            "gpu-xid79",
            "A GPU falls off the bus: `gpu-xid` with code 79.",
            "reboot or replace, as the fault type says",
            _inject_xid,
            XID_OPTIONS,
        ),
        FaultDefinition(
            "gpu-xid",
            f"The driver logs an Xid (option `code`; known: {', '.join(map(str, XIDS))}). If it ends GPU work, the "
            "processes that use GPUs abort. The options `faultType` and `faultReason` replace the fault type of the "
            "code. With a fault type, HyperPod's health agent marks the node and sends its event. With "
            "`survivesReboot` it does so again after each reboot. On a Karpenter node AcceleratedHardwareReady turns "
            "False, as with the EKS node monitoring agent.",
            "reboot or replace, as the fault type says; a restart of the job without a fault type",
            _inject_xid,
            ("code", *XID_OPTIONS),
        ),
        FaultDefinition(
            "health-silent",
            "The node's health agent dies: from now on it marks no fault and sends no event.",
            "reboot, replace or clearing",
            _inject_agent_silent,
            node_kinds=("hyperpod",),
        ),
        FaultDefinition(
            "node-lost",
            "The node loses its network: no heartbeats, no reports and no health event. Its processes keep running, "
            "even if their pods are deleted, until the machine is rebooted, replaced or gone. Clearing reconnects it.",
            "reboot or replace",
            _inject_node_lost,
        ),
        FaultDefinition(
            "node-flap",
            "The node loses its network again and again: not Ready for `seconds` (default 5), then Ready for as long.",
            "replace or clearing",
            _inject_node_flap,
            ("seconds",),
        ),
        FaultDefinition(
            "zone-outage",
            "Every node of a zone (option `zone`, or the node's) loses its network, and the zone has no capacity.",
            "clearing",
            _inject_zone_outage,
        ),
        FaultDefinition(
            "app-crash",
            "A training process ends with an exit code (option `exitCode`, default 1); the node is healthy.",
            "nothing to repair",
            _inject_app_crash,
            ("exitCode",),
        ),
        FaultDefinition(
            "stuck-replace",
            "The fault gpu-xid79, whose replacement stays Pending without capacity until the fault is cleared.",
            "clearing the fault",
            _inject_stuck_replace,
            XID_OPTIONS,
            ("hyperpod",),
        ),
        FaultDefinition(
            "boot-failing",
            "New machines of a group (option `instanceGroup`, or the node's) fail; option `times` limits their number. "
            "The option `stage` is `start` (a bad image), `efa` or `lifecycle` (default). HyperPod retries.",
            "clearing",
            _inject_boot_failing,
            ("stage", "times"),
            ("hyperpod",),
        ),
        FaultDefinition(
            "maintenance",
            "AWS Health announces maintenance. After `startsInSeconds` (default 10) the node is rebooted, or replaced "
            "with the option `retires`; a Karpenter node ends. Clearing withdraws the announcement.",
            "the maintenance itself",
            _inject_maintenance,
            ("startsInSeconds", "retires"),
        ),
        FaultDefinition(
            "spot-reclaim",
            "A Karpenter spot node gets its interruption warning, and ends after `spotNotice`.",
            "another node",
            _inject_spot_reclaim,
            node_kinds=("burst",),
        ),
        FaultDefinition(
            "rebalance",
            "A Karpenter node gets a rebalance recommendation, and nothing else happens.",
            "nothing to repair",
            _inject_rebalance,
            node_kinds=("burst",),
        ),
        FaultDefinition(
            "capacity-reservation-interruption",
            "The interruptible capacity reservation of a Karpenter node ends: the node ends after `spotNotice`, "
            "without a notice to Karpenter.",
            "another node",
            _inject_reservation_end,
            node_kinds=("burst",),
        ),
    )
}
