"""The sources of signals: the display name of each, and its meaning for a node that Evenkeel does not know."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class SignalSource(NamedTuple):
    """A source of facts. The sources of reported faults, such as `site:prober`, are named by their reporters."""

    name: str
    """`source` of its facts."""
    text: str
    """How the timeline names it."""
    is_account_wide: bool = False
    """Whether it reports every instance of an account.

    An instance that the fleet table lacks then belongs to another fleet, or it is so new that the sweep has not seen
    it. HyperPod is not asked: its instances are in another account, and one event may name hundreds.
    """
    is_on_node: bool = False
    """Whether the node object shows its faults for as long as they last."""


SIGNAL_SOURCES: Mapping[str, SignalSource] = MappingProxyType(
    {
        source.name: source
        for source in (
            SignalSource("hyperpod.node-health", "HyperPod's health event"),
            SignalSource("hyperpod.node-labels", "HyperPod's labels on the node", is_on_node=True),
            SignalSource("hyperpod.cluster-event", "HyperPod's cluster event"),
            SignalSource("hyperpod.cluster-state", "HyperPod's cluster state"),
            SignalSource("kubernetes.node", "the Kubernetes node", is_on_node=True),
            SignalSource("eks.node-conditions", "the EKS agent's conditions", is_on_node=True),
            SignalSource("nvsentinel.node-conditions", "NVSentinel's conditions", is_on_node=True),
            SignalSource("ec2.notice", "EC2's notice", is_account_wide=True),
            SignalSource("ec2.reservation", "the end of its capacity reservation"),
            SignalSource("health.event", "AWS Health", is_account_wide=True),
        )
    }
)
"""Every source that a parser of `evenkeel.events` names."""


def signal_source(name: str) -> SignalSource:
    """Return a source; for a reporter's own source, its name as it is."""
    return SIGNAL_SOURCES.get(name, SignalSource(name, name))
