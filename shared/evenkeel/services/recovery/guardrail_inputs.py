"""Read the facts of the guardrails, and check an action against them."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from evenkeel.domain.health import incidents
from evenkeel.domain.health.classification import IncidentFault
from evenkeel.domain.health.incidents import Incident, IncidentState
from evenkeel.domain.nodes import FleetNode, NodeLife, is_lost
from evenkeel.domain.recovery.fleet_summary import FleetSummary
from evenkeel.domain.recovery.guardrails import (
    REPAIRS,
    GuardrailAction,
    GuardrailFacts,
    GuardrailVerdict,
    NodeFailure,
    Register,
    RegisterEntry,
    check_guardrails,
    shared_causes,
)
from evenkeel.domain.recovery.holds import Hold, Holds
from evenkeel.domain.values import Instant, Value
from evenkeel.ports import ConditionCheck, Key, Row, Table, every
from evenkeel.services.context import Context
from evenkeel.services.incidents import note_group_fact
from evenkeel.services.storage import guardrail_registers
from evenkeel.services.storage.guardrail_registers import RegisterName
from evenkeel.services.tables import fleet_rows, rows

_FAULT_STATES = (
    *incidents.OPEN_LIST_ORDER,
    IncidentState.RECOVERED,
    IncidentState.WAITING_FOR_PERSON,
    IncidentState.JOB_NOT_RESUMED,
    IncidentState.FAILED,
)
"""States of incidents that may share a cause. Incidents in mode `observe` and incidents of other owners do not
count. An incident that changes its state during the reads may be read twice; its node counts once."""


class GuardrailState(NamedTuple):
    """The facts of a verdict, and the version of the register under which the action must be recorded."""

    facts: GuardrailFacts
    register: Register
    version: int

    def entry(self, incident: Incident, now: datetime) -> RegisterEntry:
        """Return the node's entry in the register."""
        life_key = incident.life.key
        return RegisterEntry(life_key=life_key, incident_id=incident.incident_id, pool=self.facts.pool, since=now)


