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

from evenkeel.domain.capacity.capacity_blocks import reservation_id_of
from evenkeel.domain.health.faults import FaultCatalogue, default_catalogue
from evenkeel.domain.health.group_facts import GroupFact
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
    return fields.one_line(fields.require_text(value))


class _FaultDetail(EventModel):
    """An entry of the node annotation `sagemaker.amazonaws.com/fault-details`."""

    timestamp: Annotated[datetime, BeforeValidator(_agent_time)]
    """ISO 8601 with a time zone, or epoch milliseconds."""
    type: Annotated[str, AfterValidator(_empty_unless_name)] = ""
    reason: Annotated[str, AfterValidator(_empty_unless_name)] = ""
    message: Annotated[str, BeforeValidator(_quoted)] = ""


class _FaultDetails(RootModel[list[OnErrorOmit[_FaultDetail]]]):
    """The whole annotation `fault-details`. An unreadable entry does not hide the other entries."""

    model_config = ConfigDict(strict=True, defer_build=True)


def node_facts(
    node: KubernetesNode, policy: WatchPolicy, now: datetime, ending_reservations: Mapping[str, GroupFact] | None = None
) -> tuple[NodeFact, ...]:
    """Return the facts that a node object shows now. The same fact has the same key each time, so repeats are harmless.

    Args:
        node: The node object.
        policy: How long a state must last before it is a fact.
        now: The time.
        ending_reservations: Notices of capacity reservations that are about to end, by reservation id.
    """
    if node.instance_id is None:
        return ()
    return (
        *_kubelet_facts(node, policy, now),
        *_hyperpod_facts(node, policy, now),
        *_eks_facts(node, policy, now),
        *_nvsentinel_facts(node, policy, now),
        *_reservation_facts(node, ending_reservations or {}, now),
    )


def fault_evidence(
    node: KubernetesNode, policy: WatchPolicy, catalogue: FaultCatalogue, now: datetime
) -> tuple[str, ...]:
    """Return the labels, taints and conditions that mark a node as faulty; none if no fault needs a repair."""
    sources = (_hyperpod_facts, _eks_facts, _nvsentinel_facts) if node.instance_id else ()
    facts = [fact for read_facts in sources for fact in read_facts(node, policy, now)]
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


