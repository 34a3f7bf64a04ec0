"""Read the nodes, pods and Jobs of each cluster of a scheduling cycle. A failed read leaves its cluster out."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from evenkeel.domain.admission.build_request import with_reservation_ends
from evenkeel.domain.capacity.node_capacity import node_capacity
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.attempt import ObservedWorkload
from evenkeel.domain.jobs.charge import Charge, resources_in_use_or_charged
from evenkeel.domain.nodes import FleetNode, KubernetesNode, ProviderNode, join_nodes
from evenkeel.domain.renting.rental_book import RentalBook
from evenkeel.domain.resources import Resources
from evenkeel.ports import EvenkeelError, PodsInUse
from evenkeel.services.context import Context
from evenkeel.services.incidents import unhealthy_nodes
from evenkeel.services.rentals import rental_store
from evenkeel.services.scheduling.loaded_cycle import READS_AT_ONCE, LoadedCycle
from evenkeel.services.storage import (
    attempt_store,
    provider_nodes,
    stored_nodes,
)


class _ClusterFacts(NamedTuple):
    """The facts that were read of one cluster."""

    workloads: Sequence[ObservedWorkload]
    """Workloads of charged attempts."""
    in_use: Mapping[str, Resources]
    nodes: tuple[KubernetesNode, ...]
    kueue_namespaces: Mapping[str, str]
    provider_nodes: Sequence[ProviderNode]
    pods: Sequence[UnmanagedPod]


class NodeLists(NamedTuple):
    """Reads of the nodes that are under way. A list of nodes is the longest read of a cycle."""

    nodes_by_cluster: Mapping[str, Future[tuple[KubernetesNode, ...]]]
    last_sweep: Future[tuple[FleetNode, ...]]
    """The nodes of the last sweep."""

    @classmethod
    def start(cls, readers: ThreadPoolExecutor, context: Context) -> "NodeLists":
        """Start the reads of all clusters."""
        lists = {name: readers.submit(context.cluster.nodes, name) for name in context.site.clusters}
        return cls(lists, readers.submit(stored_nodes.load_stored_nodes, context))


def read_clusters_and_nodes(
    loaded_cycle: LoadedCycle, rental_book: RentalBook, lists: NodeLists, context: Context
) -> LoadedCycle:
    """Read the nodes, pods and Jobs of each cluster, and the state of the serving workloads."""
    snapshot, policy, names = loaded_cycle.snapshot, context.policy, context.site.clusters
    serving_clusters = frozenset(workload.cluster for workload in policy.scheduling.serving)
    clusters, errors = _read_each_cluster(snapshot.live_charges, serving_clusters, lists, context)
    workloads = [(name, workload) for name, facts in clusters.items() for workload in facts.workloads]
    in_use = {(name, node): resources for name, facts in clusters.items() for node, resources in facts.in_use.items()}
    nodes = [node for name in names if name in clusters for node in clusters[name].nodes]
    provider_nodes = clusters[names[0]].provider_nodes if names[0] in clusters else ()
    unhealthy = unhealthy_nodes.unhealthy_among(nodes, context)
    resources_used = resources_in_use_or_charged(in_use, snapshot.live_charges, workloads)
    capacities = node_capacity(join_nodes(nodes, provider_nodes, names[0]), resources_used, unhealthy)
    capacities = rental_book.reserve_nodes(capacities, snapshot.pending.values(), policy.burst.pools)
    return loaded_cycle._replace(
        snapshot=snapshot._replace(
            capacities=with_reservation_ends(capacities, policy),
            kueue_namespaces={
                (name, namespace): shown_by
                for name, facts in clusters.items()
                for namespace, shown_by in facts.kueue_namespaces.items()
            },
            unreadable_clusters=frozenset(errors),
            rental_book=rental_book,
            serving_pods={name: facts.pods for name, facts in clusters.items() if name in serving_clusters},
            serving_states=rental_store.serving_states(policy.scheduling.serving, context.ledger),
        ),
        errors=errors,
    )


def _read_each_cluster(
    charges: Sequence[Charge], serving_clusters: frozenset[str], lists: NodeLists, context: Context
) -> tuple[dict[str, _ClusterFacts], dict[str, EvenkeelError]]:
    """Read each cluster by itself, and HyperPod's records with the first cluster. A failed read leaves its cluster out.

    Args:
        charges: Charges of live attempts.
        serving_clusters: Clusters with serving workloads: their pods are read, too.
        lists: The nodes, whose reads have started.
        context: Names the clusters.
    """
    facts: dict[str, _ClusterFacts] = {}
    errors: dict[str, EvenkeelError] = {}
    cluster, names = context.cluster, context.site.clusters
    with ThreadPoolExecutor(max_workers=READS_AT_ONCE) as readers:
        reads = {
            name: (
                readers.submit(cluster.pods_in_use, name),
                readers.submit(cluster.kueue_namespaces, name),
                readers.submit(cluster.pods, name) if name in serving_clusters else None,
            )
            for name in names
        }
        # The attempts of one cluster are read while the lists of other clusters load.
        charged_workloads = {
            name: _charged_workloads(name, charges, pods, context) for name, (pods, _, _) in reads.items()
        }
    for name, (pods, namespaces, serving) in reads.items():
        try:
            movable, last_sweep = pods.result().movable, lists.last_sweep.result()
            nodes = lists.nodes_by_cluster[name].result()
            facts[name] = _ClusterFacts(
                charged_workloads[name],
                stored_nodes.requests_by_node(name, movable, nodes, last_sweep, context),
                nodes,
                namespaces.result(),
                provider_nodes.load_provider_nodes(nodes, last_sweep, context) if name == names[0] else (),
                serving.result() if serving else (),
            )
        except EvenkeelError as error:
            errors[name] = error
    return facts, errors


def _charged_workloads(
    name: str, charges: Iterable[Charge], pods_read: Future[PodsInUse], context: Context
) -> list[ObservedWorkload]:
    """Return the workloads of a cluster that belong to charged attempts; none if the cluster could not be read.

    The charge names the admission of its attempt, so no attempt is read, unless an earlier release wrote the charge.
    """
    try:
        workloads = pods_read.result().attempts
    except EvenkeelError:
        return []  # `_read_each_cluster` reports the error
    by_attempt = {(charge.job_id, charge.attempt): charge for charge in charges if charge.cluster == name}
    charged_workloads, unnamed_workloads = [], []
    for workload in workloads:
        charge = by_attempt.get((workload.job_id, workload.attempt))
        if charge is None:
            continue
        if not charge.decision_id:
            unnamed_workloads.append((name, workload))
        elif charge.is_named_by(workload):
            charged_workloads.append(workload)
    return charged_workloads + [
        workload for _, workload in attempt_store.owned_workloads(context.ledger, unnamed_workloads)
    ]
