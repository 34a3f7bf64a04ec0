"""Flavors and nodes: which nodes a flavor covers, and how much quota a job requests.

A flavor with labels stands for the nodes with these labels. A flavor without labels stands for the instance type of its
name (`ml.p5.48xlarge`), or for the instance family (`ml.p5`). A job uses quota of each resource that its queue covers:
accelerators, CPU, memory and `pods`.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from evenkeel.domain.capacity.instance_types import (
    GPU,
    INSTANCE_TYPE_LABEL,
    NEURON,
    InstanceTypes,
    shipped_instance_types,
)
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.kueue.objects import Amounts, Flavor, Queue
from evenkeel.domain.queue_simulation.node_terms import Expression
from evenkeel.domain.quotas.teams import SchedulerDeclarations
from evenkeel.domain.resources import Resources

POOL_LABELS = ("sagemaker.amazonaws.com/instance-group-name", "karpenter.sh/nodepool")
"""Labels with which a flavor can name a pool."""
FAMILY_LABEL = "evenkeel.io/instance-family"
"""Label with which a flavor can name an instance family: `p5`. Evenkeel derives it; nodes do not need it."""
MODEL_LABEL = "evenkeel.io/accelerator-model"
"""Label with which a flavor can name an accelerator model: `h100`. Evenkeel derives it; nodes do not need it."""
CLUSTER_LABEL = "evenkeel.io/cluster"
"""Label of a job's cluster. No flavor has it. It only distinguishes the shapes of jobs in different clusters."""


def with_labels(flavor: Flavor) -> Flavor:
    """Return a flavor with the labels of the nodes that it covers."""
    if flavor.labels:
        return flavor
    is_family = "." not in flavor.name.removeprefix("ml.")
    labels = {FAMILY_LABEL: flavor.name.removeprefix("ml.")} if is_family else {INSTANCE_TYPE_LABEL: flavor.name}
    return replace(flavor, labels=labels)


def matches_node(flavor: Flavor, instance_type: str, pool: str, labels: Mapping[str, str]) -> bool:
    """Whether a flavor covers a node."""
    node_labels = {**labels, **labels_of_type(instance_type), **dict.fromkeys(POOL_LABELS, pool)}
    return all(node_labels.get(name) == value for name, value in with_labels(flavor).labels.items())


@functools.lru_cache(maxsize=1024)
def labels_of_type(instance_type: str) -> Mapping[str, str]:
    """Return the labels with which flavors can name an instance type: the type, its family and its accelerator."""
    known_type = shipped_instance_types().find(instance_type)
    return {
        INSTANCE_TYPE_LABEL: instance_type,
        FAMILY_LABEL: instance_type.removeprefix("ml.").partition(".")[0],
        **({MODEL_LABEL: known_type.model} if known_type and known_type.model else {}),
    }


def affinity_to_types(instance_types: Iterable[str]) -> tuple[tuple[Expression, ...], ...]:
    """Return the node affinity of a job that may run on these instance types only; empty if it may run on any.

    Kueue considers only those keys of a term that are labels of the flavors in its group.
    """
    values: dict[str, list[str]] = {}
    for name in instance_types:
        for label, value in labels_of_type(name).items():
            values.setdefault(label, []).append(value)
    if not values:
        return ()
    return (
        tuple(
            Expression(key=label, operator="In", values=tuple(dict.fromkeys(values)))
            for label, values in values.items()
        ),
    )


def requests_of(per_node: Resources, accelerator: str, queue: Queue) -> dict[str, str | int]:
    """Return the quota that each pod requests: its accelerators, and CPU and memory if the queue covers them.

    Args:
        per_node: The amounts that each pod requests.
        accelerator: Name of the resource of its accelerators.
        queue: The queue of the job.
    """
    covered_resources = {resource for group in queue.groups for resource in group.resources}
    return {
        **({accelerator: per_node.accelerators} if per_node.accelerators else {}),
        **({"cpu": f"{per_node.cpu_millis}m"} if "cpu" in covered_resources and per_node.cpu_millis else {}),
        **({"memory": f"{per_node.memory_mib}Mi"} if "memory" in covered_resources and per_node.memory_mib else {}),
    }


def resource_of(instance_types: Iterable[str], queue: Queue, catalogue: InstanceTypes) -> str:
    """Return the resource name of a job's accelerators: by its instance types, else the first that its queue covers."""
    for name in instance_types:
        instance_type = catalogue.find(name)
        if instance_type is not None and instance_type.accelerator:
            return instance_type.accelerator
    covered_resources = [resource for group in queue.groups for resource in group.resources]
    return next((resource for resource in covered_resources if resource in (GPU, NEURON)), GPU)


def quota_use(
    charge: Charge, queue: Queue, flavors: Mapping[str, Flavor], catalogue: InstanceTypes
) -> Mapping[str, Mapping[str, int]]:
    """Return the quota that a charge uses; derived if the charge is older than the quota.

    Empty if its nodes match no flavor of the queue: then the nodes are used, but no quota.
    """
    if charge.use:
        return charge.use
    resource = resource_of((charge.instance_type,), queue, catalogue)
    for group in queue.groups:
        for quotas in group.flavors:
            flavor = flavors.get(quotas.flavor)
            if flavor is None or resource not in group.resources:
                continue
            if matches_node(flavor, charge.instance_type, charge.pool, {}):
                return {quotas.flavor: {resource: charge.accelerators}}
    return {}


def amounts_by_queue(charges: Iterable[Charge], declarations: SchedulerDeclarations) -> Iterator[tuple[str, Amounts]]:
    """Yield for each charge the queue whose quota it uses, and the amounts. Without such a queue, there are none."""
    queues = {queue.name: queue for queue in declarations.queues}
    flavors = {flavor.name: with_labels(flavor) for flavor in declarations.flavors}
    for charge in charges:
        queue = queues.get(charge.queue or charge.team)
        use_of_charge = quota_use(charge, queue, flavors, shipped_instance_types()) if queue else {}
        yield (
            queue.name if queue else "",
            {
                (flavor, resource): amount
                for flavor, amounts in use_of_charge.items()
                for resource, amount in amounts.items()
            },
        )
