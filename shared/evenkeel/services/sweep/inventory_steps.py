"""Store the state of the fleet, for callers that must not list the control planes each time."""

import contextlib
import itertools
from collections.abc import Iterable
from datetime import datetime, timedelta

from evenkeel.domain.capacity.capacity_blocks import current_block_ends, reservations_in_use
from evenkeel.domain.capacity.training_plans import PlanEnds, current_plan_ends
from evenkeel.domain.external.unmanaged_workloads import unmanaged_workloads
from evenkeel.domain.nodes import FleetNode, Node, StoredProviderCluster
from evenkeel.domain.recovery.fleet_summary import FleetSummary
from evenkeel.domain.recovery.other_controllers import describe_controller
from evenkeel.domain.resources import NONE, sum_by_node
from evenkeel.domain.sources import Source, SourceKind
from evenkeel.domain.values import rfc3339
from evenkeel.events import kubernetes_node
from evenkeel.ports import Conflict, EvenkeelError, Put, Row, Table, Unreadable
from evenkeel.services.recovery import manual_cordons, unmanaged_pods
from evenkeel.services.storage.training_plan_ends import readable_plan_ends
from evenkeel.services.sweep.sweep_run import SweepRun
from evenkeel.services.tables import fleet_rows, rows

_GONE_KEPT = timedelta(days=30)
_MAX_UNMANAGED_LISTED = 500
"""Unmanaged workloads that are stored by name. Each name takes about 200 bytes of a row."""


def refresh_fleet(sweep: SweepRun) -> int:
    """Write the changes of each node, and mark nodes that no control plane lists now.

    The rows of a cluster that could not be read completely stay as they are: its nodes were not seen, and are not gone.
    """
    ledger = sweep.context.ledger
    sweep.read_lists()
    movable = {(name, node): used for name, live in sweep.live_pods.items() for node, used in live.movable.items()}
    bound = {(name, node): used for name, live in sweep.live_pods.items() for node, used in live.bound.items()}
    in_use = sum_by_node(itertools.chain(movable.items(), bound.items()))
    unmanaged_by_node, jobs = _record_unmanaged_workloads(sweep), _jobs_on_nodes(sweep)
    clusters_read = _complete_clusters(sweep)
    stored_nodes = {
        (node.life.cluster, node.life.instance_id): FleetNode.from_node(
            node,
            in_use.get((node.life.cluster, node.kubernetes.name), NONE) if node.kubernetes else NONE,
            sweep.context.now,
            is_lemon=node.life.key in sweep.lemons,
            marks=_fault_marks_of(sweep, node),
            unmanaged_workloads=unmanaged_by_node.get((node.life.cluster, node.kubernetes.name), ())
            if node.kubernetes
            else (),
            job_ids=jobs.get((node.life.cluster, node.kubernetes.name), ()) if node.kubernetes else (),
        ).replace(
            repaired_by=describe_controller(node.kubernetes),
            bound_in_use=bound.get((node.life.cluster, node.kubernetes.name), NONE) if node.kubernetes else None,
        )
        for node in sweep.nodes
        if node.life.cluster in clusters_read
    }
    stored_keys: set[tuple[str, str]] = set()
    has_changed = False
    try:
        for row, stored_node in sweep.readable_rows(sweep.list_rows(Table.FLEET, "NODE"), FleetNode):
            key = (stored_node.life.cluster, stored_node.life.instance_id)
            stored_keys.add(key)
            if key in stored_nodes:
                has_changed |= _store_node(
                    sweep, stored_nodes[key].with_history_of(stored_node), stored_node, row.version
                )
            elif not stored_node.is_gone and (
                stored_node.life.cluster in clusters_read or stored_node.life.cluster not in sweep.context.site.clusters
            ):
                fleet_node = stored_node.replace(is_gone=True, is_ready=False, changed_at=sweep.context.now)
                expires_at = sweep.context.now + _GONE_KEPT
                has_changed |= _store_node(sweep, fleet_node, stored_node, row.version, expires_at=expires_at)
        for key, node in stored_nodes.items():
            if key not in stored_keys:
                with sweep.isolate_item("/".join(key)):
                    row_now = ledger.get(fleet_rows.node_key(*key))
                    stored_now = rows.decode(row_now, FleetNode) if row_now else None
                    has_changed |= _store_node(sweep, node, stored_now, row_now.version if row_now else 0)
    finally:  # a failure ends the step after some rows were stored, and the next sweep finds them unchanged
        if has_changed:
            _note_change(sweep)
    if clusters_read == set(sweep.context.site.clusters):
        sweep.accelerators_in_use = sum(node.accelerators_in_use for node in stored_nodes.values())
        cordoned_life_keys = frozenset(node.life.key for node in stored_nodes.values() if node.is_cordoned)
        with contextlib.suppress(Conflict):  # a person cordons or uncordons now; the next sweep prunes
            manual_cordons.delete_outdated_records(cordoned_life_keys, sweep.context)
        _store_summary(sweep, stored_nodes.values())
    return 0


