"""Weigh a harmful act against the guardrails: what the rules rest on is read here, and what they bar is told here."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.classification import IncidentFault
from evenkeel.domain.health.incidents import Block, Incident, IncidentState
from evenkeel.domain.jobs.attempt_end import is_lost
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.recovery.guardrails import (
    REPAIRS,
    GuardedAction,
    GuardFacts,
    GuardrailVerdict,
    Register,
    RegisterEntry,
    Rule,
    UnhealthyMachine,
    check_guardrails,
    shared_causes,
)
from evenkeel.domain.recovery.leases import Hold, Holds
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Conflict, Ledger, Put, Row, Table, Write, every
from evenkeel.services.context import Context
from evenkeel.services.incidents import note_group_fact
from evenkeel.services.storage import guardrail_registers, incident_record, rows
from evenkeel.services.storage.guardrail_registers import RegisterName

_FAULT_STATES = (
    IncidentState.OPEN,
    IncidentState.RECOVERING,
    IncidentState.BLOCKED,
    IncidentState.RECOVERED,
    IncidentState.WAITING_FOR_PERSON,
    IncidentState.JOB_NOT_RESUMED,
    IncidentState.FAILED,
)
"""States of incidents that a shared cause may be behind. What is observed or stood down from is maintenance, a fault
that calls for nothing, or another owner's."""
_PAGE_CLAIM_TIMEOUT = timedelta(minutes=2)
"""A page that was begun and not recorded for this long is taken over: a page twice is better than none."""


class GuardContext(NamedTuple):
    """What a verdict rests on, and the version of the register that the act must be recorded under."""

    facts: GuardFacts
    register: Register
    version: int

    def entry(self, incident: Incident, now: datetime) -> RegisterEntry:
        """Return the machine's entry in the register."""
        life = incident.life.key
        return RegisterEntry(life=life, incident_id=incident.incident_id, pool=self.facts.pool, since=now)


