"""Watch the cluster: answer the waits that a change satisfies, and report faulty nodes.

A schedule invokes it each minute, and a lock allows one at a time. Each tick reads the present state, so a later tick
sees the changes that a broken watch missed. Some conditions become true by time alone, so a tick runs every few
seconds even without a change. The fleet's first cluster is watched; every tick reads all other clusters.
"""

from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.sources import Source, SourceKind
from evenkeel.domain.values import Value
from evenkeel.events import kubernetes_node
from evenkeel.ports import (
    EvenkeelError,
    TransientError,
)
from evenkeel.services.context import Context
from evenkeel.services.incidents import ingest_event
from evenkeel.services.storage import heartbeats, locks
from evenkeel.services.waits import evaluate_waits, wait_observation
from evenkeel.services.waits.debounced_answers import DebouncedWaitAnswerRequests
from evenkeel.services.waits.read_cache import ReadCache

WRITER = "watch_cluster"
LOCK = "watch"
DEBOUNCE = timedelta(milliseconds=200)
"""Changes come in bunches, so a tick starts this long after the first change."""
MAX_REST = timedelta(seconds=5)
"""After a tick, the watch rests as long as the tick took, and at most this long."""
_MAX_LOST_WATCHES = 3
"""How often one invocation restarts a failed watch. After that, the next invocation does."""


class WatchOutcome(StrEnum):
    """Whether the watch ran."""

    WATCHED = "WATCHED"
    LOCKED = "LOCKED"
    """Another watch runs."""


class WatchClusterResult(Value):
    """The result of one invocation."""

    outcome: WatchOutcome
    snapshots: int = 0
    answered: int = 0
    """Requested answers."""
    facts: int = 0
    """Ingested facts about nodes."""
    failed_snapshots: int = 0


def run(context: Context) -> WatchClusterResult:
    """Watch until the time is up.

    Idempotent: yes. A tick only requests answers and ingests facts, and repeats of both are recognised.
    """
    lock = locks.take_lock(
        context.ledger, LOCK, context.ids.new("op"), seconds=_lock_seconds(context.policy), now=context.now
    )
    if lock is None:
        return WatchClusterResult(outcome=WatchOutcome.LOCKED)
    watch = _WatchInvocation(context, lock)
    try:
        watch.until_time_is_up()
    finally:
        if watch.lock is not None:
            locks.unlock(context.ledger, watch.lock, now=context.clock.now())
    context_at_end = context.replace(now=context.clock.now())
    heartbeats.record_heartbeat(WRITER, context_at_end, watch.source_results())
    return WatchClusterResult(
        outcome=WatchOutcome.WATCHED,
        snapshots=watch.snapshots,
        answered=watch.answers.requests,
        facts=len(watch.ingested_facts),
        failed_snapshots=watch.failed_snapshots,
    )


def _lock_seconds(policy: Policy) -> float:
    return max(15, 3 * policy.watch.tick_seconds)