def _kubelet_facts(node: KubernetesNode, policy: WatchPolicy, now: datetime) -> tuple[NodeFact, ...]:
    since = node.not_ready_since
    if node.is_ready or since is None or (now - since).total_seconds() < policy.not_ready_seconds:
        return ()
    if _is_booting(node, policy, now):
        return ()
    seconds = int((now - since).total_seconds())
    return (
        _node_fact(
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


def _hyperpod_facts(node: KubernetesNode, policy: WatchPolicy, now: datetime) -> Iterator[NodeFact]:
    seen_keys: set[str] = set()
    for fact in _label_facts(node, now):
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
            yield from _condition_facts(
                node, SOURCE_AGENT, condition, NamedFault(f"hp:{condition.type}", condition.type)
            )
    if not fault_marks(node):
        yield from _recovery_facts(node, SOURCE_AGENT, conditions, policy, now)


def _eks_facts(node: KubernetesNode, policy: WatchPolicy, now: datetime) -> Iterator[NodeFact]:
    conditions = [condition for condition in node.conditions if condition.type in eks_conditions.TYPES]
    for condition in conditions:
        named_fault = eks_conditions.named_fault(condition.reason, condition.message)
        if _reports_fault(condition) and named_fault and not _is_stale(condition, policy, now):
            yield from _condition_facts(node, SOURCE_EKS, condition, named_fault)
    yield from _recovery_facts(node, SOURCE_EKS, conditions, policy, now)


def _nvsentinel_facts(node: KubernetesNode, policy: WatchPolicy, now: datetime) -> Iterator[NodeFact]:
    conditions = [condition for condition in node.conditions if condition.type in nvsentinel_conditions.TYPES]
    for condition in conditions:
        if _reports_fault(condition) and not _is_stale(condition, policy, now):
            for named_fault in nvsentinel_conditions.named_faults(condition.type, condition.message):
                yield from _condition_facts(node, SOURCE_NVSENTINEL, condition, named_fault)
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


def _condition_facts(
    node: KubernetesNode, source: str, condition: NodeCondition, named_fault: NamedFault
) -> Iterator[NodeFact]:
    if condition.changed_at is None:
        return  # without a time, two occurrences have the same key
    text = f"{condition.type}={condition.status}, {condition.reason}: {condition.message}"
    yield _node_fact(
        node, source, named_fault, condition.changed_at, occurrence=rfc3339(condition.changed_at), detail=text
    )


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
    healthy_fact = _node_fact(
        node, source, NamedFault("", ""), since, occurrence=rfc3339(since), detail=f"Node {node.name} is healthy again."
    )
    yield healthy_fact.replace(kind=FactKind.RECOVERED)


def _reservation_facts(
    node: KubernetesNode, ending_reservations: Mapping[str, GroupFact], now: datetime
) -> Iterator[NodeFact]:
    reservation = reservation_id_of(node)
    notice = ending_reservations.get(reservation)
    terminates_at = notice.deadline_at if notice else None
    if notice is None or terminates_at is None:
        return
    named_fault = NamedFault("ec2:capacity_block_expiring", reservation)
    detail = f"Capacity reservation {reservation} ends node {node.name} at {rfc3339(terminates_at)}."
    occurrence = f"{reservation}-{rfc3339(terminates_at)}"
    fact = _node_fact(node, SOURCE_RESERVATION, named_fault, now, occurrence=occurrence, detail=detail)
    yield fact.replace(deadline_at=terminates_at, is_drill=notice.is_drill)


def _label_facts(node: KubernetesNode, now: datetime) -> tuple[NodeFact, ...]:
    types = _label_names(node, FAULT_TYPES) or _label_names(node, _FAULT_REASONS)
    pending_repair = _PENDING.get(node.labels.get(HEALTH_STATUS, "")) or _pending_repair_by_taint(node)
    failed_check = node.labels.get(DEEP_CHECK_STATUS) == "Failed"
    if not (types or pending_repair or failed_check):
        return ()
    facts: dict[str, NodeFact] = {}
    seen_keys: set[str] = set()
    for entry in _read_fault_details(node):
        reported_name, at = entry.type or entry.reason, entry.timestamp
        named_faults = list(driver_lines.named_faults(entry.message))
        if reported_name and (not types or reported_name in types or entry.reason in types):
            seen_keys.update((reported_name, entry.reason))
            named_faults.insert(0, NamedFault(fault_key(reported_name), reported_name))
        for named_fault in named_faults:
            fact = _node_fact(node, SOURCE_AGENT, named_fault, at, occurrence=rfc3339(at), detail=entry.message)
            facts[fact.fact_key] = fact
    # A label without a time counts once per boot: only the boot id distinguishes its occurrences.
    boot = f"boot-{node.boot_id}"
    untimed_faults = [NamedFault(fault_key(name), name) for name in types if name not in seen_keys]
    if not facts and not types:
        untimed_faults += [NamedFault(pending_repair, pending_repair.partition(":")[2])] if pending_repair else []
        untimed_faults += (
            [NamedFault("hp:deep_health_check_failed", "deep_health_check_failed")] if failed_check else []
        )
    for named_fault in untimed_faults:
        text = f"Node {node.name} has the mark {named_fault.code}."
        fact = _node_fact(node, SOURCE_AGENT, named_fault, now, occurrence=boot, detail=text)
        facts[fact.fact_key] = fact
    return tuple(facts.values())


def _pending_repair_by_taint(node: KubernetesNode) -> str | None:
    statuses = (taint.removeprefix(f"{HEALTH_STATUS}=").partition(":")[0] for taint in node.taints)
    return next((_PENDING[value] for value in statuses if value in _PENDING), None)


def _label_names(node: KubernetesNode, keys: tuple[str, ...]) -> tuple[str, ...]:
    marks = (node.labels[key] for key in keys if key in node.labels)
    names = dict.fromkeys(name for mark in marks for name in _NAMES.findall(mark[:1000]))
    return tuple(names)


def _read_fault_details(node: KubernetesNode) -> list[_FaultDetail]:
    """Read `fault-details`, newest last. An unreadable entry is skipped."""
    if len(node.fault_details) > _DETAILS_LIMIT:
        return []
    try:
        entries = _FaultDetails.model_validate(json.loads(node.fault_details)).root
    except (ValueError, RecursionError):
        return []
    return sorted(entries, key=lambda entry: (entry.timestamp, entry.type, entry.reason, entry.message))[-_MAX_DETAILS:]


def _node_fact(
    node: KubernetesNode, source: str, named_fault: NamedFault, at: datetime, *, occurrence: str, detail: str
) -> NodeFact:
    assert node.instance_id
    return NodeFact(
        kind=FactKind.FAULT,
        source=source,
        instance_id=node.instance_id,
        fault_key=named_fault.fault_key,
        code=named_fault.code[:128],
        gpu=named_fault.gpu,
        link=named_fault.link,
        observed_at=at,
        envelope_id="/".join(
            part for part in (source, named_fault.fault_key, named_fault.gpu, occurrence[:128]) if part
        ),
        detail=fields.one_line(detail),
        occurrence=occurrence[:128],
    )
