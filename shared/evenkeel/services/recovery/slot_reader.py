"""Read one node slot, in as many calls in a large fleet as in a small one.

Only the node itself and its replacement are read from the control planes, so they are fresh. The facts about its peers
come from the last sweep (`FleetSummary`): at most a minute old, and older only while the sweep fails. These facts never
show that a node is healthy. A stale summary can delay a return to service, or miss that a whole pool just opted out
after its node was gone.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cached_property

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.nodes import FleetNode, KubernetesNode, ProviderNode, StoredProviderCluster
from evenkeel.domain.recovery.fleet_summary import FleetSummary
from evenkeel.domain.recovery.node_slot import ObservedNode, SlotState, find_slot_state
from evenkeel.domain.recovery.opt_out import opt_out_reason
from evenkeel.domain.recovery.validation import expected_accelerators_of_type
from evenkeel.ports import Ledger, TransientError
from evenkeel.services.context import Context
from evenkeel.services.tables import fleet_rows, rows

_HYPERPOD_NAME = "hyperpod-{}"
"""Name of the node object of a HyperPod instance."""


def _load_fleet_summary(ledger: Ledger) -> FleetSummary:
    """Return the summary of the fleet by the last sweep; an empty one before the first sweep."""
    row = ledger.get(fleet_rows.summary_key())
    return rows.decode(row, FleetSummary) if row else FleetSummary()


def has_accelerator_pods(node: KubernetesNode, context: Context) -> bool:
    """Return whether a pod with accelerators runs on a node."""
    return any(pod.accelerators for pod in context.cluster.pods(node.cluster, node.name))


def is_hyperpod_node(incident: Incident, slot_state: SlotState) -> bool:
    """Return whether HyperPod runs the node. Only HyperPod gives a slot an id other than the key of the node life."""
    return slot_state.original.provider_node is not None or incident.slot != incident.life.key


class SlotReader:
    """The node slot of one incident. Each fact is read once, and only if it is needed."""

    def __init__(
        self, incident: Incident, context: Context, stored_cluster: StoredProviderCluster | None = None
    ) -> None:
        """Read nothing yet.

        Args:
            incident: The incident of the node.
            context: The ports.
            stored_cluster: HyperPod's settings as the last sweep stored them. They show whether the status in
                the node's row may replace an answer that HyperPod refuses; None = it may not.
        """
        self.incident = incident
        self.context = context
        self.node_read_at: datetime | None = None
        """When a sweep read the status that replaces HyperPod's answer; None if HyperPod answered."""
        self._stored = stored_cluster

    @cached_property
    def node(self) -> KubernetesNode | None:
        """The node object of the incident's own node; None if it is gone."""
        return self._read_node_object(self.incident.life.instance_id, self.incident.node_name)

    @cached_property
    def summary(self) -> FleetSummary:
        """The facts about the peers of the node."""
        return _load_fleet_summary(self.context.ledger)

    def read_state(self, since: datetime) -> SlotState:
        """Return the own node and its replacement. A node that was launched after `since` may be the replacement."""
        return self._read_state(since, self._read_provider_nodes)

    def read_state_of_original(self, since: datetime) -> SlotState:
        """Return the own node, and its replacement only if HyperPod no longer lists the own node."""
        return self._read_state(since, self._read_original_provider_nodes)

    def _read_state(self, since: datetime, read_records: Callable[[datetime], tuple[ProviderNode, ...]]) -> SlotState:
        incident = self.incident
        # Read in parallel: until the cordon, new pods can start on the faulty node.
        with ThreadPoolExecutor(max_workers=2) as readers:
            node_list = readers.submit(read_records, since)
            readers.submit(lambda: self.node)
        own_node = (self.node,) if self.node else ()
        slot_state = find_slot_state(
            incident.life, incident.slot, incident.pool, provider_nodes=node_list.result(), nodes=own_node, since=since
        )
        if slot_state.replacement is None or slot_state.replacement.provider_node is None:
            return slot_state
        node = self._read_node_object(slot_state.replacement.provider_node.instance_id, "")
        return slot_state.replace(replacement=slot_state.replacement.replace(node=node))

    def expected_accelerators(self, observed_node: ObservedNode, instance_type: str = "") -> int:
        """Return how many accelerators a node should offer.

        Args:
            observed_node: The node.
            instance_type: Its type, if the node has no node object.
        """
        observed_type = observed_node.node.instance_type if observed_node.node else instance_type
        return expected_accelerators_of_type(observed_type, self.summary.accelerators)

    @property
    def opted_out_pools(self) -> tuple[str, ...]:
        """The pools that opted out of automation. A recovery reads them only if the node is gone."""
        return self.summary.opted_out if self.node is None else ()

    @property
    def opt_out_reason(self) -> str:
        """How a person opted out of this recovery; empty if no person did."""
        return opt_out_reason(self.incident, self.node, pools=self.opted_out_pools)

    def _read_provider_nodes(self, since: datetime) -> tuple[ProviderNode, ...]:
        """Return HyperPod's records of the own node and of nodes that may replace it."""
        life, slot_id, provider = self.incident.life, self.incident.slot, self.context.provider
        if not self._is_on_hyperpod:
            return ()
        node = provider.node(life.instance_id)
        if slot_id != life.key:
            in_slot = provider.node_in_slot(slot_id.removeprefix(f"{life.cluster}/"))
            is_other = in_slot is not None and in_slot.instance_id != life.instance_id
            return tuple(
                provider_node for provider_node in (node, in_slot if is_other else None) if provider_node is not None
            )
        # Without a logical id, only the launch time shows a replacement, and it counts once the own node is gone.
        return (node,) if node is not None else provider.nodes_launched_after(since)

    def _read_original_provider_nodes(self, since: datetime) -> tuple[ProviderNode, ...]:
        node = self._read_original_provider_node() if self._is_on_hyperpod else None
        return (node,) if node is not None else self._read_provider_nodes(since)

    def _read_original_provider_node(self) -> ProviderNode | None:
        """Return HyperPod's record of the own node. If HyperPod refuses to answer, return the record of the last sweep.

        HyperPod throttles when many nodes fail at once. A plan must not wait for that: until the cordon, new pods can
        start on the faulty node. Before a repair, the status is read from HyperPod again.
        """
        life = self.incident.life
        try:
            return self.context.provider.node(life.instance_id)
        except TransientError:
            if self._stored is None or not self._stored.has_recent_nodes(self.context.now):
                raise
            row = self.context.ledger.get(fleet_rows.node_key(life.cluster, life.instance_id))
            node = rows.decode(row, FleetNode) if row else None
            if node is None or node.is_gone or node.provider_node is None:
                raise
            self.node_read_at = self._stored.nodes_read_at
            return node.provider_node

    @property
    def _is_on_hyperpod(self) -> bool:
        return self.context.site.clusters[:1] == (self.incident.life.cluster,)

    def _read_node_object(self, instance_id: str, name: str) -> KubernetesNode | None:
        """Return the node object of an instance. Another instance can have its name by now."""
        cluster = self.incident.life.cluster
        if not name:
            row = self.context.ledger.get(fleet_rows.node_key(cluster, instance_id))
            name = (rows.decode(row, FleetNode).node_name if row else "") or _HYPERPOD_NAME.format(instance_id)
        node = self.context.cluster.node(cluster, name)
        return node if node is not None and node.instance_id == instance_id else None