class GuardrailInputs:
    """What guardrails need to know of the fleet, each part read once and only if it matters."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @cached_property
    def nodes(self) -> tuple[FleetNode, ...]:
        """Every machine that the sweeper remembers."""
        found = every(lambda cursor: self.context.ledger.by_state(Table.FLEET, "NODE", limit=1000, cursor=cursor))
        return tuple(rows.read(row, FleetNode) for row in found)

    @cached_property
    def faulty(self) -> tuple[Incident, ...]:
        """The incidents that sickened a machine within the window or are open, with a fault that calls for a repair."""
        return tuple(
            incident
            for state in _FAULT_STATES
            for incident in self._counted(state)
            if IncidentFault.of(incident, self.context.policy.catalogue).node_rungs
        )

    @cached_property
    def holds(self) -> Holds:
        """Every hold."""
        row = self.context.ledger.get(rows.hold_key())
        return rows.read(row, Holds) if row else Holds()

    @cached_property
    def registers(self) -> dict[tuple[RegisterName, bool], tuple[Register, int]]:
        """Both registers, of real recoveries and of drills."""
        return {
            (which, is_drill): guardrail_registers.load(self.context, which, is_drill=is_drill)
            for which in RegisterName
            for is_drill in (False, True)
        }

    def hold_on(self, incident: Incident) -> Hold | None:
        """Return the hold in force on an incident's machine."""
        return self.holds.on(incident.pool, incident.life.instance_id, self.context.now)

    def pool_machines(self, pool: str) -> int:
        """Return how many machines of a pool can be acted on, as the sweeper counted them; 0 where it has not."""
        row = self.context.ledger.get(rows.pools_row({}, 0).key)
        return int(row.doc["machines"].get(pool, 0)) if row else 0

    def is_old(self, incident: Incident) -> bool:
        """Whether an incident's evidence is so old that its machine has to be looked at again."""
        stale_after = timedelta(seconds=self.context.policy.repair.guardrails.stale_after_seconds)
        return self.context.now - _evidence_at(incident) >= stale_after

    def guard_context(self, act: GuardedAction, incident: Incident, *, looks_healthy: bool = False) -> GuardContext:
        """Return what a verdict about an act rests on.

        How large a pool is matters only once another machine of it is out: one is always allowed. A drill bars drills
        alone: anybody who may put events can forge one.
        """
        which = _register_of(act)
        register, version = self.registers[which, incident.is_drill]
        real, _ = self.registers[which, False]
        under_way = real.merged_with(register) if incident.is_drill else real
        life, pool = incident.life.key, incident.pool
        facts = GuardFacts(
            life=life,
            pool=pool,
            hold=self.hold_on(incident) if act is not GuardedAction.CORDON else None,
            under_way=under_way,
            pool_machines=self.pool_machines(pool) if under_way.count_others(life, pool) else 0,
            looks_healthy=looks_healthy,
            evidence_at=_evidence_at(incident),
            terminates_at=incident.deadline_at,
            now=self.context.now,
        )
        if act in REPAIRS:
            boot_seconds = self.context.policy.watch.first_boot_grace_seconds
            faulty = [
                UnhealthyMachine(each.life.key, each.pool, each.opened_at, self._is_still_faulty(each))
                for each in self.faulty
                if incident.is_drill or not each.is_drill
            ]
            facts = facts.but(
                causes=shared_causes(
                    life, pool, self.nodes, faulty, now=self.context.now, boot_seconds=boot_seconds, ended=self._ended
                ),
                group_facts=tuple(
                    fact
                    for fact in note_group_fact.recent_facts(self.context, pool)
                    if self.context.now - fact.observed_at < self._window and (incident.is_drill or not fact.is_drill)
                ),
            )
        return GuardContext(facts, register, version)

    @property
    def _window(self) -> timedelta:
        return timedelta(seconds=self.context.policy.repair.guardrails.shared_cause_window_seconds)

    def _is_still_faulty(self, incident: Incident) -> bool:
        """Whether an incident is open and its machine was not seen well, by evidence that is not old."""
        node = self._by_life.get(incident.life.key)
        is_well = node is not None and node.is_ready and not node.marks and node.provider_status in ("", "Running")
        return not incident.state.is_settled and not (is_well and self.is_old(incident))

    @cached_property
    def _by_life(self) -> dict[str, FleetNode]:
        return {node.life.key: node for node in self.nodes}

    @cached_property
    def _ended(self) -> dict[str, datetime]:
        """When a person ended a shared cause, by its key."""
        row = self.context.ledger.get(rows.ended_causes_key())
        return {key: datetime.fromisoformat(end["at"]) for key, end in row.doc["causes"].items()} if row else {}

    def _counted(self, state: IncidentState) -> Iterator[Incident]:
        found = every(
            lambda cursor: self.context.ledger.by_state(
                Table.INCIDENTS, f"INC#{state}", cursor=cursor, newest_first=True
            )
        )
        for row in found:
            incident = rows.read(row, Incident)
            if state.is_settled and self.context.now - incident.opened_at >= self._window:
                return
            yield incident


def check_stop_allowed(incident: Incident, context: Context) -> GuardrailVerdict:
    """Say whether the jobs on an incident's machine may be stopped.

    Where its cordon is barred they run on, since they would only be stopped again: unless nothing of them lives, which
    is so once the machine has been NotReady for as long as it takes to be given up.
    """
    fleet = GuardrailInputs(context)
    barred = incident.block.reason if incident.block and incident.block.act == GuardedAction.CORDON else ""
    node = context.cluster.node(incident.life.cluster, incident.node_name) if barred and incident.node_name else None
    facts = GuardFacts(
        life=incident.life.key,
        pool=incident.pool,
        hold=fleet.hold_on(incident),
        cordon_barred=barred,
        is_dead=bool(barred) and is_lost(node, context.now, context.policy.jobs.lost_node_seconds),
        now=context.now,
    )
    return check_guardrails(GuardedAction.STOP, facts, context.policy.repair.guardrails)


def _evidence_at(incident: Incident) -> datetime:
    heard_at = incident.last_signal_at or incident.first_signal_at
    return max(heard_at, incident.invalid_at or heard_at)


def _register_of(act: GuardedAction) -> RegisterName:
    return RegisterName.CORDONS if act is GuardedAction.CORDON else RegisterName.REPAIRS


# ---------------------------------------------------------------- what is barred is told


