"""A run of the sweep: the facts that its steps need, which it reads once, and only if they matter."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

from evenkeel.domain.health.incidents import OPEN_LIST_ORDER, Incident
from evenkeel.domain.jobs.attempt import Attempt, ObservedWorkload
from evenkeel.domain.nodes import KubernetesNode, Node, NodeLife, ProviderCluster, ProviderNode, join_nodes
from evenkeel.domain.recovery.repair_lease import RepairLease, is_lemon
from evenkeel.domain.sources import STEP_INTERVAL_SECONDS, Source
from evenkeel.domain.values import Value, rfc3339
from evenkeel.ports import (
    Conflict,
    EvenkeelError,
    ExecutionState,
    LivePods,
    Put,
    Row,
    Table,
    Unreachable,
    Unreadable,
    WorkflowName,
    get_all,
)
from evenkeel.services.context import Context
from evenkeel.services.recovery import plan_recovery
from evenkeel.services.storage import attempt_store
from evenkeel.services.storage.heartbeats import SourceResults
from evenkeel.services.tables import fleet_rows, rows

T = TypeVar("T")
V = TypeVar("V", bound=Value)
WRITER = "sweep_fleet"
_LISTS_AT_ONCE = 8
"""Clusters, or kinds of objects, that are listed at a time."""
_MIN_INTERVAL_SECONDS = {
    "kueue": 50,
    "settings": 50,
    "stale_pointers": 50,
    "metrics": 50,
    "sources": 50,
    "overview": 50,
    "kept": 600,
    **STEP_INTERVAL_SECONDS,
}
"""Seconds between two runs of a step that not every sweep needs, if sweeps come more often than each minute."""


class SweepRun:
    """A run of the sweep. It reads each of its facts once."""

    def __init__(self, context: Context, notes: Mapping[str, Any]) -> None:
        self.context = context
        self.notes = dict(notes)
        """The positions in long lists, for the next run."""
        self.pages_left = context.policy.watch.sweep_page_budget
        self.accelerators_in_use: int | None = None
        """Accelerators in use, over all clusters; None if this run did not read every cluster."""
        self.results = SourceResults()
        """The facts that this run learned about its sources."""
        self.unreadable_clusters: dict[str, str] = {}
        """Cluster → the first of its lists that could not be read, and why. The objects of such a list are unknown, not
        gone."""
        self.hyperpod_error = ""
        """Why HyperPod's list could not be read; empty if it was read."""
        self.failures: list[str] = []
        """Failed items of the current step. They did not stop the other items."""
        self.hides_incidents = False
        """Whether `open_incidents` may lack incidents: a row is unreadable, or the list has more pages."""
        self._partial_lists: set[str] = set()
        """Lists that this run did not read from the first to the last page."""
        self._no_answer: set[str] = set()
        """Clusters that are not called again in this run."""
        self._running: dict[WorkflowName, frozenset[str]] = {}

    def is_due(self, name: str) -> bool:
        """Whether a step is due now. Records the time if it is."""
        pace = _MIN_INTERVAL_SECONDS.get(name)
        if pace is None:
            return True
        done_at: dict[str, str] = self.notes.get("doneAt", {})
        last_done_at = done_at.get(name)
        if last_done_at is not None and self.context.now - datetime.fromisoformat(last_done_at) < timedelta(
            seconds=pace
        ):
            return False
        self.notes["doneAt"] = {**done_at, name: rfc3339(self.context.now)}
        return True

    def read_each_cluster(self, source: str, read: Callable[[str], T]) -> dict[str, T]:
        """Read a list of each cluster, side by side. Record and skip a cluster that fails."""
        answers: dict[str, T] = {}
        with ThreadPoolExecutor(max_workers=_LISTS_AT_ONCE) as readers:
            reads = {
                cluster: readers.submit(read, cluster)
                for cluster in self.context.site.clusters
                if cluster not in self._no_answer
            }
        for cluster, answer in reads.items():
            try:
                answers[cluster] = answer.result()
            except EvenkeelError as error:
                self.unreadable_clusters.setdefault(cluster, f"{source}: {type(error).__name__}: {error}")
                self._warn(f"cluster {cluster}", error)
                if isinstance(error, Unreachable):
                    self._no_answer.add(cluster)
        return answers

    def note_unreadable(self, source: Source, error: EvenkeelError) -> None:
        """Record that a source could not be read."""
        self.results.record_failure(source, error)
        self._warn(source.words, error)

    def _warn(self, source: str, error: EvenkeelError) -> None:
        self.context.telemetry.warning("SourceNotRead", what=source, error=type(error).__name__, detail=str(error))

    @contextlib.contextmanager
    def isolate_item(self, name: str) -> Iterator[None]:
        """Work on one item of a step. Record a failure and continue with the next item."""
        try:
            yield
        except EvenkeelError as error:
            self.failures.append(f"{name}: {type(error).__name__}: {error}")

    def readable_rows(self, stored_rows: Iterable[Row], kind: type[V]) -> Iterator[tuple[Row, V]]:
        """Yield each row with its value. Report rows that this release cannot read, and continue without them."""
        return rows.readable_rows(stored_rows, kind, self.note_unreadable_row)

    def note_unreadable_row(self, error: Unreadable) -> None:
        """Report a row that this release cannot read."""
        self.failures.append(str(error))
        self.context.telemetry.count("RowsUnreadable")
        self.context.telemetry.error("RowUnreadable", detail=str(error), runbook="row-unreadable")

    def read_lists(self) -> None:
        """Read the long lists of all control planes side by side. Each is read once in a run."""
        with ThreadPoolExecutor(max_workers=_LISTS_AT_ONCE) as readers:
            reads = [
                readers.submit(getattr, self, name)
                for name in ("live_pods", "workloads_of", "nodes_of", "provider_nodes")
            ]
        for list_read in reads:
            list_read.result()

    @cached_property
    def live_pods(self) -> dict[str, LivePods]:
        """Cluster → its live pods, for clusters whose pods could be listed."""
        return self.read_each_cluster("pods", self.context.cluster.live_pods)

    @cached_property
    def nodes_of(self) -> dict[str, tuple[KubernetesNode, ...]]:
        """Cluster → its node objects, for clusters whose nodes could be listed."""
        return self.read_each_cluster("nodes", self.context.cluster.nodes)

    @cached_property
    def workloads_of(self) -> dict[str, tuple[ObservedWorkload, ...]]:
        """Cluster → Jobs and pods of attempts, for clusters whose Jobs and pods could be listed."""
        return self.read_each_cluster("workloads", self.context.cluster.workloads)

    @property
    def has_listed(self) -> bool:
        """Whether this run came so far as to list the fleet, whatever answered."""
        return {"nodes_of", "workloads_of", "provider_nodes"} <= vars(self).keys()

    def has_listed_cluster(self, cluster: str) -> bool:
        """Whether all lists of a cluster could be read.

        Only if all lists were read, an object that they do not contain is gone.
        """
        return cluster in self.nodes_of and cluster in self.workloads_of

    @cached_property
    def kubernetes(self) -> tuple[KubernetesNode, ...]:
        """The node objects of all clusters that could be listed."""
        return tuple(node for nodes in self.nodes_of.values() for node in nodes)

    @cached_property
    def nodes_by_name(self) -> Mapping[str, Mapping[str, KubernetesNode]]:
        """Cluster → the node objects of each cluster that could be listed, by name."""
        return {cluster: {node.name: node for node in nodes} for cluster, nodes in self.nodes_of.items()}

    @cached_property
    def provider_nodes(self) -> tuple[ProviderNode, ...] | None:
        """HyperPod's list; None if it could not be read."""
        try:
            return self.context.provider.nodes()
        except EvenkeelError as error:
            self.hyperpod_error = f"{type(error).__name__}: {error}"
            self._warn("HyperPod", error)
            return None

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of which both views are known. A view that could not be read leaves its nodes out."""
        home = self.context.site.clusters[0]
        provider_nodes = self.provider_nodes or () if home in self.nodes_of else ()
        return join_nodes(self.kubernetes, provider_nodes, home)

    @cached_property
    def hyperpod_settings(self) -> ProviderCluster | None:
        """HyperPod's settings and status; None if the fleet has no HyperPod cluster."""
        return plan_recovery.read_hyperpod_settings(self.context.provider)

    @cached_property
    def workloads(self) -> tuple[tuple[Attempt, ObservedWorkload], ...]:
        """The own Job and pods of every attempt, if they could be listed.

        Objects that only carry the labels of an attempt are logged and left out.
        """
        all_workloads = [(name, workload) for name, workloads in self.workloads_of.items() for workload in workloads]
        owned_workloads = attempt_store.owned_workloads(self.context.ledger, all_workloads)
        proven_uids = {(attempt.cluster, workload.job_uid) for attempt, workload in owned_workloads}
        unproven_workloads = [
            (cluster, workload) for cluster, workload in all_workloads if (cluster, workload.job_uid) not in proven_uids
        ]
        if unproven_workloads:
            names = [
                f"{cluster}/{workload.namespace}/{workload.job_id}-a{workload.attempt}"
                for cluster, workload in unproven_workloads[:10]
            ]
            self.context.telemetry.count("UnmanagedWorkloads", len(unproven_workloads))
            self.context.telemetry.warning("UnownedLabelsFound", jobs=names)
        return tuple(owned_workloads)

    def workload_of(self, attempt: Attempt) -> ObservedWorkload:
        """Return the own Job and pods of an attempt."""
        return attempt.own_workload(self._by_name.get((attempt.job_id, attempt.attempt), ()))

    @cached_property
    def _by_name(self) -> dict[tuple[str, int], list[ObservedWorkload]]:
        workloads: dict[tuple[str, int], list[ObservedWorkload]] = {}
        for attempt, workload in self.workloads:
            workloads.setdefault((attempt.job_id, attempt.attempt), []).append(workload)
        return workloads

    @cached_property
    def open_incidents(self) -> tuple[Incident, ...]:
        """The open incidents, read from their own rows, because the index may lag behind. See `hides_incidents`."""
        states = [f"INC#{state}" for state in OPEN_LIST_ORDER]
        stored_rows = self.read_present_rows(row for state in states for row in self.list_rows(Table.INCIDENTS, state))
        incidents = [incident for _, incident in self.readable_rows(stored_rows, Incident)]
        is_partial = any(f"{Table.INCIDENTS}/{state}" in self._partial_lists for state in states)
        self.hides_incidents = is_partial or len(incidents) < len(stored_rows)
        return tuple(incident for incident in incidents if not incident.state.is_settled)

    @cached_property
    def lemons(self) -> frozenset[str]:
        """The node lives that are lemons now. An outdated lemon is removed from its lease."""
        lemons = set()
        lease_rows = self.read_present_rows(self.list_rows(Table.FLEET, "LEMON"))
        for row, lease in self.readable_rows(lease_rows, RepairLease):
            if not lease.lemon:
                continue
            if is_lemon(lease, NodeLife.from_key(lease.lemon), self.context.policy.repair, self.context.now):
                lemons.add(lease.lemon)
                continue
            with contextlib.suppress(Conflict):  # a recovery holds it now; the next sweep reads it again
                self.context.ledger.commit(Put(fleet_rows.lease_row(lease.replace(lemon=""), row.version)))
        return frozenset(lemons)

    def list_rows(self, table: Table, state: str) -> Iterator[Row]:
        """Yield the rows of a state, page by page while the run's time lasts. The next run continues from there."""
        name = f"{table}/{state}"
        cursor = self.notes.pop(name, None)
        if cursor is not None:
            self._partial_lists.add(name)
        while self.pages_left > 0:
            self.pages_left -= 1
            page = self.context.ledger.by_state(table, state, cursor=cursor)
            yield from page.rows
            cursor = page.cursor
            if cursor is None:
                return
        self.notes[name] = cursor
        self._partial_lists.add(name)
        self.context.telemetry.warning("SweepPageLimitReached", list=name)

    def read_present_rows(self, index_entries: Iterable[Row]) -> tuple[Row, ...]:
        """Return the present rows, each once and without deleted rows, because the index may lag behind."""
        return tuple(get_all(self.context.ledger, (row.key for row in index_entries)).values())

    def execution_state(self, workflow: WorkflowName, name: str) -> ExecutionState:
        """Find an execution, first in the list of all running executions: thousands are not described one by one."""
        if workflow not in self._running:
            self._running[workflow] = self.context.workflows.running(workflow)
        if name in self._running[workflow]:
            return ExecutionState.RUNNING
        return self.context.workflows.state(workflow, name)

    def is_fresh(self, at: datetime) -> bool:
        """Whether an object is so new that its service may still be working on it."""
        return self.context.now - at < timedelta(seconds=self.context.policy.watch.execution_grace_seconds)
