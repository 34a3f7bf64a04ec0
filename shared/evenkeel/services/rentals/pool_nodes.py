"""The nodes of a rented pool: its limit, its capacity pods, and the release of its nodes."""

from collections.abc import Iterable

from evenkeel.domain.capacity import efa
from evenkeel.domain.external.unmanaged_workloads import ManagedKind
from evenkeel.domain.nodes import accelerator_resource_of
from evenkeel.domain.plurals import count_of
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.rental import (
    Rental,
    RentalState,
    with_joined_nodes,
    with_other_rentals_nodes,
    without_nodes_of,
)
from evenkeel.ports import CapacitySpec, LimitResult, NodeClaim, Put, Write
from evenkeel.services.context import Context
from evenkeel.services.rentals import rental_store
from evenkeel.services.tables import job_rows, rows


def others_in_pool(rental: Rental, context: Context) -> tuple[Rental, ...]:
    """Return the other rentals of the current offer's pool."""
    return tuple(other for other in _in_pool(rental, context) if other.name != rental.name)


def bill_transfer_writes(rental: Rental, context: Context) -> tuple[Write, ...]:
    """Return the writes that take the nodes of a rental off the bills of the other rentals that saw them.

    Args:
        rental: The rental after it was assigned its nodes, or gave them up. The writes belong to the same commit.
        context: The ledger is read for the other rentals of the pool.
    """
    if not rental.kept_from_others:
        return ()
    writes = []
    for other in others_in_pool(rental, context):
        if without_nodes_of(other, rental) == other:
            continue
        row = context.ledger.get(job_rows.rental_key(other.job_id, other.number))
        stored = rows.decode(row, Rental) if row else None
        if row is not None and stored is not None and stored.state is not RentalState.ENDED:
            writes.append(Put(job_rows.rental_row(without_nodes_of(stored, rental), row.version)))
    return tuple(writes)


def _in_pool(rental: Rental, context: Context) -> tuple[Rental, ...]:
    pool_key = (rental.offer.cluster, rental.offer.pool)
    return tuple(
        other
        for other in rental_store.load(context.ledger).rentals
        if (other.offer.cluster, other.offer.pool) == pool_key
    )


def capacity_pods(rental: Rental, policy: Policy) -> CapacitySpec:
    """Return the capacity pods of the current offer, one for each node: they make Karpenter launch the nodes.

    A job with several nodes uses EFA, so each pod asks for all EFA interfaces of its node. A single node that joins
    committed nodes is one of several, too.
    """
    offer, interfaces = rental.offer, 0
    if (rental.nodes > 1 or rental.joins_base) and not rental.serving_target:
        node = efa.EfaNode(offer.pool, offer.instance_type)
        interfaces = efa.expected_interfaces(node, policy.scheduling.efa_interfaces)
    return CapacitySpec(
        cluster=offer.cluster,
        namespace=rental.namespace,
        name=rental.pods_name,
        pool=offer.pool,
        nodes=rental.nodes,
        accelerators=offer.accelerators_per_node,
        accelerator_resource=accelerator_resource_of(offer.instance_type),
        image=policy.burst.capacity_pod_image,
        efa=interfaces,
    )


def set_limit(rental: Rental, context: Context) -> LimitResult:
    """Set a pool's limit to the nodes that are rented from it, without refused offers and ending rentals."""

    def rented() -> tuple[int, int]:
        hosting_rentals = [
            other for other in _in_pool(rental, context) if other.state.hosts_holder and not other.offer.refused
        ]
        nodes = sum(other.nodes for other in hosting_rentals)
        return nodes, sum(other.nodes * other.offer.accelerators_per_node for other in hosting_rentals)

    return context.cluster.set_pool_limit(rental.offer.cluster, rental.offer.pool, rented)


