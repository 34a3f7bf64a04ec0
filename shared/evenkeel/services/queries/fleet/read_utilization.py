"""The amounts of the fleet, their allocation to pods and their measured utilization, by pool or by node."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from evenkeel.domain.capacity.instance_types import InstanceType
from evenkeel.domain.capacity.utilization import (
    WINDOW,
    GroupBy,
    GroupUtilization,
    Measure,
    NodeReading,
    NodeUtilization,
    rounded,
)
from evenkeel.domain.nodes import FleetNode, NodeState
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import rfc3339
from evenkeel.ports import EvenkeelError, NotAllowed
from evenkeel.services.context import Context
from evenkeel.services.queries.fleet import read_nodes

Json = dict[str, Any]

SOURCE = "CloudWatch Container Insights"
_WINDOW_MINUTES = round(WINDOW.total_seconds() / 60)
_MAX_NAMED = 3
"""Nodes that a sentence names."""
_STARTING, _RUNNING, _PENDING_RECOVERY = "starting", "running", "pendingRecovery"


class _Machine(NamedTuple):
    """A node with its instance type, its state and its measured utilization."""

    node: FleetNode
    type: InstanceType | None
    """None: the catalogue does not have the type."""
    state: NodeState
    measured: NodeUtilization

    @property
    def gpus(self) -> float | None:
        """GPUs that the node object states. If it states none: the GPUs of the instance type."""
        if self.node.accelerators or self.type is None:
            return self.node.accelerators if self.node.node_name else None
        return self.type.accelerators

    @property
    def gpu_memory_gib(self) -> float | None:
        if self.type is None:
            return 0 if self.gpus == 0 else None
        return (self.gpus or 0) * self.type.accelerator_memory_gib

    @property
    def vcpu(self) -> float | None:
        """Virtual CPUs of the instance. If its type is unknown: the vCPU that pods can request."""
        return self.type.vcpu if self.type else self.node.allocatable.cpu

    @property
    def memory_gib(self) -> float | None:
        """Memory of the instance. If its type is unknown: the memory that pods can request."""
        return self.type.memory_gib if self.type else self.node.allocatable.memory_gib

    @property
    def phase(self) -> str:
        """Whether the node starts, runs, or does no work until a recovery, a person or its provider acts."""
        match self.state:
            case NodeState.STARTING:
                return _STARTING
            case NodeState.IN_SERVICE:
                return _RUNNING
            case NodeState.CORDONED if self.node.is_ready:
                return _RUNNING
            case _:
                return _PENDING_RECOVERY

    def node_reading(self, measure: Measure) -> NodeReading:
        return NodeReading(self.node.life.instance_id, _AMOUNTS[measure](self), self.measured.percent.get(measure))


_AMOUNTS: Mapping[Measure, Callable[[_Machine], float | None]] = {
    Measure.GPU: lambda machine: machine.gpus,
    Measure.GPU_MEMORY: lambda machine: machine.gpu_memory_gib,
    Measure.CPU: lambda machine: machine.vcpu,
    Measure.MEMORY: lambda machine: machine.memory_gib,
}


def show_utilization(by: GroupBy, context: Context, *, cluster: str = "", pool: str = "") -> Json:
    """Return an item for each pool or node, and the totals. An empty cluster or pool selects all."""
    present, has_more_nodes = read_nodes.present_nodes(context.ledger)
    nodes = [node for node in present if cluster in ("", node.life.cluster) and pool in ("", node.pool)]
    states, has_more_incidents = read_nodes.states_of(context.ledger, nodes)
    metrics = context.utilization_metrics.read(nodes, context.now)
    catalogue = context.policy.hardware
    machines = [
        _Machine(
            node,
            catalogue.find(node.instance_type),
            states[node.life.key],
            NodeUtilization.of(metrics.samples.get(node.life.key, {}), node.life.launched_at),
        )
        for node in sorted(nodes, key=lambda node: (node.life.cluster, node.pool, node.life.instance_id))
    ]
    return {
        "asOf": rfc3339(context.now),
        "windowMinutes": _WINDOW_MINUTES,
        "items": [_node_document(machine) for machine in machines] if by is GroupBy.NODE else _pool_documents(machines),
        "totals": _group_document(machines) if machines else None,
        "sources": _source_documents(machines, metrics.errors),
        "isLowerBound": has_more_nodes or has_more_incidents,
    }


def _pool_documents(machines: Iterable[_Machine]) -> list[Json]:
    groups: dict[tuple[str, str], list[_Machine]] = defaultdict(list)
    for machine in machines:
        groups[machine.node.life.cluster, machine.node.pool].append(machine)
    return [
        {"cluster": cluster, "pool": pool} | _group_document(members) for (cluster, pool), members in groups.items()
    ]


def _group_document(machines: Sequence[_Machine]) -> Json:
    phases = Counter(machine.phase for machine in machines)
    return {
        "instanceTypes": sorted({machine.node.instance_type for machine in machines if machine.node.instance_type}),
        "nodes": len(machines),
        **{phase: phases[phase] for phase in (_RUNNING, _STARTING, _PENDING_RECOVERY)},
        **_amounts_document(machines),
        "utilization": {
            measure: GroupUtilization.of(machine.node_reading(measure) for machine in machines).to_json()
            for measure in Measure
        },
        "measuredAt": _oldest_measurement(machines),
    }


def _node_document(machine: _Machine) -> Json:
    node = machine.node
    readings = {measure: machine.measured.percent.get(measure) for measure in Measure}
    return {
        "cluster": node.life.cluster,
        "pool": node.pool,
        "instanceId": node.life.instance_id,
        "name": node.node_name or None,
        "instanceType": node.instance_type,
        "state": machine.state,
        **_amounts_document([machine]),
        "utilization": {
            measure: None if percent is None else rounded(percent) for measure, percent in readings.items()
        },
        "measuredAt": _oldest_measurement([machine]),
    }


def _amounts_document(machines: Sequence[_Machine]) -> Json:
    """Return the amounts of a group, and how much of them pods request."""
    return {
        "gpus": _total_or_none(machines, Measure.GPU),
        "gpusAllocated": sum(machine.node.accelerators_in_use for machine in machines),
        "gpuMemoryGib": _total_or_none(machines, Measure.GPU_MEMORY),
        "vcpus": _total_or_none(machines, Measure.CPU),
        "vcpusAllocated": round(sum(machine.node.cpu_millis_in_use for machine in machines) / 1000, 3),
        "memoryGib": _total_or_none(machines, Measure.MEMORY),
        "memoryGibAllocated": round(sum(machine.node.memory_mib_in_use for machine in machines) / 1024, 1),
    }


def _total_or_none(machines: Iterable[_Machine], measure: Measure) -> float | None:
    """Return the sum of an amount; None if the amount of any node is unknown: a part of the sum is not the sum."""
    amounts = [_AMOUNTS[measure](machine) for machine in machines]
    known_amounts = [amount for amount in amounts if amount is not None]
    return round(sum(known_amounts), 3) if len(known_amounts) == len(amounts) else None


def _oldest_measurement(machines: Iterable[_Machine]) -> str | None:
    times = [machine.measured.measured_at for machine in machines if machine.measured.measured_at]
    return rfc3339(min(times)) if times else None


def _source_documents(machines: Iterable[_Machine], errors: Mapping[str, EvenkeelError]) -> list[Json]:
    clusters: dict[str, list[_Machine]] = defaultdict(list)
    for machine in machines:
        clusters[machine.node.life.cluster].append(machine)
    return [
        {
            "cluster": cluster,
            "name": SOURCE,
            "measuredNodes": sum(bool(machine.measured.percent) for machine in members),
            "unknownNodes": sum(not machine.measured.percent for machine in members),
            "problem": " ".join(_read_problems(cluster, members, errors)) or None,
        }
        for cluster, members in clusters.items()
    ]


def _read_problems(cluster: str, machines: Sequence[_Machine], errors: Mapping[str, EvenkeelError]) -> Iterable[str]:
    read_errors = [errors[machine.node.life.key] for machine in machines if machine.node.life.key in errors]
    if read_errors:
        # A refusal comes first, because it does not pass by itself.
        worst_error = next((error for error in read_errors if isinstance(error, NotAllowed)), read_errors[0])
        why = str(worst_error).removesuffix(".")
        yield f"{SOURCE} was not read for {len(read_errors)} of {count_of(len(machines), 'node')} of {cluster}: {why}."
    elif not any(machine.measured.percent or machine.measured.invalid for machine in machines):
        yield (
            f"{SOURCE} has no metrics of the nodes of {cluster} in the last {_WINDOW_MINUTES} minutes. The EKS add-on "
            "amazon-cloudwatch-observability publishes them (docs/operate/utilization.md)."
        )
    invalid = [machine.node.life.instance_id for machine in machines if machine.measured.invalid]
    if invalid:
        names_text = ", ".join(invalid[:_MAX_NAMED]) + (", …" if len(invalid) > _MAX_NAMED else "")
        yield f"{SOURCE} reports values that are no percentages for {names_text}. They count as unknown."
