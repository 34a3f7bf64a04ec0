"""Flavors and nodes: which nodes a flavor of quota stands for, and how much quota a job requests.

A flavor with labels stands for the nodes with these labels. A flavor without labels stands for the instance type of its
name. A job's pods request only accelerators, so it uses quota of accelerators, and of `pods` if the quota counts them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from evenkeel.domain.capacity.instance_types import GPU, NEURON, InstanceTypes
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.kueue.hyperpod import INSTANCE_TYPE_LABEL
from evenkeel.domain.kueue.objects import Flavor, Queue

POOL_LABELS = ("sagemaker.amazonaws.com/instance-group-name", "karpenter.sh/nodepool")
"""Labels with which a flavor can name a pool."""
CLUSTER_LABEL = "evenkeel.io/cluster"
"""Label of a job's cluster. No flavor has it; it only keeps the shapes of jobs in different clusters apart."""


def with_labels(flavor: Flavor) -> Flavor:
    """Return a flavor with the labels of the nodes that it stands for."""
    return flavor if flavor.labels else replace(flavor, labels={INSTANCE_TYPE_LABEL: flavor.name})


def matches_node(flavor: Flavor, instance_type: str, pool: str, labels: Mapping[str, str]) -> bool:
    """Whether a flavor stands for a node."""
    node_labels = {**labels, INSTANCE_TYPE_LABEL: instance_type, **dict.fromkeys(POOL_LABELS, pool)}
    return all(node_labels.get(name) == value for name, value in with_labels(flavor).labels.items())


def resource_of(instance_types: Iterable[str], queue: Queue, catalogue: InstanceTypes) -> str:
    """Return the resource name of a job's accelerators: by its instance types, else the first that its queue covers."""
    for name in instance_types:
        found = catalogue.of(name)
        if found is not None and found.accelerator:
            return found.accelerator
    covered = [resource for group in queue.groups for resource in group.resources]
    return next((resource for resource in covered if resource in (GPU, NEURON)), GPU)


def quota_use(
    charge: Charge, queue: Queue, flavors: Mapping[str, Flavor], catalogue: InstanceTypes
) -> Mapping[str, Mapping[str, int]]:
    """Return the quota that a charge uses. For a charge older than the quota, return what it would have used.

    Empty if its nodes match no flavor of the queue: they are used, but no quota is.
    """
    if charge.use:
        return charge.use
    resource = resource_of((charge.instance_type,), queue, catalogue)
    for group in queue.groups:
        for each in group.flavors:
            flavor = flavors.get(each.flavor)
            if flavor is None or resource not in group.resources:
                continue
            if matches_node(flavor, charge.instance_type, charge.pool, {}):
                return {each.flavor: {resource: charge.accelerators}}
    return {}