def nodes_in_use(cluster: str, names: Iterable[str], context: Context) -> frozenset[str]:
    """Return the nodes on which a pod with accelerators runs that is no capacity pod.

    After a restore of the tables, a job that the ledger does not know can run on a rented node.
    """
    return frozenset(
        name
        for name in names
        for pod in context.cluster.pods(cluster, name)
        if pod.accelerators and not (pod.claim and pod.claim.kind is ManagedKind.RENTAL)
    )


def release_offer(rental: Rental, context: Context) -> str:
    """Release the current offer: its pods, its part of the limit and its nodes.

    Return the objects that still exist; empty if none do.

    Idempotent: yes, a missing object is success.
    """
    offer = rental.offer
    are_pods_gone = context.cluster.delete_capacity_pods(offer.cluster, rental.namespace, rental.pods_name)
    set_limit(rental, context)
    claims = delete_unassigned_claims(rental, context)
    if not are_pods_gone:
        return f"Capacity pods of {rental.name} still exist."
    joined_names = {*offer.joined_node_names} - _assigned_nodes(others_in_pool(rental, context))
    own_names = {*(claim.node_name for claim in claims), *joined_names, *rental.node_names}
    nodes = [node.name for node in context.cluster.nodes(offer.cluster) if node.name in own_names]
    if claims or nodes:
        count, pool = len(claims) or len(nodes), offer.pool
        return f"{count_of(count, f'node of {pool} still exists', f'nodes of {pool} still exist')}."
    return ""


def delete_unassigned_claims(rental: Rental, context: Context) -> tuple[NodeClaim, ...]:
    """Delete the nodes of a rental's pool that belong to no rental, and its own once the rental is given up.

    A node that has not joined yet may be for any rental that waits for nodes of this pool, so it stays then. A node
    without a rental stays while a job runs on it.

    Returns:
        The claims that were deleted.
    """
    offer, other_rentals = rental.offer, others_in_pool(rental, context)
    assigned_nodes = _assigned_nodes(other_rentals)
    keeps_own = rental.state is RentalState.READY
    own_nodes = {*rental.node_names, *(offer.joined_node_names if not keeps_own else ())}
    others_wait = any(other.state is RentalState.OPENING and not other.offer.refused for other in other_rentals)
    claims = []
    for claim in context.cluster.node_claims(offer.cluster, offer.pool):
        if claim.node_name and claim.node_name in assigned_nodes:
            continue
        is_own = bool(claim.node_name) and claim.node_name in own_nodes
        if (keeps_own and is_own) or (not is_own and others_wait):
            continue
        if not is_own and claim.node_name and nodes_in_use(offer.cluster, (claim.node_name,), context):
            continue
        claims.append(claim)
    if not keeps_own:
        _record_joined(rental, [claim.node_name for claim in claims if claim.node_name], other_rentals, context)
    for claim in claims:
        context.cluster.delete_node_claim(offer.cluster, claim.name)
    return tuple(claims)


def _assigned_nodes(rentals: Iterable[Rental]) -> frozenset[str]:
    """Return the nodes of the rentals that are not ending."""
    return frozenset(name for rental in rentals if rental.state is not RentalState.ENDING for name in rental.node_names)


def _record_joined(rental: Rental, names: list[str], other_rentals: tuple[Rental, ...], context: Context) -> None:
    """Record that these nodes are on a rental's bill, before they are gone, and that other rentals' nodes are not."""
    row = context.ledger.get(job_rows.rental_key(rental.job_id, rental.number))
    rental_before = rows.decode(row, Rental) if row else None
    if row is None or rental_before is None or rental_before.state is RentalState.ENDED:
        return
    if len(rental_before.offers) != len(rental.offers):
        return  # a repeated step that is late: these nodes are of an earlier offer, perhaps of another pool
    billed_to_others = {name for other in other_rentals for name in other.kept_from_others}
    own_names = [name for name in names if name not in billed_to_others]
    rental_after = with_other_rentals_nodes(
        with_joined_nodes(rental_before, own_names[: rental_before.nodes]), other_rentals
    )
    if rental_after != rental_before:
        context.ledger.commit(Put(job_rows.rental_row(rental_after, row.version)))
