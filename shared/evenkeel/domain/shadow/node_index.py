"""The nodes that exports name: their names, their slots and the events about them."""

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta

from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.domain.health.incidents import AffectedNode, FactKind, NodeFact
from evenkeel.domain.nodes import INSTANCE_ID, NodeLife
from evenkeel.domain.shadow.records import ExportedRecord, NodeAction, NodeSnapshot, ReadinessChange
from evenkeel.domain.shadow.replay_facts import RecordedNodeState
from evenkeel.domain.shadow.shadow_cases import Actor, NodeEvent, NodeEventKind, node_event_of
from evenkeel.domain.values import rfc3339

NOT_READY = "node:not_ready"
KUBELET = "kubernetes.node"
_CLUSTER = "export"
"""Name of the cluster of nodes without a node object."""
_IN_NAME = re.compile(f"(?<![0-9a-z])({INSTANCE_ID.pattern})(?![0-9a-f])", re.ASCII)
_FIRST_BOOT = timedelta(seconds=10)
"""A node that is NotReady this soon after its creation has not been Ready yet."""
_STARTED = ("replacement_started", "replacement_completed", "provisioned")
"""Steps of HyperPod that name the new instance of a node slot."""
_GONE = (NodeEventKind.REPLACED, NodeEventKind.REMOVED)


class ExportedInstance:
    """An instance, as the exports show it."""

    def __init__(self, instance_id: str, first_at: datetime) -> None:
        self.instance_id = instance_id
        self.first_at = first_at
        self.seen: NodeSnapshot | None = None
        """The latest node object."""
        self.logical_id = self.pool = ""
        self.is_hyperpod = False
        self.events: list[NodeEvent] = []
        self.planned_end: tuple[datetime, str] | None = None
        """Time of its planned end, with the evidence as a sentence."""
        self._boot_id = ""
        self._is_cordoned = False

    def add(self, event: NodeEvent) -> None:
        """Add an event. Keep only the last of several sightings in service without another event."""
        if event.kind is NodeEventKind.IN_SERVICE and self.events and self.events[-1].kind is event.kind:
            self.events.pop()
        self.events.append(event)

    def add_known_event(self, event: NodeEvent | None) -> None:
        """Add an event, if there is one."""
        if event is not None:
            self.add(event)

    def add_observation(self, observation: NodeSnapshot, at: datetime) -> None:
        """Add the changes that a node object shows."""
        text = f"node object {observation.node_name}"
        if observation.is_deleted:
            self.add(NodeEvent(at=at, kind=NodeEventKind.REMOVED, evidence=f"{text}: deleted"))
            return
        if observation.is_cordoned and not self._is_cordoned:
            actor = Actor.PERSON if observation.is_manual_cordon else Actor.CONTROLLER
            cordoned_at = observation.cordoned_at or at
            self.add(NodeEvent(at=cordoned_at, kind=NodeEventKind.CORDONED, actor=actor, evidence=f"{text}: cordoned"))
        if self._is_cordoned and not observation.is_cordoned:
            self.add(NodeEvent(at=at, kind=NodeEventKind.UNCORDONED, evidence=f"{text}: schedulable"))
        if self._boot_id and observation.boot_id and self._boot_id != observation.boot_id:
            self.add(NodeEvent(at=at, kind=NodeEventKind.REBOOTED, evidence=f"{text}: boot id {observation.boot_id}"))
        self._is_cordoned, self._boot_id = observation.is_cordoned, observation.boot_id or self._boot_id
        if observation.is_in_service:
            self.add(NodeEvent(at=at, kind=NodeEventKind.IN_SERVICE, evidence=f"{text}: Ready, without a fault mark"))

    def to_affected_node(self) -> AffectedNode:
        """Return the identity of the node and its slot."""
        observation = self.seen
        cluster = observation.cluster if observation else _CLUSTER
        launched_at = observation.created_at if observation and observation.created_at else self.first_at
        life = NodeLife(cluster=cluster, instance_id=self.instance_id, launched_at=launched_at)
        return AffectedNode(
            life=life,
            slot=f"{cluster}/{self.logical_id}" if self.logical_id else life.key,
            node_name=observation.node_name if observation else "",
            pool=(observation.pool if observation else "") or self.pool,
            instance_type=observation.instance_type if observation else "",
        )

    def is_gone(self, at: datetime) -> bool:
        """Whether the instance was replaced or removed by a time."""
        return any(event.kind in _GONE and event.at <= at for event in self.events)

    def has_manual_cordon(self, at: datetime) -> bool:
        """Whether a person's cordon was in force at a time."""
        kinds = (NodeEventKind.CORDONED, NodeEventKind.UNCORDONED)
        cordons = [event for event in self.events if event.kind in kinds and event.at <= at]
        last_event = max(cordons, key=lambda event: event.at, default=None)
        return last_event is not None and (last_event.kind, last_event.actor) == (NodeEventKind.CORDONED, Actor.PERSON)