class GuardrailInputs:
    """The facts of the fleet that guardrails need. Each property reads the ledger once, on first use."""

    def __init__(self, context: Context, read_rows: Mapping[Key, Row | None] | None = None) -> None:
        """Take the context, and rows that the caller has just read. `cordon_keys` names the rows of a cordon."""
        self.context = context
        self._rows = dict(read_rows or {})

    @cached_property
    def nodes(self) -> tuple[FleetNode, ...]:
        """Every node that the sweep stored, without the nodes of `unreadable_nodes`."""
        return tuple(node for _, node in rows.readable_rows(self._node_rows, FleetNode))

    @cached_property
    def unreadable_nodes(self) -> frozenset[Key]:
        """The keys of nodes whose rows this release cannot read."""
        readable = {fleet_rows.node_key(node.life.cluster, node.life.instance_id) for node in self.nodes}
        return frozenset(row.key for row in self._node_rows) - readable

    @cached_property
    def _node_rows(self) -> tuple[Row, ...]:
        return tuple(every(lambda cursor: self.context.ledger.by_state(Table.FLEET, "NODE", limit=1000, cursor=cursor)))

    @cached_property
    def failures(self) -> tuple[tuple[NodeFailure, bool], ...]:
        """The nodes whose incident started within the window or is open, with a fault that calls for a repair.

        Each with whether its incident is a drill. An incident whose fault this release cannot read counts, too.
        """
        return tuple(failure for state in _FAULT_STATES for failure in self._counted_failures(state))

    @cached_property
    def holds(self) -> Holds:
        """Every hold."""
        return rows.decode(self._hold_row, Holds) if self._hold_row else Holds()

    @cached_property
    def _hold_row(self) -> Row | None:
        return self.context.ledger.get(fleet_rows.hold_key())

    def holds_check(self) -> ConditionCheck:
        """Return the write with which a commit fails if a hold was set or released since the holds were read."""
        return ConditionCheck(fleet_rows.hold_key(), self._hold_row.version if self._hold_row else 0)

    def hold_on(self, incident: Incident) -> Hold | None:
        """Return the hold in force on an incident's node."""
        return self.holds.hold_on_node(incident.pool, incident.life.instance_id, self.context.now)

    def pool_nodes(self, pool: str) -> int:
        """Return how many nodes of a pool can be acted on, as the sweep counted them; 0 if it did not count them."""
        row = self._read_row(fleet_rows.summary_key())
        return rows.decode(row, FleetSummary).nodes.get(pool, 0) if row else 0

    def is_old(self, incident: Incident) -> bool:
        """Whether an incident's evidence is so old that its node must be examined again."""
        stale_after = timedelta(seconds=self.context.policy.repair.guardrails.stale_after_seconds)
        return self.context.now - _evidence_at(incident) >= stale_after

    def read_counts(
        self, action: GuardrailAction, incident: Incident, *, looks_healthy: bool = False
    ) -> GuardrailState:
        """Return the facts of a verdict without the shared causes, which need every node of the fleet.

        The size of a pool matters only if another of its nodes is out of service: the limit is at least one. A drill
        blocks only drills, because any principal that may send events can forge a drill.
        """
        register_name = _register_name_of(action)
        register, version = self._load_register(register_name, is_drill=incident.is_drill)
        real, _ = self._load_register(register_name, is_drill=False)
        under_way = real.merged_with(register) if incident.is_drill else real
        life_key, pool = incident.life.key, incident.pool
        facts = GuardrailFacts(
            life_key=life_key,
            pool=pool,
            hold=self.hold_on(incident) if action is not GuardrailAction.CORDON else None,
            under_way=under_way,
            pool_nodes=self.pool_nodes(pool) if under_way.count_others(life_key, pool) else 0,
            looks_healthy=looks_healthy,
            evidence_at=_evidence_at(incident),
            terminates_at=incident.deadline_at,
            now=self.context.now,
        )
        if action in REPAIRS:
            group_reports = note_group_fact.recent_facts(pool, self.context)
            facts = facts.replace(
                group_reports=tuple(
                    fact
                    for fact in group_reports
                    if self.context.now - fact.observed_at < self._cause_window
                    and (incident.is_drill or not fact.is_drill)
                )
            )
        return GuardrailState(facts, register, version)

    def read_facts(self, action: GuardrailAction, incident: Incident, *, looks_healthy: bool = False) -> GuardrailState:
        """Return the facts of a verdict about an action.

        The causes of a node whose row cannot be read are unknown, so none is returned. Evenkeel does not repair it.
        """
        state = self.read_counts(action, incident, looks_healthy=looks_healthy)
        if action not in REPAIRS or self.has_unreadable_row(incident):
            return state
        boot_seconds = self.context.policy.watch.first_boot_grace_seconds
        faulty = [failure for failure, is_drill in self.failures if incident.is_drill or not is_drill]
        causes = shared_causes(
            incident.life.key,
            incident.pool,
            (*self.nodes, *self._assumed_nodes(incident, faulty)),
            faulty,
            now=self.context.now,
            boot_seconds=boot_seconds,
            ended_at_by_incident=self._ended_causes,
        )
        return state._replace(facts=state.facts.replace(causes=causes))

    def _assumed_nodes(self, incident: Incident, failures: Iterable[NodeFailure]) -> list[FleetNode]:
        """Return the failed nodes whose rows cannot be read, as if they shared every cause of the incident's node."""
        own_node = self._by_life.get(incident.life.key)
        lives = [NodeLife.from_key(failure.life_key) for failure in failures]
        return [
            own_node.replace(life=life)
            for life in lives
            if own_node and fleet_rows.node_key(life.cluster, life.instance_id) in self.unreadable_nodes
        ]

    def has_unreadable_row(self, incident: Incident) -> bool:
        """Whether this release cannot read the row of an incident's node."""
        return fleet_rows.node_key(incident.life.cluster, incident.life.instance_id) in self.unreadable_nodes

    def _load_register(self, register_name: RegisterName, *, is_drill: bool) -> tuple[Register, int]:
        """Return a register of real recoveries or of drills, and the version of its row."""
        return guardrail_registers.parse_register(
            self._read_row(fleet_rows.register_key(register_name, is_drill=is_drill)), self.context.now
        )

    def _read_row(self, key: Key) -> Row | None:
        if key not in self._rows:
            self._rows[key] = self.context.ledger.get(key)
        return self._rows[key]

    @property
    def _cause_window(self) -> timedelta:
        return timedelta(seconds=self.context.policy.repair.guardrails.shared_cause_window_seconds)

    def _is_still_faulty(self, incident: Incident) -> bool:
        """Whether an incident is open and no recent evidence shows its node healthy."""
        node = self._by_life.get(incident.life.key)
        looks_healthy = (
            node is not None and node.is_ready and not node.marks and node.provider_status in ("", "Running")
        )
        return not incident.state.is_settled and not (looks_healthy and self.is_old(incident))

    @cached_property
    def _by_life(self) -> dict[str, FleetNode]:
        return {node.life.key: node for node in self.nodes}

    @cached_property
    def _ended_causes(self) -> dict[str, datetime]:
        """Shared cause → the time at which a person ended it."""
        row = self.context.ledger.get(fleet_rows.ended_causes_key())
        return {key: datetime.fromisoformat(end["at"]) for key, end in row.doc["causes"].items()} if row else {}

    def _counted_failures(self, state: IncidentState) -> Iterator[tuple[NodeFailure, bool]]:
        newest_first = every(
            lambda cursor: self.context.ledger.by_state(
                Table.INCIDENTS, f"INC#{state}", cursor=cursor, newest_first=True
            )
        )
        for row in newest_first:
            incident = next((incident for _, incident in rows.readable_rows([row], Incident)), None)
            started = incident or rows.parse(row.key, _StartedIncident, row.doc)
            if state.is_settled and self.context.now - started.opened_at >= self._cause_window:
                return
            if incident is None or IncidentFault.of(incident, self.context.policy.catalogue).node_rungs:
                is_open = self._is_still_faulty(incident) if incident else not state.is_settled
                failure = NodeFailure(started.life.key, started.pool, started.opened_at, is_open)
                yield failure, started.is_drill


