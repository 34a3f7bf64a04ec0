"""A case: Evenkeel's decision about one node, and the later events of the node.

In the mode `observe`, each further fault of a node opens another incident, because no repair is under way. These
incidents are not independent of each other, and after the first of them Evenkeel would have acted. So all incidents of
a node within one window are one case, and the case is judged by its first decision to act.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from enum import StrEnum

from evenkeel.domain.health.faults import NODE_RUNGS
from evenkeel.domain.health.incidents import FactKind, Incident, NodeFact
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.plan import NodeOwner
from evenkeel.domain.values import Instant, Sentence, Value


class NodeEventKind(StrEnum):
    """Kind of change or observation of a node."""

    FAULT = "FAULT"
    """A source reported a fault that says something about the node."""
    RECOVERED = "RECOVERED"
    """A source reported the node as healthy."""
    CORDONED = "CORDONED"
    UNCORDONED = "UNCORDONED"
    REBOOTED = "REBOOTED"
    REPLACED = "REPLACED"
    """Another instance took its node slot."""
    REMOVED = "REMOVED"
    """The instance ended, and no successor is known."""
    IN_SERVICE = "IN_SERVICE"
    """The node was seen Ready, schedulable and without a fault mark."""


class Actor(StrEnum):
    """The program or person that acted on a node."""

    HYPERPOD = "HyperPod"
    KARPENTER = "Karpenter"
    AUTO_SCALING = "an Auto Scaling group"
    CONTROLLER = "another controller"
    EC2 = "EC2"
    PERSON = "a person"
    ROLE = "an IAM role"
    """A session of a role: a person or a program."""
    UNKNOWN = "an unknown actor"


class NodeEvent(Value):
    """A change or an observation of a node, as its source shows it."""

    at: Instant
    kind: NodeEventKind
    actor: Actor = Actor.UNKNOWN
    evidence: Sentence = ""
    """The source and its record, for people."""

    @property
    def clause(self) -> str:
        """The event as a clause: `HyperPod rebooted the node`."""
        return f"{self.actor[0].upper()}{self.actor[1:]} {_DONE[self.kind]}" if self.kind in _DONE else _SEEN[self.kind]


_DONE = {
    NodeEventKind.CORDONED: "cordoned the node",
    NodeEventKind.UNCORDONED: "removed the cordon of the node",
    NodeEventKind.REBOOTED: "rebooted the node",
    NodeEventKind.REPLACED: "replaced the node",
    NodeEventKind.REMOVED: "removed the node",
}
_SEEN = {
    NodeEventKind.FAULT: "The node had a fault",
    NodeEventKind.RECOVERED: "The node was healthy again",
    NodeEventKind.IN_SERVICE: "The node was in service",
}


class Aftermath(Value):
    """The events of a node after an incident of the mode `observe` had ended."""

    events: tuple[NodeEvent, ...] = ()
    """In the order in which they became known; at most 60, so that a flapping node does not overflow its row."""

    def with_events(self, events: Iterable[NodeEvent]) -> "Aftermath":
        """Return the aftermath with further events. Copies of an event, and events beyond the limit, change nothing."""
        known_events = {(event.at, event.kind, event.actor) for event in self.events}
        new_events = [
            event for event in dict.fromkeys(events) if (event.at, event.kind, event.actor) not in known_events
        ]
        return self.replace(events=(*self.events, *new_events)[:_MAX_EVENTS])


AFTERMATH_PERIOD = timedelta(days=14)
"""How long the service records events after a decision: twice the longest observation window."""
_MAX_EVENTS = 60


class ShadowDecision(Value):
    """A decision of the mode `observe` about one node: the actions that Evenkeel would have taken."""

    incident_id: str
    node: str
    """Key of the node life."""
    instance_id: str
    slot: str
    pool: str
    fault_key: str
    first_signal_at: Instant
    last_signal_at: Instant
    decided_at: Instant
    cordons: bool
    repair: str = ""
    """First repair: `diagnose`, `reboot` or `replace`. Empty if Evenkeel would not repair the node itself."""
    owner: str = ""
    """Owner of the repair, as in the plan."""
    reason: Sentence = ""

    @property
    def acts(self) -> bool:
        """Whether Evenkeel would have acted on the node."""
        return self.cordons or bool(self.repair)


class ShadowCase(Value):
    """All incidents of one node within a window, and everything that is known about the node."""

    decision: ShadowDecision
    """The first decision to act, else the first decision."""
    incident_ids: tuple[str, ...]
    events: tuple[NodeEvent, ...] = ()
    """In any order."""
    known_until: Instant
    """The sources cover the node until this time."""
    end_reason: Sentence = ""
    """Why the sources cover no later time, as a sentence; empty if they only do not cover it yet."""


NODE_ENDS = "ec2:state_stopping"
"""EC2's notice that an instance ends. It is an action on the node, not a fault to decide about."""
_OWN_REPAIRS = {NodeOwner.EVENKEEL: None, NodeOwner.KARPENTER: "replace", NodeOwner.NODE_GROUP: "replace"}
"""Owners whose nodes Evenkeel repairs itself. Only HyperPod nodes are rebooted; all others are replaced."""


