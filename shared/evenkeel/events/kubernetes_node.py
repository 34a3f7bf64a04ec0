"""Kubernetes node objects: what they say about the health of their machine.

Two kinds of facts: the kubelet has been NotReady past the limit, and the marks that HyperPod's health agent leaves
(labels `fault-types`, `node-health-status`; annotation `fault-details`, the only place on the node with the Xid line).
"""

import json
import re
from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.health.faults import catalogue
from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.policy import WatchPolicy
from evenkeel.domain.recovery.validation import DEEP_CHECK_STATUS, FAULT_TYPES, HEALTH_STATUS
from evenkeel.domain.values import rfc3339
from evenkeel.events import fields
from evenkeel.events.hyperpod_node_health import fault_key
from evenkeel.events.outcomes import BadEvent

SOURCE_KUBELET = "kubernetes.node"
SOURCE_AGENT = "hyperpod.node-labels"
NOT_READY = "node:not_ready"

_XID = re.compile(r"Xid \(PCI:[0-9A-Fa-f:.]{1,20}\): ([0-9]{1,4})(?![0-9])")
_NAMES = re.compile(r"[A-Za-z0-9]{1,64}", re.ASCII)
_CLEANUP_XID = 45
"""Channel cleanup after another fault; never evidence, thousands are normal."""
_DETAILS_LIMIT = 65_536
_MOST_DETAILS = 8
_VERDICTS = {
    "Drain and Reset": "drain_and_reset",
    "Drain P2P": "drain_p2p",
    "GPU Reset Required": "gpu_reset_required",
    "Node Reboot Required": "node_reboot_required",
}
"""The driver's own words in Xid 154."""
_JUST_BORN = timedelta(seconds=10)


def facts_of(node: KubernetesNode, policy: WatchPolicy, now: datetime) -> tuple[NodeFact, ...]:
    """Return what a node object says now. Equal facts come out equal each time, so they may be told again and again."""
    if node.instance_id is None:
        return ()
    return (*_from_kubelet(node, policy, now), *_from_agent(node, now))


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
            NOT_READY,
            "NotReady",
            since,
            occurrence=rfc3339(since),
            detail=f"Node {node.name} is not Ready since {rfc3339(since)} ({seconds} s).",
        ),
    )


def _is_booting(node: KubernetesNode, policy: WatchPolicy, now: datetime) -> bool:
    if node.created_at is None or (now - node.created_at).total_seconds() >= policy.first_boot_grace_seconds:
        return False
    never_was_ready = node.not_ready_since is not None and node.not_ready_since - node.created_at <= _JUST_BORN
    return node.is_awaiting_validation or never_was_ready


def _from_agent(node: KubernetesNode, now: datetime) -> tuple[NodeFact, ...]:
    types = _label_names(node, FAULT_TYPES)
    pending = {
        "UnschedulablePendingReboot": "hp:pending_reboot_label",
        "UnschedulablePendingReplacement": "hp:pending_replacement_label",
    }.get(node.labels.get(HEALTH_STATUS, ""))
    failed_check = node.labels.get(DEEP_CHECK_STATUS) == "Failed"
    if not (types or pending or failed_check):
        return ()
    facts: dict[str, NodeFact] = {}
    told: set[str] = set()
    for at, kind, reason, message in _details(node):
        key = _xid_key(message)
        named = kind or reason
        if named and named in (types or (named,)):
            told.add(named)
            fact = _fact(node, SOURCE_AGENT, fault_key(named), named, at, occurrence=rfc3339(at), detail=message)
            facts[fact.fact_key] = fact
        if key:
            fact = _fact(node, SOURCE_AGENT, key, key.partition(":")[2], at, occurrence=rfc3339(at), detail=message)
            facts[fact.fact_key] = fact
    # A label without a dated line counts once a boot: nothing else tells one occurrence from the next.
    boot = f"boot-{node.boot_id}"
    untimed = [(fault_key(name), name) for name in types if name not in told]
    if not facts and not types:
        untimed += [(pending, pending.partition(":")[2])] if pending else []
        untimed += [("hp:deep_health_check_failed", "deep_health_check_failed")] if failed_check else []
    for key, code in untimed:
        fact = _fact(node, SOURCE_AGENT, key, code, now, occurrence=boot, detail=f"Node {node.name} is marked {code}.")
        facts[fact.fact_key] = fact
    return tuple(facts.values())


def _label_names(node: KubernetesNode, keys: tuple[str, ...]) -> tuple[str, ...]:
    found = dict.fromkeys(name for key in keys for name in _NAMES.findall(node.labels.get(key, "")[:1000]))
    return tuple(found)


def _details(node: KubernetesNode) -> list[tuple[datetime, str, str, str]]:
    """Read `fault-details`: (time, type, reason, message), newest last. What cannot be read is passed over."""
    if not node.fault_details or len(node.fault_details) > _DETAILS_LIMIT:
        return []
    try:
        entries = json.loads(node.fault_details)
    except (ValueError, RecursionError):
        return []
    read = [_entry(entry) for entry in entries] if isinstance(entries, list) else []
    return sorted(entry for entry in read if entry)[-_MOST_DETAILS:]


def _entry(entry: Any) -> tuple[datetime, str, str, str] | None:
    if not isinstance(entry, dict):
        return None
    kind, reason, message, stamp = (entry.get(name, "") for name in ("type", "reason", "message", "timestamp"))
    if not all(isinstance(text, str) for text in (kind, reason, message)):
        return None
    at = _instant(stamp)
    kind = kind if _NAMES.fullmatch(kind) else ""
    reason = reason if _NAMES.fullmatch(reason) else ""
    return (at, kind, reason, fields.quoted(message)) if at else None


def _instant(stamp: Any) -> datetime | None:
    try:
        if isinstance(stamp, int | float) and not isinstance(stamp, bool):
            return fields.epoch_milliseconds(float(stamp), "timestamp")
        at = datetime.fromisoformat(stamp)
        return fields.plausible(at, "timestamp") if at.tzinfo else None
    except (BadEvent, OverflowError, TypeError, ValueError):
        return None


def _xid_key(message: str) -> str:
    """Return the catalogue key of the Xid in a driver's line; empty where there is none, or none that is evidence."""
    match = _XID.search(message)
    if not match:
        return ""
    number = int(match[1])
    if number == _CLEANUP_XID:
        return ""
    plain = f"xid:{number}"
    if number == 154:
        verdict = next((key for words, key in _VERDICTS.items() if words in message), "none")
        return f"{plain}/{verdict}"
    for word, variant in (("Non-fatal", "nonfatal"), ("Nonfatal", "nonfatal"), ("Fatal", "fatal")):
        if word in message and f"{plain}/{variant}" in catalogue():
            return f"{plain}/{variant}"
    return plain if plain in catalogue() else "xid:*"


def _fact(
    node: KubernetesNode, source: str, key: str, code: str, at: datetime, *, occurrence: str, detail: str
) -> NodeFact:
    assert node.instance_id
    return NodeFact(
        kind=FactKind.SICKENED,
        source=source,
        instance_id=node.instance_id,
        fault_key=key,
        code=code,
        observed_at=at,
        envelope_id=f"{source}/{key}/{occurrence}",
        detail=fields.quoted(detail),
        occurrence=occurrence,
    )