class _StartedIncident(Value):
    """The part of an incident that guardrails count even if this release cannot read the rest."""

    life: NodeLife
    pool: str
    opened_at: Instant
    is_drill: bool = False


def cordon_keys() -> tuple[Key, ...]:
    """Return the rows that a verdict about a cordon may need."""
    cordons = (fleet_rows.register_key(RegisterName.CORDONS, is_drill=is_drill) for is_drill in (False, True))
    return (*cordons, fleet_rows.summary_key())


def check_stop_allowed(incident: Incident, context: Context) -> GuardrailVerdict:
    """Decide whether Evenkeel may stop the jobs on an incident's node.

    If a guardrail blocks the cordon, the jobs run on. New pods could land on the same node and would have to stop
    again. Evenkeel may stop the jobs if none of their pods can be alive: the node was NotReady for its give-up time.
    """
    inputs = GuardrailInputs(context)
    block_reason = incident.block.reason if incident.block and incident.block.action == GuardrailAction.CORDON else ""
    node = (
        context.cluster.node(incident.life.cluster, incident.node_name) if block_reason and incident.node_name else None
    )
    facts = GuardrailFacts(
        life_key=incident.life.key,
        pool=incident.pool,
        hold=inputs.hold_on(incident),
        cordon_block_reason=block_reason,
        is_dead=bool(block_reason) and is_lost(node, context.now, context.policy.jobs.lost_node_seconds),
        now=context.now,
    )
    return check_guardrails(GuardrailAction.STOP, facts, context.policy.repair.guardrails)


def _evidence_at(incident: Incident) -> datetime:
    fault_at = incident.last_fault_at
    return max(fault_at, incident.invalid_at or fault_at)


def _register_name_of(action: GuardrailAction) -> RegisterName:
    return RegisterName.CORDONS if action is GuardrailAction.CORDON else RegisterName.REPAIRS