def shadow_decision(incident: Incident) -> ShadowDecision | None:
    """Return the decision of an incident of the mode `observe`; None for any other incident.

    An incident with only EC2's notice that the node ends has no decision, because there is no fault to decide about.
    """
    plan, decided_at = incident.plan, incident.stages.planned_at
    if incident.is_drill or incident.mode != Mode.OBSERVE or plan is None or decided_at is None:
        return None
    if incident.fault_key == NODE_ENDS:
        return None
    first_repair = next((rung for rung in plan.rungs if rung in NODE_RUNGS), "")
    is_evenkeel_repair = plan.repairs_node and plan.owner in _OWN_REPAIRS
    return ShadowDecision(
        incident_id=incident.incident_id,
        node=incident.life.key,
        instance_id=incident.life.instance_id,
        slot=incident.slot,
        pool=incident.pool,
        fault_key=incident.fault_key,
        first_signal_at=incident.first_signal_at,
        last_signal_at=incident.last_fault_at,
        decided_at=decided_at,
        cordons=plan.repairs_node,
        repair=(_OWN_REPAIRS[NodeOwner(plan.owner)] or first_repair) if is_evenkeel_repair and first_repair else "",
        owner=plan.owner,
        reason=plan.reason,
    )


def group_into_cases(
    decisions: Iterable[ShadowDecision], window: timedelta
) -> tuple[tuple[ShadowDecision, tuple[ShadowDecision, ...]], ...]:
    """Group decisions into cases, oldest first: the decision to judge, and all decisions of the case.

    A case begins with a decision about a node, and ends one window after the decision that is judged.
    """
    by_node: dict[str, list[ShadowDecision]] = {}
    for decision in sorted(decisions, key=lambda decision: (decision.decided_at, decision.incident_id)):
        by_node.setdefault(decision.node, []).append(decision)
    cases = [case for group in by_node.values() for case in _cases_of_node(group, window)]
    return tuple(sorted(cases, key=lambda case: (case[0].decided_at, case[0].incident_id)))


def _cases_of_node(
    decisions: Sequence[ShadowDecision], window: timedelta
) -> list[tuple[ShadowDecision, tuple[ShadowDecision, ...]]]:
    cases: list[tuple[ShadowDecision, list[ShadowDecision]]] = []
    for decision in decisions:
        if cases and decision.decided_at <= cases[-1][0].decided_at + window:
            first_decision, later_decisions = cases[-1]
            # Until a decision acts, the node is as it would be with Evenkeel.
            cases[-1] = (
                first_decision if first_decision.acts else decision if decision.acts else first_decision,
                [*later_decisions, decision],
            )
        else:
            cases.append((decision, [decision]))
    return [(first_decision, tuple(group)) for first_decision, group in cases]


_EVENT_OF_STEP = {
    "reboot_in_progress": NodeEventKind.REBOOTED,
    "replacement_started": NodeEventKind.REPLACED,
    "replacement_completed": NodeEventKind.REPLACED,
    "terminating": NodeEventKind.REMOVED,
}
"""Steps of HyperPod that change the node. A failed step changes nothing."""


def node_event_of(fact: NodeFact, *, is_evidence: bool) -> NodeEvent | None:
    """Return the event of a node that a fact reports; None if the fact reports none.

    Args:
        fact: The fact.
        is_evidence: Whether its fault says something about the node by itself.
    """
    if fact.is_drill:
        return None
    evidence = f"{fact.source}: {fact.detail or fact.code or fact.fault_key}"
    kind: NodeEventKind | None
    match fact.kind:
        case FactKind.FAULT if fact.fault_key == NODE_ENDS:
            kind = NodeEventKind.REMOVED
        case FactKind.FAULT:
            kind = NodeEventKind.FAULT if is_evidence else None
        case FactKind.RECOVERED:
            kind = NodeEventKind.RECOVERED
        case FactKind.PROGRESS:
            kind = _EVENT_OF_STEP.get(fact.code)
    actor = Actor.HYPERPOD if fact.kind is FactKind.PROGRESS else Actor.UNKNOWN
    return NodeEvent(at=fact.observed_at, kind=kind, actor=actor, evidence=evidence) if kind else None