def block(
    incident: Incident,
    act: GuardedAction,
    verdict: GuardrailVerdict,
    context: Context,
    *,
    writer: str,
    record: Decision | None = None,
) -> None:
    """Show the guardrail next to the incident and its node, and tell its story once for each rule that bars it.

    Args:
        incident: The incident.
        act: What is barred.
        verdict: By what.
        record: The decision, recorded with the story.
        writer: The service that tells.

    Idempotent: yes, the same rule on the same act is told once; its reason is kept fresh.
    """

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        before = current.block
        is_same = before is not None and (before.rule, before.act) == (verdict.rule, act)
        if current.state.is_settled or (is_same and before and before.reason == verdict.reason):
            return None
        since = before.since if is_same and before else context.now
        barred = Block(
            rule=verdict.rule,
            reason=verdict.reason,
            since=since,
            act=act,
            clears_at=verdict.clears_at,
            cause=verdict.cause,
        )
        after = current.but(state=IncidentState.BLOCKED, block=barred)
        if is_same:
            return after, []
        text = f"The {act} waits: {verdict.reason}"
        kind = "held" if verdict.rule == Rule.HOLD else "blocked"
        decision_id = record.decision_id if record else ""
        line = incident_record.timeline_put(
            current.incident_id, kind, text, at=context.now, writer=writer, decision_id=decision_id
        )
        return after, [line, *([Put(rows.decision_row(record))] if record else [])]

    before = incident.block
    incident_record.update(context.ledger, incident.incident_id, change)
    if before is None or before.rule != verdict.rule:
        context.telemetry.count("ActionsBlocked", rule=verdict.rule)
        context.telemetry.info("ActBlocked", rule=verdict.rule, act=act, reason=verdict.reason)


def unblock(incident: Incident, ledger: Ledger) -> None:
    """Take the guardrail's mark off an incident whose next step needs no leave.

    Idempotent: yes, no mark is success.
    """

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        return None if current.block is None else (current.without_block(), [])

    if incident.block is not None:
        incident_record.update(ledger, incident.incident_id, change)


def page_shared_cause(verdict: GuardrailVerdict, context: Context, *, is_drill: bool, window: timedelta) -> None:
    """Page once for a wave, however many machines it bars and whoever sees it first.

    A cause with a machine that was sick when people were told is the same wave, however long it lasts. The row is
    claimed, then the page goes out, then the claim says so. A crash in between lets
    another take over. Idempotent: yes, by the row.
    """
    key = rows.cause_key(verdict.cause, is_drill=is_drill)
    row = context.ledger.get(key)
    until = max(verdict.clears_at or context.now, context.now) + window
    was = row.doc if row else {}
    told_at = datetime.fromisoformat(str(was["claimedAt"])) if row else None
    is_same_wave = told_at is not None and (verdict.since or context.now) <= told_at
    claimed_at = told_at if is_same_wave else None
    is_paged = is_same_wave and was["isPaged"]
    doc = {"claimedAt": rfc3339(claimed_at or context.now), "until": rfc3339(until), "isPaged": bool(is_paged)}
    expires_at = until + rows.KEPT
    if claimed_at is not None and (is_paged or context.now - claimed_at < _PAGE_CLAIM_TIMEOUT):
        if is_paged and until - datetime.fromisoformat(str(was["until"])) > window:
            _try_put(context.ledger, Row(key, doc, row.version if row else 0, None, expires_at))
        return
    claim = Row(key, doc | {"claimedAt": rfc3339(context.now)}, row.version if row else 0, None, expires_at)
    if not _try_put(context.ledger, claim):
        return  # somebody else saw it at the same moment, and pages
    kind, _, name = verdict.cause.partition("/")
    message = (
        f"{verdict.reason}\nRepairs of these nodes wait until it is over. Next: evenkeel incidents ls --state BLOCKED"
    )
    drill, of_drills = ("[drill] ", "drill-") if is_drill else ("", "")
    subject = f"{drill}Several nodes of {kind} {name} failed at once"
    context.pager.page(subject, message, key=f"{of_drills}shared-cause-{verdict.cause}")
    context.telemetry.error("SharedCause", cause=verdict.cause, reason=verdict.reason, runbook="shared-cause")
    paged = Row(key, claim.doc | {"isPaged": True}, claim.version + 1, None, claim.expires_at)
    _try_put(context.ledger, paged)


def _try_put(ledger: Ledger, row: Row) -> bool:
    try:
        ledger.commit(Put(row))
    except Conflict:
        return False
    return True
