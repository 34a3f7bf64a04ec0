"""Record the nodes of an attempt that Kueue admitted.

Kueue's flavors and Kubernetes choose its nodes, which are known once its pods run. A recovery finds the affected jobs
of a faulty node by them.
"""

from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.nodes import join_nodes
from evenkeel.domain.renting.rental import Rental
from evenkeel.ports import Put
from evenkeel.services.context import Context
from evenkeel.services.storage import attempt_store, provider_nodes
from evenkeel.services.storage.retries import commit_if_unchanged
from evenkeel.services.tables import job_rows, rows


def run(job_id: str, number: int, context: Context) -> bool:
    """Record the nodes of an attempt. Return False if they are recorded already, or not known yet.

    Idempotent: yes, recorded nodes stay, because the pods of an attempt never move.
    """
    stored_attempt = attempt_store.load_attempt(context.ledger, job_id, number)
    attempt = stored_attempt.attempt
    if not attempt.local_queue or attempt.nodes or attempt.state is not AttemptState.RUNNING:
        return False
    workload = context.cluster.workload(attempt)
    names = attempt.nodes_in(workload)
    kubernetes_nodes = [node for node in context.cluster.nodes(attempt.cluster) if node.name in names]
    loaded_nodes = (provider_nodes.load_provider_node(node, context) for node in kubernetes_nodes)
    joined_nodes = join_nodes(
        kubernetes_nodes, (provider_node for provider_node in loaded_nodes if provider_node), attempt.cluster
    )
    by_name = {node.kubernetes.name: node for node in joined_nodes if node.kubernetes}
    if len(names) < attempt.ranks or any(name not in by_name for name in names):
        return False
    nodes = [by_name[name] for name in names]
    first_node = nodes[0]
    types = {
        node.provider.instance_type if node.provider else node.kubernetes.instance_type
        for node in nodes
        if node.kubernetes
    }
    with_nodes = attempt.replace(
        nodes=tuple(node.life for node in nodes),
        node_names=names,
        pool=first_node.pool,
        instance_type=next(iter(types)) if len(types) == 1 else "",
    )
    if _is_on_rented_nodes(stored_attempt.job, with_nodes, context):
        with_nodes = with_nodes.replace(is_rented=True, usd_per_accelerator_hour=None)  # the rental counts their cost
    # If the row changed meanwhile, the next evaluation reads it again.
    return commit_if_unchanged(context.ledger, Put(job_rows.attempt_row(with_nodes, stored_attempt.attempt_version)))


def _is_on_rented_nodes(job: Job, attempt: Attempt, context: Context) -> bool:
    row = context.ledger.get(job_rows.rental_key(job.job_id, job.rentals)) if job.rentals else None
    return row is not None and rows.decode(row, Rental).hosts(attempt)
