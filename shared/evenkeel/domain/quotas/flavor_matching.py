"""Flavors and machines: which machines a flavor of quota stands for, and what a job asks of its team's quota.

A flavor that labels its nodes stands for the machines that bear these labels; one without labels for the instance type
of its name. A job's pods ask for accelerators alone, so that is what they take of a quota, and `pods` where that counts
them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from evenkeel.domain.capacity.instance_types import GPU, NEURON, InstanceTypes
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.kueue.hyperpod import INSTANCE_TYPE_LABEL
from evenkeel.domain.kueue.objects import PODS, Flavor, Queue

POOL_LABELS = ("sagemaker.amazonaws.com/instance-group-name", "karpenter.sh/nodepool")
"""Under either of them a flavor names a pool."""
CLUSTER_LABEL = "evenkeel.io/cluster"
"""A job runs in one Kubernetes cluster: no flavor has this label, so it decides nothing but who is alike."""


def with_labels(flavor: Flavor) -> Flavor:
    """Return a flavor whose labels say which machines it stands for."""
    return flavor if flavor.labels else replace(flavor, labels={INSTANCE_TYPE_LABEL: flavor.name})


def matches_node(flavor: Flavor, instance_type: str, pool: str, labels: Mapping[str, str]) -> bool:
    """Whether a machine is of this flavor."""
    own = {**labels, INSTANCE_TYPE_LABEL: instance_type, **dict.fromkeys(POOL_LABELS, pool)}
    return all(own.get(name) == value for name, value in with_labels(flavor).labels.items())


def resource_of(instance_types: Iterable[str], queue: Queue, catalogue: InstanceTypes) -> str:
    """Return the resource as which a job's accelerators count: that of its types, else the first its queue covers."""
    for name in instance_types:
        found = catalogue.of(name)
        if found is not None and found.accelerator:
            return found.accelerator
    covered = [resource for group in queue.groups for resource in group.resources]
    return next((resource for resource in covered if resource in (GPU, NEURON)), GPU)


def counts_pods(queue: Queue) -> bool:
    """Whether a queue counts pods."""
    return any(PODS in group.resources for group in queue.groups)


def quota_use(
    charge: Charge, queue: Queue, flavors: Mapping[str, Flavor], catalogue: InstanceTypes
) -> Mapping[str, Mapping[str, int]]:
    """Return what a charge takes of a quota; for one that is older than the quota, what it would have taken.

    Nothing where its machines are of no flavor of the queue: then they are used, and nobody's quota.
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