class _WatchInvocation:
    """One invocation of watch_cluster: what it observed, and when its next tick is due."""

    def __init__(self, context: Context, lock: locks.Lock) -> None:
        self.context = context
        self.lock: locks.Lock | None = lock
        self.ends_at = context.clock.now() + timedelta(seconds=context.policy.watch.watch_seconds)
        self.changed_at: datetime | None = None
        self.snapshot_at: datetime | None = None
        self.rests_until = context.clock.now()
        self.nodes_changed = True
        self.ingested_facts: set[str] = set()
        self.answers = DebouncedWaitAnswerRequests(context.wait_answers, context.clock)
        self.snapshots = self.failed_snapshots = 0
        self.watch_states: dict[str, str] = {}
        """Kind of object → why its watch is broken; empty if it works."""
        self.reads = ReadCache(context.clock.now())
        self.waits_failure = ""
        """Why not every wait could be evaluated in the last tick; empty if all were."""

    def source_results(self) -> heartbeats.SourceResults:
        """Return the facts that this invocation learned about its sources."""
        results = heartbeats.SourceResults()
        broken_watches = [f"{kind}: {error}" for kind, error in sorted(self.watch_states.items()) if error]
        source = Source(kind=SourceKind.KUBERNETES_WATCH, target=self.context.site.clusters[0])
        if broken_watches or (not self.watch_states and self.lock is not None):
            results.record_failure(source, "; ".join(broken_watches) or "The watch is not open.")
        elif self.watch_states:
            results.record_answer(source)
        waits = Source(kind=SourceKind.WAITS)
        if self.waits_failure:
            results.record_failure(waits, self.waits_failure)
        elif self.snapshots:
            results.record_answer(waits)
        return results

    def until_time_is_up(self) -> None:
        for _ in range(_MAX_LOST_WATCHES):
            is_lost_for_good = False
            try:
                self.context.cluster.watch(
                    self.context.site.clusters[0],
                    self.note_change,
                    until=self.run_tick_if_due,
                    on_state=self.note_state,
                )
            except EvenkeelError as error:
                self.note_state("watch", f"{type(error).__name__}: {error}")
                is_lost_for_good = not isinstance(error, TransientError)
                self.context.telemetry.count("WatchesLost")
                self.context.telemetry.warning("WatchLost", error=type(error).__name__, detail=str(error))
            if self.run_tick_if_due() or is_lost_for_good:
                return

    def note_state(self, kind: str, error: str) -> None:
        """Record whether the watch of a kind works."""
        if not error:
            self.watch_states.pop("watch", None)
        self.watch_states[kind] = error

    def note_change(self, kind: str) -> None:
        """Record that an object changed."""
        self.changed_at = self.changed_at or self.context.clock.now()
        self.nodes_changed = self.nodes_changed or kind == "node"

    def run_tick_if_due(self) -> bool:
        """Run a tick if it is due, and return whether the time is up. The watch calls this several times a second."""
        now = self.context.clock.now()
        if self.lock is not None:
            self.lock = locks.renew_lock(self.context.ledger, self.lock, now=now)
        if self.lock is None or now >= self.ends_at:
            return True
        if now < self.rests_until:
            return False
        has_settled = self.changed_at is not None and now - self.changed_at >= DEBOUNCE
        tick = timedelta(seconds=self.context.policy.watch.tick_seconds)
        if has_settled or self.snapshot_at is None or now - self.snapshot_at >= tick:
            self.run_tick(now)
        return False

    def run_tick(self, now: datetime) -> None:
        """Run one tick. A part that fails leaves the other parts alone and runs again in the next tick."""
        self.changed_at, self.snapshot_at = None, now
        self.snapshots += 1
        self.reads.begin_tick(now)
        failures = [error for error in (self.answer_waits(now), *self.ingest_node_facts(now)) if error]
        if failures:
            self.failed_snapshots += 1
            self.context.telemetry.count("WatchSnapshotsFailed")
            self.context.telemetry.warning("WatchSnapshotFailed", detail="; ".join(failures))
        # In a storm every tick is long and follows a change. The recoveries need the tables, too.
        ended_at = self.context.clock.now()
        self.rests_until = ended_at + min(ended_at - now, MAX_REST)

    def answer_waits(self, now: datetime) -> str:
        """Evaluate every wait. Return why some could not be evaluated; empty if all were."""
        context = self.context.replace(now=now, wait_answers=self.answers)
        clusters = self.context.site.clusters if self.nodes_changed else ()
        try:
            evaluation = evaluate_waits.run(context, reads=self.reads, nodes_of=clusters)
        except EvenkeelError as error:
            self.waits_failure = f"{type(error).__name__}: {error}"
            return self.waits_failure
        self.waits_failure = evaluation.failure_text
        return ""

    def ingest_node_facts(self, now: datetime) -> list[str]:
        """Ingest the facts of node objects, once in an invocation. Return the failures.

        Nodes are read only if they may show a new fact. A failing cluster or node does not affect the other clusters
        and nodes.
        """
        if not self.nodes_changed:
            return []
        failures: list[str] = []
        nodes: list[KubernetesNode] = []
        for cluster in self.context.site.clusters:
            try:
                nodes += wait_observation.list_nodes(cluster, self.context, self.reads)
            except EvenkeelError as error:
                failures.append(f"nodes of {cluster}: {type(error).__name__}: {error}")
        for node in nodes:
            try:
                self._ingest_facts_of(node, now)
            except EvenkeelError as error:
                failures.append(f"node {node.name}: {type(error).__name__}: {error}")
        # A node that is not Ready becomes faulty by time alone, so it is read again without a change.
        self.nodes_changed = bool(failures) or any(not node.is_ready for node in nodes)
        return failures

    def _ingest_facts_of(self, node: KubernetesNode, now: datetime) -> None:
        context = self.context.replace(now=now)
        for fact in kubernetes_node.node_facts(node, self.context.policy.watch, now):
            if fact.fact_key in self.ingested_facts:
                continue
            ingest_event.ingest_fact(fact, context)
            self.ingested_facts.add(fact.fact_key)