def _complete_clusters(sweep: SweepRun) -> set[str]:
    """Return the clusters whose lists were all read. HyperPod's own cluster also needs HyperPod's list."""
    home = sweep.context.site.clusters[0]
    clusters = {
        cluster
        for cluster in sweep.context.site.clusters
        if sweep.has_listed_cluster(cluster) and cluster not in sweep.unreadable_clusters
    }
    return clusters if sweep.provider_nodes is not None else clusters - {home}


def _fault_marks_of(sweep: SweepRun, node: Node) -> tuple[str, ...]:
    if node.kubernetes is None:
        return ()
    return kubernetes_node.fault_evidence(
        node.kubernetes, sweep.context.policy.watch, sweep.context.policy.catalogue, sweep.context.now
    )


def refresh_kueue(sweep: SweepRun) -> int:
    """Store the namespaces in which Kueue admits jobs, so that a submission into one is refused at once."""
    for cluster in sweep.context.site.clusters:
        source = Source(kind=SourceKind.KUEUE, target=cluster)
        try:
            namespaces = sweep.context.cluster.kueue_namespaces(cluster)
        except EvenkeelError as error:
            sweep.note_unreadable(source, error)
            continue
        sweep.results.record_answer(source)
        # Namespaces that do not fit are still held back by the scheduling cycle.
        fit_into_row = rows.fit_into_row({namespace: by} for namespace, by in sorted(namespaces.items()))
        row = sweep.context.ledger.get(fleet_rows.kueue_key(cluster))
        earlier_document = row.doc if row else {"cluster": cluster, "namespaces": {}}
        doc = {
            **earlier_document,
            "namespaces": {name: by for namespaces in fit_into_row for name, by in namespaces.items()},
        }
        if earlier_document != doc:
            with contextlib.suppress(Conflict):  # another sweep was first
                sweep.context.ledger.commit(Put(fleet_rows.kueue_row(cluster, doc, row.version if row else 0)))
    return 0


def refresh_settings(sweep: SweepRun) -> int:
    """Store HyperPod's settings with their time, so that a recovery need not call HyperPod before its cordon."""
    context, settings = sweep.context, sweep.hyperpod_settings
    if settings is None:
        return 0
    row = context.ledger.get(fleet_rows.hyperpod_key())
    # A row that this release cannot read is replaced.
    earlier = next(
        (stored_cluster for _, stored_cluster in rows.readable_rows((row,) if row else (), StoredProviderCluster)), None
    )
    has_listed = context.site.clusters[0] in _complete_clusters(sweep)
    stored_cluster = StoredProviderCluster(
        settings=settings,
        settings_read_at=context.now,
        nodes_read_at=context.now if has_listed else earlier.nodes_read_at if earlier else None,
    )
    doc = (stored_cluster.keeping_unknown(earlier) if earlier else stored_cluster).to_json()
    with contextlib.suppress(Conflict):  # another sweep was first
        context.ledger.commit(Put(Row(fleet_rows.hyperpod_key(), doc, row.version if row else 0)))
    return 0


def refresh_plan_ends(sweep: SweepRun) -> int:
    """Read when training plans and Capacity Blocks end. An end that cannot be read now stays as it was.

    A stored end that this release cannot read is replaced once AWS has stated all ends again.
    """
    context, settings = sweep.context, sweep.hyperpod_settings
    plan_by_group = settings.plan_by_group if settings else {}
    plans, reservations = {}, {}
    for arn in sorted({*plan_by_group.values()}):
        with sweep.isolate_item(arn):
            plans[arn] = context.provider.training_plan(arn)
    sweep.read_lists()
    reservation_ids = reservations_in_use(sweep.nodes)
    for reservation_id in sorted(reservation_ids):
        with sweep.isolate_item(reservation_id):
            reservations[reservation_id] = context.capacity_reservations.describe(reservation_id)
    key = fleet_rows.plan_ends_key()
    row = context.ledger.get(key)
    unreadable: list[Unreadable] = []
    earlier = readable_plan_ends(row, unreadable.append) if row else PlanEnds()
    for error in unreadable:
        sweep.note_unreadable_row(error)
    unread_clusters = {*context.site.clusters} - _complete_clusters(sweep)
    block_ends = current_block_ends(sweep.nodes, reservations, earlier, unread_clusters, context.now)
    if settings is None:
        plan_ends = PlanEnds(groups=tuple(end for end in earlier.groups if not end.is_capacity_block))
    else:
        plan_ends = current_plan_ends(context.site.default_cluster, plan_by_group, plans, earlier, context.now)
    ends = PlanEnds(groups=(*plan_ends.groups, *block_ends.groups))
    has_all_ends = plans.keys() >= {*plan_by_group.values()} and reservations.keys() >= reservation_ids
    is_complete = has_all_ends and not unread_clusters and (settings is not None or not context.site.has_hyperpod)
    if not is_complete if unreadable else ends == earlier:
        return 0
    with contextlib.suppress(Conflict):  # another sweep was first
        context.ledger.commit(Put(Row(key, ends.keeping_unknown(earlier).to_json(), row.version if row else 0)))
    return 0


