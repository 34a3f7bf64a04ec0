"""The state of the clusters and the ledger, as the waits of one evaluation need it: each fact is read at most once."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any

from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.health.incidents import AffectedJob, Incident, NodeCheck
from evenkeel.domain.jobs.attempt import Attempt, ObservedWorkload
from evenkeel.domain.nodes import KubernetesNode, NodeLife, ProviderCluster, ProviderNode
from evenkeel.domain.recovery.guardrails import GuardrailAction
from evenkeel.domain.recovery.node_slot import ObservedNode, SlotState, find_slot_state
from evenkeel.domain.recovery.opt_out import opt_out_reason
from evenkeel.domain.recovery.repair_lease import RepairLease
from evenkeel.domain.recovery.validation import (
    CheckResult,
    expected_accelerators,
    judge_node,
)
from evenkeel.domain.renting.rental import Rental, RentalOffer
from evenkeel.domain.renting.rental_waits import (
    joined_nodes,
)
from evenkeel.domain.waiting import ConditionKind, Wait, WaitCondition
from evenkeel.ports import (
    Key,
    Row,
    get_all,
)
from evenkeel.services.context import Context
from evenkeel.services.recovery import blocked_incidents, plan_recovery, slot_reader
from evenkeel.services.recovery.guardrail_inputs import GuardrailInputs
from evenkeel.services.recovery.slot_reader import SlotReader
from evenkeel.services.storage import incident_store
from evenkeel.services.tables import fleet_rows, incident_rows, job_rows, rows
from evenkeel.services.waits.read_cache import ReadCache

HYPERPOD = "HyperPod"
RECORDS_MAX_TICKS = 3
"""Ticks of the watch for which HyperPod's list is used: 15 s in production. A list of 2,000 nodes takes 20 calls."""
RENTAL_KINDS = (ConditionKind.RENTAL_READY, ConditionKind.RENTAL_ENDED)
ATTEMPT_KINDS = (
    ConditionKind.ATTEMPT_ADMITTED,
    ConditionKind.ATTEMPT_RUNNING,
    ConditionKind.ATTEMPT_ENDED,
    ConditionKind.ATTEMPT_STOPPED,
)


