"""Facts about the health of a node, from its Kubernetes node object.

Five sources write to a node object:

* the kubelet: NotReady for longer than the limit;
* HyperPod's health agent: labels, a taint and a condition by fault type, and the annotation `fault-details`, the only
  place with the Xid line;
* the EKS node monitoring agent: its conditions;
* NVSentinel: its conditions;
* Karpenter: the label with the capacity reservation, which may be about to end.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ConfigDict, OnErrorOmit, RootModel

from evenkeel.domain.health.faults import FaultCatalogue, default_catalogue
from evenkeel.domain.health.groups import GroupFact
from evenkeel.domain.health.health_policy import WatchPolicy
from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.domain.nodes import KubernetesNode, NodeCondition
from evenkeel.domain.recovery.validation import DEEP_CHECK_STATUS, FAULT_TYPES, HEALTH_STATUS, fault_marks
from evenkeel.domain.values import rfc3339
from evenkeel.events import driver_lines, eks_conditions, fields, nvsentinel_conditions
from evenkeel.events.driver_lines import NamedFault
from evenkeel.events.fields import EventModel
from evenkeel.events.hyperpod_node_health import fault_key

SOURCE_KUBELET = "kubernetes.node"
SOURCE_AGENT = "hyperpod.node-labels"
SOURCE_EKS = "eks.node-conditions"
SOURCE_NVSENTINEL = "nvsentinel.node-conditions"
SOURCE_RESERVATION = "ec2.reservation"
NOT_READY = "node:not_ready"

_NAMES = re.compile(r"[A-Za-z0-9]{1,64}", re.ASCII)
_DETAILS_LIMIT = 65_536
_MAX_DETAILS = 8
_NEW_NODE_WINDOW = timedelta(seconds=10)
_FAULT_REASONS = ("sagemaker.amazonaws.com/fault-reasons", "sagemaker.amazonaws.com/fault-reason")
_RESERVATION = "karpenter.k8s.aws/capacity-reservation-id"
_PENDING = {
    "UnschedulablePendingReboot": "hp:pending_reboot_label",
    "UnschedulablePendingReplacement": "hp:pending_replacement_label",
}


def _agent_time(value: object) -> datetime:
    if not isinstance(value, str):
        return fields.epoch_milliseconds(value)
    at = datetime.fromisoformat(value)
    if at.tzinfo is None:
        raise ValueError("a time needs a time zone")
    return fields.check_time(at)


def _empty_unless_name(text: str) -> str:
    return text if _NAMES.fullmatch(text) else ""


def _quoted(value: object) -> str:
    return fields.quoted(fields.text_of(value))


class _FaultDetail(EventModel):
    """An entry of the node annotation `sagemaker.amazonaws.com/fault-details`."""

    timestamp: Annotated[datetime, BeforeValidator(_agent_time)]
    """ISO 8601 with a time zone, or epoch milliseconds."""
    type: Annotated[str, AfterValidator(_empty_unless_name)] = ""
    reason: Annotated[str, AfterValidator(_empty_unless_name)] = ""
    message: Annotated[str, BeforeValidator(_quoted)] = ""


class _FaultDetails(RootModel[list[OnErrorOmit[_FaultDetail]]]):
    """The annotation: a list. An unreadable entry does not hide the other entries."""

    model_config = ConfigDict(strict=True, defer_build=True)


def facts_of(
    node: KubernetesNode, policy: WatchPolicy, now: datetime, ending: Mapping[str, GroupFact] | None = None
) -> tuple[NodeFact, ...]:
    """Return the facts that a node object shows now. The same fact has the same key each time, so repeats are harmless.

    Args:
        node: The node object.
        policy: How long a state must last before it is a fact.
        now: The time.
        ending: Notices of capacity reservations that are about to end, by reservation id.
    """
    if node.instance_id is None:
        return ()
    return (
        *_from_kubelet(node, policy, now),
        *_from_hyperpod(node, policy, now),
        *_from_eks(node, policy, now),
        *_from_nvsentinel(node, policy, now),
        *_from_reservation(node, ending or {}, now),
    )


def fault_evidence(
    node: KubernetesNode, policy: WatchPolicy, catalogue: FaultCatalogue, now: datetime
) -> tuple[str, ...]:
    """Return the labels, taints and conditions that mark a node as faulty; none if no fault needs a repair."""
    sources = (_from_hyperpod, _from_eks, _from_nvsentinel) if node.instance_id else ()
    facts = [fact for read in sources for fact in read(node, policy, now)]
    faults = (catalogue.look_up(fact.fault_key) for fact in facts if fact.kind is FactKind.FAULT)
    if not any(fault.repairs_node for fault in faults):
        return ()
    keys = (*FAULT_TYPES, HEALTH_STATUS, DEEP_CHECK_STATUS)
    labels = [f"{key}={node.labels[key]}" for key in keys if node.labels.get(key)]
    taints = [taint for taint in node.taints if taint.startswith(f"{HEALTH_STATUS}=")]
    conditions = [
        f"{condition.type}={condition.status} ({condition.reason})"
        for condition in node.conditions
        if _reports_fault(condition)
    ]
    return (*labels, *taints, *conditions)


def stale_conditions(node: KubernetesNode, policy: WatchPolicy, now: datetime) -> tuple[str, ...]:
    """Return the types of conditions that have reported a fault for too long: their agent has probably stopped.

    Source: aws/eks-node-monitoring-agent#275: the heartbeat continues after the agent has stopped checking.
    """
    return tuple(
        condition.type
        for condition in node.conditions
        if _reports_fault(condition) and _is_stale(condition, policy, now)
    )


def _from_kubelet(node: KubernetesNode, policy: WatchPolicy, now: datetime) -> tuple[NodeFact, ...]:
    since = node.not_ready_since
    if node.is_ready or since is None or (now - since).total_seconds() < policy.not_ready_seconds:
        return ()
    if _is_booting(node, policy, now):
        return ()
    seconds = int((now - since).total_seconds())
    return (
        _fact(
            node,
            SOURCE_KUBELET,
            NamedFault(NOT_READY, "NotReady"),
            since,
            occurrence=rfc3339(since),
            detail=f"Node {node.name} has been NotReady since {rfc3339(since)} ({seconds} s).",
        ),
    )


def _is_booting(node: KubernetesNode, policy: WatchPolicy, now: datetime) -> bool:
    if node.created_at is None or (now - node.created_at).total_seconds() >= policy.first_boot_grace_seconds:
        return False
    never_was_ready = node.not_ready_since is not None and node.not_ready_since - node.created_at <= _NEW_NODE_WINDOW
    return node.is_awaiting_validation or never_was_ready


def _from_hyperpod(node: KubernetesNode, policy: WatchPolicy, now: datetime) -> Iterator[NodeFact]:
    seen_keys: set[str] = set()
    for fact in _from_labels(node, now):
        seen_keys.add(fact.fault_key)
        yield fact
    conditions = [condition for condition in node.conditions if f"hp:{condition.type}" in default_catalogue()]
    for condition in conditions:
        # The condition repeats the label, seconds apart: report one fault once.
        if (
            _reports_fault(condition)
            and f"hp:{condition.type}" not in seen_keys
            and not _is_stale(condition, policy, now)
        ):
            yield from _of_condition(node, SOURCE_AGENT, condition, NamedFault(f"hp:{condition.type}", condition.type))
    if not fault_marks(node):
        yield from _recovery_facts(node, SOURCE_AGENT, conditions, policy, now)


def _from_eks(node: KubernetesNode, policy: WatchPolicy, now: datetime) -> Iterator[NodeFact]:
    conditions = [condition for condition in node.conditions if condition.type in eks_conditions.TYPES]
    for condition in conditions:
        reading = eks_conditions.reading(condition.reason, condition.message)
        if _reports_fault(condition) and reading and not _is_stale(condition, policy, now):
            yield from _of_condition(node, SOURCE_EKS, condition, reading)
    yield from _recovery_facts(node, SOURCE_EKS, conditions, policy, now)


def _from_nvsentinel(node: KubernetesNode, policy: WatchPolicy, now: datetime) -> Iterator[NodeFact]:
    conditions = [condition for condition in node.conditions if condition.type in nvsentinel_conditions.TYPES]
    for condition in conditions:
        if _reports_fault(condition) and not _is_stale(condition, policy, now):
            for reading in nvsentinel_conditions.readings(condition.type, condition.message):
                yield from _of_condition(node, SOURCE_NVSENTINEL, condition, reading)
    yield from _recovery_facts(node, SOURCE_NVSENTINEL, conditions, policy, now)


def _reports_fault(condition: NodeCondition) -> bool:
    if condition.type in eks_conditions.TYPES:
        return condition.status == "False"
    is_known = condition.type in nvsentinel_conditions.TYPES or f"hp:{condition.type}" in default_catalogue()
    return condition.status == "True" and is_known


def _reports_healthy(condition: NodeCondition) -> bool:
    return condition.status == ("True" if condition.type in eks_conditions.TYPES else "False")


def _is_stale(condition: NodeCondition, policy: WatchPolicy, now: datetime) -> bool:
    if condition.changed_at is None:
        return False
    return (now - condition.changed_at).total_seconds() > policy.stale_condition_seconds


def _of_condition(
    node: KubernetesNode, source: str, condition: NodeCondition, reading: NamedFault
) -> Iterator[NodeFact]:
    if condition.changed_at is None:
        return  # without a time, two occurrences have the same key
    text = f"{condition.type}={condition.status}, {condition.reason}: {condition.message}"
    yield _fact(node, source, reading, condition.changed_at, occurrence=rfc3339(condition.changed_at), detail=text)


def _recovery_facts(
    node: KubernetesNode, source: str, conditions: Iterable[NodeCondition], policy: WatchPolicy, now: datetime
) -> Iterator[NodeFact]:
    """Yield a recovery when all conditions of an agent are healthy, and only while that is recent."""
    conditions = tuple(conditions)
    changes = [condition.changed_at for condition in conditions if condition.changed_at]
    if not changes or not all(_reports_healthy(condition) for condition in conditions):
        return
    since = max(changes)
    if (now - since).total_seconds() > policy.recovery_signal_max_age_seconds:
        return
    well = _fact(
        node, source, NamedFault("", ""), since, occurrence=rfc3339(since), detail=f"Node {node.name} is healthy again."
    )
    yield well.replace(kind=FactKind.RECOVERED)


def _from_reservation(node: KubernetesNode, ending: Mapping[str, GroupFact], now: datetime) -> Iterator[NodeFact]:
    reservation = node.labels.get(_RESERVATION, "")
    notice = ending.get(reservation)
    terminates_at = notice.deadline_at if notice else None
    if notice is None or terminates_at is None:
        return
    reading = NamedFault("ec2:capacity_block_expiring", reservation)
    detail = f"Capacity reservation {reservation} ends node {node.name} at {rfc3339(terminates_at)}."
    occurrence = f"{reservation}-{rfc3339(terminates_at)}"
    fact = _fact(node, SOURCE_RESERVATION, reading, now, occurrence=occurrence, detail=detail)
    yield fact.replace(deadline_at=terminates_at, is_drill=notice.is_drill)


def _from_labels(node: KubernetesNode, now: datetime) -> tuple[NodeFact, ...]:
    types = _label_names(node, FAULT_TYPES) or _label_names(node, _FAULT_REASONS)
    pending = _PENDING.get(node.labels.get(HEALTH_STATUS, "")) or _pending_by_taint(node)
    failed_check = node.labels.get(DEEP_CHECK_STATUS) == "Failed"
    if not (types or pending or failed_check):
        return ()
    facts: dict[str, NodeFact] = {}
    seen_keys: set[str] = set()
    for entry in _details(node):
        named, at = entry.type or entry.reason, entry.timestamp
        readings = list(driver_lines.readings(entry.message))
        if named and (not types or named in types or entry.reason in types):
            seen_keys.update((named, entry.reason))
            readings.insert(0, NamedFault(fault_key(named), named))
        for reading in readings:
            fact = _fact(node, SOURCE_AGENT, reading, at, occurrence=rfc3339(at), detail=entry.message)
            facts[fact.fact_key] = fact
    # A label without a time counts once per boot: only the boot id distinguishes its occurrences.
    boot = f"boot-{node.boot_id}"
    untimed = [NamedFault(fault_key(name), name) for name in types if name not in seen_keys]
    if not facts and not types:
        untimed += [NamedFault(pending, pending.partition(":")[2])] if pending else []
        untimed += [NamedFault("hp:deep_health_check_failed", "deep_health_check_failed")] if failed_check else []
    for reading in untimed:
        text = f"Node {node.name} has the mark {reading.code}."
        fact = _fact(node, SOURCE_AGENT, reading, now, occurrence=boot, detail=text)
        facts[fact.fact_key] = fact
    return tuple(facts.values())


def _pending_by_taint(node: KubernetesNode) -> str | None:
    values = (taint.removeprefix(f"{HEALTH_STATUS}=").partition(":")[0] for taint in node.taints)
    return next((_PENDING[value] for value in values if value in _PENDING), None)


def _label_names(node: KubernetesNode, keys: tuple[str, ...]) -> tuple[str, ...]:
    marks = (node.labels[key] for key in keys if key in node.labels)
    names = dict.fromkeys(name for mark in marks for name in _NAMES.findall(mark[:1000]))
    return tuple(names)


def _details(node: KubernetesNode) -> list[_FaultDetail]:
    """Read `fault-details`, newest last. An unreadable entry is skipped."""
    if len(node.fault_details) > _DETAILS_LIMIT:
        return []
    try:
        entries = _FaultDetails.model_validate(json.loads(node.fault_details)).root
    except (ValueError, RecursionError):
        return []
    return sorted(entries, key=lambda entry: (entry.timestamp, entry.type, entry.reason, entry.message))[-_MAX_DETAILS:]


def _fact(
    node: KubernetesNode, source: str, reading: NamedFault, at: datetime, *, occurrence: str, detail: str
) -> NodeFact:
    assert node.instance_id
    return NodeFact(
        kind=FactKind.FAULT,
        source=source,
        instance_id=node.instance_id,
        fault_key=reading.fault_key,
        code=reading.code[:128],
        gpu=reading.gpu,
        link=reading.link,
        observed_at=at,
        envelope_id="/".join(part for part in (source, reading.fault_key, reading.gpu, occurrence[:128]) if part),
        detail=fields.quoted(detail),
        occurrence=occurrence[:128],
    )