def _store_summary(sweep: SweepRun, nodes: Iterable[FleetNode]) -> None:
    """Store the facts about the whole fleet that recoveries need."""
    boot_seconds = sweep.context.policy.watch.first_boot_grace_seconds
    summary = FleetSummary.of(nodes, sweep.context.now, boot_seconds=boot_seconds)
    stored_row = sweep.context.ledger.get(fleet_rows.summary_key())
    doc = (summary.keeping_unknown(rows.decode(stored_row, FleetSummary)) if stored_row else summary).to_json()
    if stored_row is None or stored_row.doc != doc:
        with contextlib.suppress(Conflict):  # another sweep was first
            sweep.context.ledger.commit(
                Put(Row(fleet_rows.summary_key(), doc, stored_row.version if stored_row else 0))
            )


def _jobs_on_nodes(sweep: SweepRun) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the jobs with pods on each node. Recurring faults are counted by job."""
    jobs_by_node: dict[tuple[str, str], set[str]] = {}
    for attempt, workload in sweep.workloads:
        for pod in workload.live_pods():
            if pod.node_name:
                jobs_by_node.setdefault((attempt.cluster, pod.node_name), set()).add(attempt.job_id)
    return {key: tuple(sorted(jobs)) for key, jobs in jobs_by_node.items()}


def _record_unmanaged_workloads(sweep: SweepRun) -> dict[tuple[str, str], tuple[str, ...]]:
    """Store the unmanaged work. Return the part that holds accelerators, by node."""
    clusters: dict[tuple[str, str], set[str]] = {}

    for cluster, live in sweep.live_pods.items():
        pods = unmanaged_pods.filter_unmanaged(cluster, live.pods, sweep.context)
        workloads = [workload for workload in unmanaged_workloads(cluster, pods) if workload.accelerators]
        for workload in workloads:
            for name in workload.node_names:
                clusters.setdefault((cluster, name), set()).add(workload.label)
        row = sweep.context.ledger.get(fleet_rows.unmanaged_workloads_key(cluster))
        earlier_document = row.doc if row else {"workloads": []}
        fitting_documents = rows.fit_into_row(workload.to_json() for workload in workloads[:_MAX_UNMANAGED_LISTED])
        doc = {**earlier_document, "workloads": fitting_documents}
        if earlier_document != doc:
            with contextlib.suppress(Conflict):  # another sweep was first
                sweep.context.ledger.commit(
                    Put(Row(fleet_rows.unmanaged_workloads_key(cluster), doc, row.version if row else 0))
                )
    return {key: tuple(sorted(labels)) for key, labels in clusters.items()}


def _store_node(
    sweep: SweepRun, node: FleetNode, stored_node: FleetNode | None, version: int, *, expires_at: datetime | None = None
) -> bool:
    """Store a node if it changed. Return whether it did."""
    if stored_node is not None and node.is_same_as(stored_node):
        return False
    row = fleet_rows.node_row(node.life.cluster, node.life.instance_id, node.to_json(), version, expires_at)
    with contextlib.suppress(Conflict):  # the index was stale; the next sweep reads the current row
        sweep.context.ledger.commit(Put(row))
    return True


def _note_change(sweep: SweepRun) -> None:
    """Record that rows of nodes changed, so that a reader of all nodes reads them again only then."""
    key = fleet_rows.nodes_changed_key()
    row = sweep.context.ledger.get(key)
    with contextlib.suppress(Conflict):  # another sweep recorded a change after this read: after our rows, too
        sweep.context.ledger.commit(Put(Row(key, {"at": rfc3339(sweep.context.now)}, row.version if row else 0)))
