"""One round of the sweeper: what its steps know of the world, each part read once and only if it matters."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

from evenkeel.domain.health.incidents import OPEN_STATES, Incident
from evenkeel.domain.nodes import KubernetesNode, Node, NodeLife, ProviderNode, join_nodes
from evenkeel.domain.policy import Mode, Policy
from evenkeel.domain.recovery.leases import Lease, is_lemon
from evenkeel.domain.scheduling.jobs import WorkloadSeen
from evenkeel.domain.values import rfc3339
from evenkeel.ports import (
    Clock,
    Cluster,
    Conflict,
    ExecutionState,
    Ids,
    Ledger,
    Machine,
    Passes,
    Provider,
    Put,
    Row,
    Table,
    Telemetry,
    WaitAnswers,
    Workflows,
    get_all,
)
from evenkeel.services import rows

WRITER = "sweep_fleet"
_PACES = {"kueue": 50, "ghosts": 50, "gauges": 50, "kept": 600}
"""Seconds between two runs of what need not be done in every round, where rounds come quicker than each minute."""


class World(NamedTuple):
    """The ports that a round needs."""

    ledger: Ledger
    cluster: Cluster
    provider: Provider
    workflows: Workflows
    wait_answers: WaitAnswers
    passes: Passes
    clock: Clock
    ids: Ids
    telemetry: Telemetry


class Round:
    """One round: the world as it is needed, each part read once."""

    def __init__(
        self,
        world: World,
        clusters: Sequence[str],
        policy: Policy,
        mode: Mode,
        notes: Mapping[str, Any],
        now: datetime,
        *,
        drills_may_act: bool,
    ) -> None:
        self.world = world
        self.clusters = tuple(clusters)
        self.policy = policy
        self.mode = mode
        self.now = now
        self.drills_may_act = drills_may_act
        self.notes = dict(notes)
        """Where long lists were left off, for the next round."""
        self.pages_left = policy.watch.sweep_page_budget
        self.live: set[tuple[str, int]] = set()
        """Attempts that were seen not to be settled."""
        self._running: dict[Machine, frozenset[str]] = {}

    def is_due(self, name: str) -> bool:
        """Whether this is to be done in this round; remembers when it was."""
        pace = _PACES.get(name)
        if pace is None:
            return True
        done: dict[str, str] = self.notes.get("doneAt", {})
        last = done.get(name)
        if last is not None and self.now - datetime.fromisoformat(last) < timedelta(seconds=pace):
            return False
        self.notes["doneAt"] = {**done, name: rfc3339(self.now)}
        return True

    @cached_property
    def kubernetes(self) -> tuple[KubernetesNode, ...]:
        return tuple(node for cluster in self.clusters for node in self.world.cluster.nodes(cluster))

    @cached_property
    def records(self) -> tuple[ProviderNode, ...]:
        return self.world.provider.nodes()

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return join_nodes(self.kubernetes, self.records, self.clusters[0])

    @cached_property
    def workloads(self) -> dict[tuple[str, int], tuple[str, WorkloadSeen]]:
        """Every attempt's Job and pods with its cluster, by job and attempt."""
        return {
            (seen.job_id, seen.attempt): (cluster, seen)
            for cluster in self.clusters
            for seen in self.world.cluster.workloads(cluster)
        }

    @cached_property
    def open_incidents(self) -> tuple[Incident, ...]:
        """Every incident that is open now, read from its own row: the index may lag behind."""
        listed = (row for state in OPEN_STATES for row in self.listed(Table.INCIDENTS, f"INC#{state}"))
        found = (rows.read(row, Incident) for row in self.as_stored(listed))
        return tuple(incident for incident in found if not incident.state.is_settled)

    @cached_property
    def lemons(self) -> frozenset[str]:
        """The lives that are lemons now. A lease that holds the mark of what is over loses it."""
        found = set()
        for row in self.as_stored(self.listed(Table.FLEET, "LEMON")):
            lease = rows.read(row, Lease)
            if not lease.lemon:
                continue
            if is_lemon(lease, NodeLife.from_key(lease.lemon), self.policy.repair, self.now):
                found.add(lease.lemon)
                continue
            with contextlib.suppress(Conflict):  # a recovery holds it now: the next round sees
                self.world.ledger.commit(Put(rows.lease_row(lease.but(lemon=""), row.version)))
        return frozenset(found)

    def listed(self, table: Table, state: str) -> Iterator[Row]:
        """Yield the rows of a state, page by page while the round's budget lasts; the next round goes on from there."""
        name = f"{table}/{state}"
        cursor = self.notes.pop(name, None)
        while self.pages_left > 0:
            self.pages_left -= 1
            page = self.world.ledger.by_state(table, state, cursor=cursor)
            yield from page.rows
            cursor = page.cursor
            if cursor is None:
                return
        self.notes[name] = cursor
        self.world.telemetry.warning("The sweep's page budget is spent; the next round goes on", list=name)

    def as_stored(self, listed: Iterable[Row]) -> tuple[Row, ...]:
        """Return the rows as they stand, each once and without those that are gone: the index may lag behind."""
        return tuple(get_all(self.world.ledger, (row.key for row in listed)).values())

    def execution(self, machine: Machine, name: str) -> ExecutionState:
        """Look an execution up: in the list of all under way first, since thousands are not asked for one by one."""
        if machine not in self._running:
            self._running[machine] = self.world.workflows.running(machine)
        if name in self._running[machine]:
            return ExecutionState.RUNNING
        return self.world.workflows.state(machine, name)

    def is_fresh(self, at: datetime) -> bool:
        """Whether this is so new that whoever works on it may not have got round to it."""
        return self.now - at < timedelta(seconds=self.policy.watch.execution_grace_seconds)