class NodeIndex:
    """The nodes that exports name. Pass all records twice, in order of time: first to `learn`, then to `follow`."""

    def __init__(self, not_ready_seconds: int, repairs_by_itself: bool | None) -> None:
        """Begin with an empty index.

        Args:
            not_ready_seconds: A node that is NotReady for this long is faulty.
            repairs_by_itself: Whether NodeRecovery is Automatic; None = as the events show it, else not.
        """
        self.last_at: datetime | None = None
        self.unmatched = 0
        """Number of records about a node whose instance no record shows."""
        self.instances: dict[str, ExportedInstance] = {}
        self._not_ready = timedelta(seconds=not_ready_seconds)
        self._repairs_by_itself = repairs_by_itself
        self._names: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
        self._slots: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
        self._recovery: list[tuple[datetime, bool]] = []
        self._readiness: dict[str, dict[datetime, tuple[bool, str]]] = defaultdict(dict)

    # ------------------------------------------------------------ first reading: identities

    def learn_names(self, exported_record: ExportedRecord) -> None:
        """Record the names of the nodes."""
        self.last_at, content = exported_record.at, exported_record.content
        match content:
            case NodeSnapshot():
                self._learn_node(content, exported_record.at)
            case NodeFact():
                exported_instance = self._instance_of_id(content.instance_id, exported_record.at)
                exported_instance.is_hyperpod |= content.source.startswith("hyperpod.")
                self._learn_slot(content.logical_id, exported_instance, exported_record.at)
            case GroupFact() if content.kind is GroupFactKind.NODE_RECOVERY:
                self._recovery.append((content.observed_at, content.code == "Automatic"))
            case GroupFact() if content.instance_id:
                self._instance_of_id(content.instance_id, exported_record.at).pool = content.instance_group
            case ReadinessChange():
                self._readiness[content.node_name][exported_record.at] = (content.is_ready, content.evidence)
            case NodeAction() if content.instance_id:
                self._instance_of_id(content.instance_id, exported_record.at)
            case _:
                pass

    def _instance_of_id(self, instance_id: str, at: datetime) -> ExportedInstance:
        return self.instances.setdefault(instance_id, ExportedInstance(instance_id, at))

    def _learn_node(self, observation: NodeSnapshot, at: datetime) -> None:
        exported_instance = self._instance_of_id(observation.instance_id, at)
        exported_instance.seen = observation
        exported_instance.is_hyperpod |= observation.is_hyperpod
        names, readiness = self._names[observation.node_name], self._readiness[observation.node_name]
        if observation.instance_id not in (instance for _, instance in names):
            names.append((observation.created_at or at, observation.instance_id))
            names.sort()
        if observation.is_ready:
            readiness.setdefault(at, (True, f"node object {observation.node_name}: Ready"))
        elif observation.not_ready_since is not None:
            readiness.setdefault(
                observation.not_ready_since, (False, f"node object {observation.node_name}: not Ready")
            )

    def _learn_slot(self, logical_id: str, exported_instance: ExportedInstance, at: datetime) -> None:
        if logical_id and not exported_instance.logical_id:
            exported_instance.logical_id = logical_id
            self._slots[logical_id].append((at, exported_instance.instance_id))

    # ------------------------------------------------------------ second reading: events

    def add_events(self, exported_record: ExportedRecord, *, is_evidence: bool) -> None:
        """Add the events of a record to its node.

        Args:
            exported_record: The record.
            is_evidence: Whether its fault says something about the node by itself.
        """
        content = exported_record.content
        match content:
            case NodeSnapshot():
                self.instances[content.instance_id].add_observation(content, exported_record.at)
            case NodeFact():
                event = node_event_of(content, is_evidence=is_evidence)
                for exported_instance in self._instances_of_fact(content):
                    exported_instance.add_known_event(event)
            case NodeAction():
                self._follow_action(content)
            case _:
                pass

    def _instances_of_fact(self, fact: NodeFact) -> list[ExportedInstance]:
        """Return the instance that a fact is about. A replacement may name the new instance of the slot."""
        exported_instance = self.instances[fact.instance_id]
        if fact.kind is not FactKind.PROGRESS or fact.code not in _STARTED:
            return [exported_instance]
        earlier_instances = [
            instance
            for at, instance in self._slots.get(exported_instance.logical_id, ())
            if instance != fact.instance_id and self.instances[instance].first_at < exported_instance.first_at
        ]
        if earlier_instances:
            return [self.instances[earlier_instances[-1]]]
        # Without a predecessor, an instance that was known before the replacement began is the old one.
        return [exported_instance] if exported_instance.first_at < fact.observed_at else []

    def _follow_action(self, action: NodeAction) -> None:
        instance_id = (
            action.instance_id or self._instance_of_slot(action) or self.instance_of(action.node_name, action.event.at)
        )
        exported_instance = self.instances.get(instance_id)
        if exported_instance is None:
            self.unmatched += 1
        elif action.is_planned:
            exported_instance.planned_end = (action.event.at, f"The node ended as planned. {action.event.evidence}")
        else:
            exported_instance.add(action.event)

    def _instance_of_slot(self, action: NodeAction) -> str:
        slot_instances = [instance for at, instance in self._slots.get(action.logical_id, ()) if at <= action.event.at]
        return slot_instances[-1] if slot_instances else ""

    def instance_of(self, node_name: str, at: datetime) -> str:
        """Return the instance that had a node name at a time; empty if no record shows it."""
        instances_of_name = self._names.get(node_name, [])
        instances = [instance for since, instance in instances_of_name if since <= at] or [
            instance for _, instance in instances_of_name[:1]
        ]
        match = _IN_NAME.search(node_name)
        return instances[-1] if instances else match[1] if match else ""

    def not_ready_facts(self) -> Iterator[tuple[datetime, NodeFact]]:
        """Yield a fact for each node that was NotReady too long, with the time from which it counts.

        Adds the end of each such time to the events of its node. Call it between the two readings.
        """
        for name, changes in sorted(self._readiness.items()):
            since: datetime | None = None
            for at, (is_ready, evidence) in sorted(changes.items()):
                exported_instance = self.instances.get(self.instance_of(name, at))
                if exported_instance is None:
                    self.unmatched += 1
                elif not is_ready:
                    since = since or at
                elif since is not None:
                    exported_instance.add(NodeEvent(at=at, kind=NodeEventKind.RECOVERED, evidence=evidence))
                    yield from self._not_ready_fact(exported_instance, name, since, at)
                    since = None
            exported_instance = self.instances.get(self.instance_of(name, since)) if since else None
            if since is not None and exported_instance is not None and self.last_at is not None:
                yield from self._not_ready_fact(exported_instance, name, since, self.last_at)

    def _not_ready_fact(
        self, exported_instance: ExportedInstance, name: str, since: datetime, until: datetime
    ) -> Iterator[tuple[datetime, NodeFact]]:
        created_at = exported_instance.seen.created_at if exported_instance.seen else None
        is_first_boot = created_at is not None and since - created_at <= _FIRST_BOOT
        if until - since < self._not_ready or is_first_boot:
            return
        yield (
            since + self._not_ready,
            NodeFact(
                kind=FactKind.FAULT,
                source=KUBELET,
                instance_id=exported_instance.instance_id,
                fault_key=NOT_READY,
                code="NotReady",
                observed_at=since,
                envelope_id=f"{KUBELET}/{NOT_READY}/{rfc3339(since)}",
                detail=f"Node {name} has been NotReady since {rfc3339(since)}.",
                occurrence=rfc3339(since),
            ),
        )

    # ------------------------------------------------------------ state at a time

    def node_at(self, instance_id: str, at: datetime) -> RecordedNodeState:
        """Return the recorded state of an instance at a time."""
        exported_instance = self.instances[instance_id]
        return RecordedNodeState(
            affected=exported_instance.to_affected_node(),
            is_hyperpod=exported_instance.is_hyperpod,
            is_karpenter=exported_instance.seen is not None and exported_instance.seen.is_karpenter,
            is_gone=exported_instance.is_gone(at),
            is_manual_cordon=exported_instance.has_manual_cordon(at),
            hyperpod_repairs=self._hyperpod_repairs(at),
        )

    def _hyperpod_repairs(self, at: datetime) -> bool:
        if self._repairs_by_itself is not None:
            return self._repairs_by_itself
        earlier_settings = [is_automatic for since, is_automatic in self._recovery if since <= at]
        return earlier_settings[-1] if earlier_settings else any(is_automatic for _, is_automatic in self._recovery[:1])