class Observation:
    """The facts of one evaluation. Each part is read once, and only if a wait needs it."""

    def __init__(self, context: Context, *, reads_all: bool, reads: ReadCache | None = None) -> None:
        self.context = context
        self._reads = reads or ReadCache(context.now)
        self._reads_all = reads_all
        """Whether workloads are listed all at once, or read one by one."""
        self._found: dict[Key, Row] = {}
        self._nodes_listed_ahead: frozenset[str] = frozenset()
        """Clusters whose nodes were listed before the rows of the waits were read."""
        self._unblocked_incidents: frozenset[str] | None = None
        self._workloads: dict[str, dict[tuple[str, int], list[ObservedWorkload]]] = {}
        self._slots: dict[str, SlotReader] = {}
        self._nodes_by_name: dict[str, Mapping[str, KubernetesNode]] = {}
        self._nodes_after_pods: dict[str, Mapping[str, KubernetesNode]] = {}

    def read_ahead(self, waits: Iterable[Wait], nodes_of: Iterable[str]) -> None:
        """Read what these waits need and the nodes of these clusters, side by side.

        The nodes are listed after the waits were read: each wait sees its node as it is after the wait was opened. The
        workloads are listed after the rows: a workload that was created in between would look lost.
        """
        cluster = self.context.cluster
        node_lists = [(name, "nodes", partial(cluster.nodes, name)) for name in sorted(set(nodes_of))]
        self._nodes_listed_ahead = frozenset(name for name, _, _ in node_lists)
        with ThreadPoolExecutor(max_workers=1) as reader:
            listing = reader.submit(self._reads.read_ahead, node_lists) if node_lists else None
            clusters = self._read_rows(waits)
            self._reads.read_ahead((name, "workloads", partial(cluster.workloads, name)) for name in sorted(clusters))
        if listing is not None:
            listing.result()

    def _read_rows(self, waits: Iterable[Wait]) -> set[str]:
        """Read the rows of these waits in a few calls: there may be one wait for each node of a fleet.

        Returns:
            The clusters of the attempts.
        """
        conditions = [(wait.subject, wait.condition) for wait in waits]
        keys = [key for subject, condition in conditions for key in _keys_of_wait(subject, condition)]
        self._found = get_all(self.context.ledger, keys)
        for subject, condition in conditions:
            row = (
                self._found.get(incident_rows.incident_key(subject))
                if condition.kind is ConditionKind.JOBS_RESUMED
                else None
            )
            keys += [
                key
                for _, incident in rows.readable_rows([row] if row else [], Incident)
                for affected_job in incident.affected_jobs
                for key in job_and_attempt_keys(affected_job)
            ]
        self._found |= get_all(self.context.ledger, (key for key in keys if key not in self._found))
        attempts = (
            self._found.get(job_rows.attempt_key(subject, int(condition.facts["attempt"])))
            for subject, condition in conditions
            if condition.kind in ATTEMPT_KINDS
        )
        return {str(row.doc["cluster"]) for row in attempts if row}

    def read_row(self, key: Key) -> Row | None:
        """Return a row, as it was when it was first read."""
        return self._found.get(key) or self.context.ledger.get(key)

    def read_incident(self, incident_id: str) -> Incident:
        """Return an incident.

        Raises:
            NotFound: there is no such incident.
        """
        row = self._found.get(incident_rows.incident_key(incident_id))
        return rows.decode(row, Incident) if row else incident_store.load_incident(self.context.ledger, incident_id)[0]

    def nodes(self, cluster: str) -> tuple[KubernetesNode, ...]:
        """Return the node objects of a cluster."""
        return list_nodes(cluster, self.context, self._reads)

    def nodes_by_name(self, cluster: str) -> Mapping[str, KubernetesNode]:
        """Return the node objects of a cluster by name. A fleet may have as many waits as nodes, and they share it."""
        if cluster not in self._nodes_by_name:
            self._nodes_by_name[cluster] = {node.name: node for node in self.nodes(cluster)}
        return self._nodes_by_name[cluster]

    def nodes_of_attempt(self, attempt: Attempt, names: Iterable[str]) -> Mapping[str, KubernetesNode]:
        """Return the node objects of an attempt's cluster, with each of these nodes that exists.

        The attempt's row or its pods show these names, and the nodes may have been listed before. A node that joined in
        between is no lost node, so the nodes are listed once more.
        """
        cluster = attempt.cluster
        nodes = self.nodes_by_name(cluster)
        are_newer = bool(attempt.node_names) and cluster not in self._nodes_listed_ahead
        if are_newer or nodes.keys() >= set(names):
            return nodes
        if cluster not in self._nodes_after_pods:
            self._nodes_after_pods[cluster] = {node.name: node for node in self.context.cluster.nodes(cluster)}
        return self._nodes_after_pods[cluster]

    @property
    def provider_nodes(self) -> tuple[ProviderNode, ...]:
        """HyperPod's list of nodes. In the watch it may be some seconds old (`is_listed_since`)."""
        return self._provider_nodes()[0]

    def is_listed_since(self, at: datetime) -> bool:
        """Whether HyperPod's list is from after a time. An older list shows the node as it was before its repair."""
        if not self._reads_all:
            return True  # the slot is read by itself
        return self._provider_nodes()[1] >= at

    def _provider_nodes(self) -> tuple[tuple[ProviderNode, ...], datetime]:
        return self._reads.read_with_time(
            HYPERPOD, "nodes", self.context.provider.nodes, seconds=self._provider_seconds
        )

    @property
    def _provider_seconds(self) -> float:
        return RECORDS_MAX_TICKS * self.context.policy.watch.tick_seconds

    @cached_property
    def guardrail_inputs(self) -> GuardrailInputs:
        """The facts of the guardrails."""
        return GuardrailInputs(self.context)

    def is_unblocked(self, incident: Incident) -> bool:
        """Whether the blocked action of an incident would be allowed now, in the order of the blocked incidents."""
        if self._unblocked_incidents is None or incident.incident_id not in self._blocked_incidents:
            self._blocked_incidents[incident.incident_id] = incident  # the index may lag behind
            self._unblocked_incidents = blocked_incidents.unblocked_incidents(
                self._blocked_incidents.values(), self.guardrail_inputs, self._looks_healthy
            )
        return incident.incident_id in self._unblocked_incidents

    def has_lost_its_node(self, incident: Incident) -> bool:
        """Whether an incident waits to cordon a node that is gone. No such wait would ever end."""
        if incident.block is None or incident.block.action != GuardrailAction.CORDON:
            return False
        return self.node_of(incident) is None

    @cached_property
    def _blocked_incidents(self) -> dict[str, Incident]:
        return blocked_incidents.load_blocked_incidents(self.context.ledger)

    def _looks_healthy(self, incident: Incident) -> bool:
        provider_nodes, nodes = self.provider_nodes, self.nodes(incident.life.cluster)
        slot_state = find_slot_state(
            incident.life,
            incident.slot,
            incident.pool,
            provider_nodes=provider_nodes,
            nodes=nodes,
            since=incident.opened_at,
        )
        observed_node = slot_state.replacement or slot_state.original
        return judge_node(observed_node, expected_count=self.expected_accelerators(incident, observed_node)).is_valid

    @property
    def hyperpod_settings(self) -> ProviderCluster | None:
        """HyperPod's settings and status; None if the fleet has no HyperPod cluster."""
        provider = self.context.provider
        return self._reads.read(
            HYPERPOD, "cluster", lambda: plan_recovery.read_hyperpod_settings(provider), seconds=self._provider_seconds
        )

    def check_result(self, cluster: str, check: NodeCheck) -> CheckResult:
        """Return the result of a node's test job."""
        return self.context.cluster.check_result(cluster, check.namespace, check.name)

    def count_returns(self, incident: Incident) -> int:
        """Return how often the node of an incident was returned to service lately."""
        row = self.context.ledger.get(fleet_rows.lease_key(incident.slot, is_drill=incident.is_drill))
        since = self.context.now - timedelta(hours=self.context.policy.repair.flap_window_hours)
        return len(rows.decode(row, RepairLease).returns_of(incident.life, since)) if row else 0

    def has_accelerator_pods(self, node: KubernetesNode) -> bool:
        """Whether a pod with accelerators runs on a node."""
        return self._reads.read(
            node.cluster, f"pods on {node.name}", lambda: slot_reader.has_accelerator_pods(node, self.context)
        )

    def workload(self, attempt: Attempt) -> ObservedWorkload:
        """Return an attempt's Job and pods."""
        if not self._reads_all:
            return self.context.cluster.workload(attempt)
        if attempt.cluster not in self._workloads:
            workloads = self._reads.read(
                attempt.cluster, "workloads", lambda: self.context.cluster.workloads(attempt.cluster)
            )
            by_name = self._workloads.setdefault(attempt.cluster, {})
            for workload in workloads:
                by_name.setdefault((workload.job_id, workload.attempt), []).append(workload)
        return attempt.own_workload(self._workloads[attempt.cluster].get((attempt.job_id, attempt.attempt), ()))

    def capacity_refusal(self, offer: RentalOffer) -> str:
        """Return Karpenter's refusal of capacity since the pool was opened; empty if there is none."""
        return self.context.cluster.latest_capacity_refusal(offer.cluster, offer.pool, offer.opened_at)

    def pods_on(self, cluster: str, names: Iterable[str]) -> tuple[UnmanagedPod, ...]:
        """Return the pods on these nodes only."""
        return tuple(pod for name in names for pod in self.context.cluster.pods(cluster, name))

    def arriving_pods_and_nodes(self, rental: Rental) -> tuple[tuple[UnmanagedPod, ...], tuple[KubernetesNode, ...]]:
        """Return the nodes, and the pods that have no node or are on the nodes of a rental that is starting.

        The order of the reads matters. A pod that gets a node in between is seen without a node, or its node is seen.
        """
        cluster = rental.offer.cluster
        waiting_pods = self.context.cluster.pods(cluster, "")
        nodes = self.context.cluster.nodes(cluster)
        joined_names = [node.name for node in joined_nodes(rental, nodes, rental.other_rentals_nodes)]
        uids = {pod.uid for pod in waiting_pods}
        return (*waiting_pods, *(pod for pod in self.pods_on(cluster, joined_names) if pod.uid not in uids)), nodes

    def slot_reader(self, incident: Incident) -> SlotReader:
        """Return the reader of one slot, for an evaluation that does not list the fleet."""
        if incident.incident_id not in self._slots:
            self._slots[incident.incident_id] = SlotReader(incident, self.context)
        return self._slots[incident.incident_id]

    def node_of(self, incident: Incident) -> KubernetesNode | None:
        """Return the node object of an incident's own node; None if it is gone."""
        if not self._reads_all:
            return self.slot_reader(incident).node
        nodes = self.nodes(incident.life.cluster)
        return next((node for node in nodes if node.instance_id == incident.life.instance_id), None)

    def opt_out_reason(self, incident: Incident) -> str:
        """Return how a person opted out of a recovery; empty if no person did."""
        if not self._reads_all:
            return self.slot_reader(incident).opt_out_reason
        return opt_out_reason(incident, self.node_of(incident), self.nodes(incident.life.cluster))

    def slot_state(self, incident: Incident, facts: Mapping[str, Any]) -> SlotState:
        """Return the state of the slot that a wait is about."""
        if not self._reads_all:
            return self.slot_reader(incident).read_state(datetime.fromisoformat(facts["since"]))
        life = NodeLife.from_key(facts["life"])
        return find_slot_state(
            life,
            facts["slot"],
            facts["pool"],
            provider_nodes=self.provider_nodes,
            nodes=self.nodes(life.cluster),
            since=datetime.fromisoformat(facts["since"]),
        )

    def expected_accelerators(self, incident: Incident, observed_node: ObservedNode) -> int:
        """Return how many accelerators a node should offer."""
        if not self._reads_all:
            return self.slot_reader(incident).expected_accelerators(observed_node)
        node = observed_node.node
        if node is None:
            return 0
        expected_type = node.instance_type or (
            observed_node.provider_node.instance_type if observed_node.provider_node else ""
        )
        return expected_accelerators(
            expected_type, (peer for peer in self.nodes(node.cluster) if peer.name != node.name)
        )


def list_nodes(cluster: str, context: Context, reads: ReadCache) -> tuple[KubernetesNode, ...]:
    """Return the node objects of a cluster, listed once in a tick."""
    return reads.read(cluster, "nodes", lambda: context.cluster.nodes(cluster))


def _keys_of_wait(subject: str, condition: WaitCondition) -> tuple[Key, ...]:
    if condition.kind in ATTEMPT_KINDS:
        return (job_rows.job_key(subject), job_rows.attempt_key(subject, int(condition.facts["attempt"])))
    if condition.kind in RENTAL_KINDS:
        return (job_rows.job_key(subject), job_rows.rental_key(subject, int(condition.facts["rental"])))
    return (incident_rows.incident_key(subject),)


def job_and_attempt_keys(affected_job: AffectedJob) -> tuple[Key, Key]:
    return (job_rows.job_key(affected_job.job_id), job_rows.attempt_key(affected_job.job_id, affected_job.attempt))
