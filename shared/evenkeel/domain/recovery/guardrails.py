"""Guardrails: limits on harmful actions of the whole fleet. They never block an uncordon, which is not harmful.

    facts ─▶ hold ─▶ cordon blocked ─▶ group trouble ─▶ shared cause ─▶ stale evidence ─▶ fleet ─▶ pool ─▶ rate
             the first guardrail that blocks is the verdict; it names the numbers and when the block may end

The limit of repairs per node belongs to the repair ladder, because it ends with a person and not with a wait.

Registers list the actions under way. The commit that records the intent of an action also enters it in its register.
The register must still have the version of the verdict. So two actions cannot both use the rest of a limit.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from pydantic import Field

from evenkeel.domain.health.faults import Severity
from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.plurals import count_of
from evenkeel.domain.recovery.holds import Hold
from evenkeel.domain.recovery.repair_policy import GuardrailPolicy
from evenkeel.domain.values import Instant, Value

_AN_HOUR = timedelta(hours=1)


class GuardrailAction(StrEnum):
    """Action that a guardrail may block."""

    CORDON = "cordon"
    STOP = "stop"
    """Stop the jobs on a node."""
    REBOOT = "reboot"
    REPLACE = "replace"


REPAIRS = (GuardrailAction.REBOOT, GuardrailAction.REPLACE)


class GuardrailName(StrEnum):
    """The names of the guardrails, in the order of their checks."""

    HOLD = "HOLD"
    CORDON_BLOCKED = "CORDON_BLOCKED"
    GROUP_TROUBLE = "GROUP_TROUBLE"
    SHARED_CAUSE = "SHARED_CAUSE"
    STALE_EVIDENCE = "STALE_EVIDENCE"
    FLEET_REPAIRS = "FLEET_REPAIRS"
    POOL_REPAIRS = "POOL_REPAIRS"
    REPAIR_RATE = "REPAIR_RATE"
    FLEET_CORDONS = "FLEET_CORDONS"
    POOL_CORDONS = "POOL_CORDONS"


# ---------------------------------------------------------------- actions under way


class RegisterEntry(Value):
    """A node in a register: in repair, or cordoned by Evenkeel."""

    life_key: str = Field(alias="life")
    """Key of the node life. Each node counts once."""
    incident_id: str
    pool: str
    since: Instant


class Register(Value):
    """Actions under way and recent repair requests: one row for repairs, one for cordons."""

    entries: tuple[RegisterEntry, ...] = ()
    requested_at: tuple[Instant, ...] = ()
    """Times of the repair requests of the last hour, oldest first."""

    def without_old_requests(self, now: datetime) -> "Register":
        """Return the register without requests older than an hour. A node counts until it is removed."""
        return self.replace(requested_at=tuple(at for at in self.requested_at if now - at < _AN_HOUR))

    def count_others(self, life_key: str, pool: str = "") -> int:
        """Return the number of other nodes in the register, in a pool or in all pools."""
        return sum(entry.life_key != life_key and pool in ("", entry.pool) for entry in self.entries)

    def with_entry(self, entry: RegisterEntry, *, is_request: bool) -> "Register":
        """Return the register with a node added. With `is_request`, it counts as a repair request, too."""
        other_entries = tuple(other for other in self.entries if other.life_key != entry.life_key)
        requested_at = (*self.requested_at, entry.since) if is_request else self.requested_at
        return self.replace(entries=(*other_entries, entry), requested_at=requested_at)

    def without_request(self, requested_at: datetime) -> "Register":
        """Return the register without one repair request of this time. The node stays in the register."""
        times = list(self.requested_at)
        if requested_at in times:
            times.remove(requested_at)
        return self.replace(requested_at=tuple(times))

    def merged_with(self, other_register: "Register") -> "Register":
        """Return the union of both registers."""
        return Register(
            entries=(*self.entries, *other_register.entries),
            requested_at=tuple(sorted((*self.requested_at, *other_register.requested_at))),
        )

    def without_nodes(self, *lives: str) -> "Register":
        """Return the register without some nodes. Their repair requests still count for an hour."""
        return self.replace(entries=tuple(entry for entry in self.entries if entry.life_key not in lives))


class SharedCause(Value):
    """A possible shared cause, and when its nodes failed."""

    kind: str
    """`zone`, `UltraServer` or `image`."""
    name: str
    nodes: int
    """Number of nodes that share it and can be acted on."""
    faulted_at: tuple[Instant, ...] = ()
    """Fault times of the nodes that failed within the window or have an open incident, oldest first."""
    open_at: tuple[Instant, ...] = ()
    """Fault times of the nodes with an open incident, oldest first, without recovered or gone nodes."""

    @property
    def key(self) -> str:
        """Unique key of the cause."""
        return f"{self.kind}/{self.name}"


class GuardrailFacts(Value):
    """Facts for a guardrail verdict."""

    life_key: str = Field(alias="life")
    pool: str
    hold: Hold | None = None
    """Hold in force that covers the node; None if none does."""
    under_way: Register = Register()
    """Register of repairs or of cordons, by the action."""
    pool_nodes: int = 0
    """Nodes of the pool that can be acted on: not booting, not in maintenance, not gone."""
    causes: tuple[SharedCause, ...] = ()
    group_reports: tuple[GroupFact, ...] = Field(default=(), alias="groupFacts")
    """Events of the pool and the cluster within the window, oldest first."""
    evidence_at: Instant | None = None
    """Time of the latest fault signal or failed validation."""
    looks_healthy: bool = False
    """Whether the node would pass validation now."""
    cordon_block_reason: str = ""
    """Why a guardrail blocks the cordon; empty if none does."""
    terminates_at: Instant | None = None
    """Time at which AWS ends the node; None if unknown."""
    is_dead: bool = False
    """Whether the node has been NotReady for so long that its pods count as dead."""
    now: Instant


# ---------------------------------------------------------------- the verdict


class GuardrailVerdict(Value):
    """Whether an action is allowed; if not, the guardrail that blocks it."""

    is_allowed: bool
    guardrail: str = ""
    """Name of the guardrail that blocks; empty if none does."""
    reason: str
    """A sentence for an operator, with the numbers."""
    clears_at: Instant | None = None
    """Time at which the block ends by itself; None if something else must happen first."""
    cause: str = ""
    """Key of the shared cause. Evenkeel pages once per cause."""
    since: Instant | None = None
    """Time at which the first node of the shared cause failed."""


ALLOWED = GuardrailVerdict(is_allowed=True, reason="No guardrail blocks it.")


class _Violation(NamedTuple):
    """A guardrail that blocks an action, with the reason."""

    reason: str
    clears_at: datetime | None = None
    cause: str = ""
    since: datetime | None = None


class Guardrail(NamedTuple):
    """A guardrail: its name, its actions and its check."""

    name: GuardrailName
    actions: tuple[GuardrailAction, ...]
    check: Callable[[GuardrailAction, GuardrailFacts, GuardrailPolicy], _Violation | None]


def check_guardrails(action: GuardrailAction, facts: GuardrailFacts, policy: GuardrailPolicy) -> GuardrailVerdict:
    """Return whether an action is allowed now. The first guardrail that blocks decides."""
    for guardrail in GUARDRAILS:
        violation = guardrail.check(action, facts, policy) if action in guardrail.actions else None
        if violation is not None:
            return GuardrailVerdict(is_allowed=False, guardrail=guardrail.name, **violation._asdict())
    return ALLOWED


def _check_hold(_action: GuardrailAction, facts: GuardrailFacts, _policy: GuardrailPolicy) -> _Violation | None:
    hold = facts.hold
    return _Violation(f"{hold.by} holds automation{hold.scope_text}: {hold.reason}", hold.until) if hold else None


def _check_blocked_cordon(
    _action: GuardrailAction, facts: GuardrailFacts, _policy: GuardrailPolicy
) -> _Violation | None:
    if not facts.cordon_block_reason or facts.is_dead:
        return None
    return _Violation(f"The node is not cordoned yet, so its jobs keep running: {facts.cordon_block_reason}")


_LAUNCHES_FAIL = {
    GroupFactKind.NO_CAPACITY: "HyperPod has no capacity for it",
    GroupFactKind.LIFECYCLE_SCRIPT_FAILED: "its lifecycle script fails on new nodes",
    GroupFactKind.CREATION_FAILED: "HyperPod fails to create new nodes",
}


def _check_group_trouble(action: GuardrailAction, facts: GuardrailFacts, policy: GuardrailPolicy) -> _Violation | None:
    """Block replacements in a group whose launches fail, and all repairs in a failed cluster."""
    window = timedelta(seconds=policy.shared_cause_window_seconds)
    failure: GroupFact | None = None
    for fact in facts.group_reports:
        if fact.kind is GroupFactKind.PROVISIONED:
            failure = None if failure and failure.kind in _LAUNCHES_FAIL else failure
        elif fact.kind is GroupFactKind.CLUSTER_STATUS and fact.code == "InService":
            failure = None if failure and failure.kind is GroupFactKind.CLUSTER_FAILED else failure
        elif fact.kind is GroupFactKind.CLUSTER_FAILED or (
            action is GuardrailAction.REPLACE and fact.kind in _LAUNCHES_FAIL
        ):
            failure = fact
    if failure is None or facts.now - failure.observed_at >= window:
        return None
    cause = _LAUNCHES_FAIL.get(failure.kind, "the cluster itself has failed")
    group = failure.instance_group or "the cluster"
    reason = f"{group}: {cause}, reported at {_format_time(failure.observed_at)}."
    return _Violation(reason, failure.observed_at + window)


def _check_shared_cause(action: GuardrailAction, facts: GuardrailFacts, policy: GuardrailPolicy) -> _Violation | None:
    """Block repairs while enough nodes that share a cause are unhealthy, or until a person ends the cause.

    A node with stale evidence that looks healthy is not blocked: it is validated, not repaired. The validation may end
    the shared cause.
    """
    if _check_stale_evidence(action, facts, policy) is not None:
        return None
    window = timedelta(seconds=policy.shared_cause_window_seconds)
    for cause in facts.causes:
        needed_count = max(policy.shared_cause_count, math.ceil(policy.shared_cause_share * cause.nodes))
        faulty = [at for at in cause.faulted_at if facts.now - at < window]
        open_at = cause.open_at
        if _occurred_within_window(open_at, needed_count, window):
            count = max(len(faulty), len(open_at))
            share = f"{count} of {count_of(max(cause.nodes, count), 'node')} of {cause.kind} {cause.name}"
            reason = (
                f"{share} {'is' if count == 1 else 'are'} unhealthy; {needed_count} or more failed within "
                f"{_format_duration(window)}. "
                "A shared cause is likely, so repairs stop: find it. Repairs continue when fewer nodes are "
                f"unhealthy, or after evenkeel automation release --cause {cause.key!r}."
            )
            return _Violation(reason, None, cause.key, open_at[0])
        if len(faulty) >= needed_count:
            reason = (
                f"{len(faulty)} of {count_of(max(cause.nodes, len(faulty)), 'node')} of {cause.kind} {cause.name} "
                f"failed in {_format_duration(window)}. A shared cause is likely, so repairs stop: find it."
            )
            return _Violation(reason, faulty[-needed_count] + window, cause.key, faulty[0])
    return None


def _occurred_within_window(times: Sequence[datetime], needed_count: int, window: timedelta) -> bool:
    """Whether any period as long as the window contains at least `needed_count` of the times."""
    return any(last_at - first_at < window for first_at, last_at in zip(times, times[needed_count - 1 :], strict=False))


def _check_stale_evidence(
    _action: GuardrailAction, facts: GuardrailFacts, policy: GuardrailPolicy
) -> _Violation | None:
    if not facts.looks_healthy or facts.evidence_at is None:
        return None
    age = facts.now - facts.evidence_at
    if age < timedelta(seconds=policy.stale_after_seconds):
        return None
    return _Violation(
        f"The node looks healthy and its fault is {_format_duration(age)} old: "
        "Evenkeel validates it and does not repair it."
    )


def _check_fleet_repairs(_action: GuardrailAction, facts: GuardrailFacts, policy: GuardrailPolicy) -> _Violation | None:
    repairs = facts.under_way.count_others(facts.life_key)
    if repairs < policy.fleet_repairs:
        return None
    return _Violation(
        f"{count_of(repairs, 'node of the fleet is', 'nodes of the fleet are')} in repair; "
        f"the limit is {policy.fleet_repairs}."
    )


def _check_pool_repairs(_action: GuardrailAction, facts: GuardrailFacts, policy: GuardrailPolicy) -> _Violation | None:
    limit = pool_limit(policy.pool_repairs, policy.pool_repair_share, facts.pool_nodes)
    repairs = facts.under_way.count_others(facts.life_key, facts.pool)
    if repairs < limit:
        return None
    verb = "is" if repairs == 1 else "are"
    return _Violation(f"{_share_of_pool(repairs, facts)} {verb} in repair; the limit is {limit}.")


def _check_repair_rate(_action: GuardrailAction, facts: GuardrailFacts, policy: GuardrailPolicy) -> _Violation | None:
    recent = recent_requests(facts)
    if len(recent) < policy.repairs_per_hour:
        return None
    requests = count_of(len(recent), "repair request")
    reason = f"Evenkeel made {requests} in the last hour; the limit is {policy.repairs_per_hour}."
    return _Violation(reason, recent[-policy.repairs_per_hour] + _AN_HOUR)


def recent_requests(facts: GuardrailFacts) -> list[datetime]:
    """Return the times of the repair requests of the last hour, oldest first."""
    return [at for at in facts.under_way.requested_at if facts.now - at < _AN_HOUR]


def _check_fleet_cordons(_action: GuardrailAction, facts: GuardrailFacts, policy: GuardrailPolicy) -> _Violation | None:
    cordons = facts.under_way.count_others(facts.life_key)
    if cordons < policy.fleet_cordons or _is_leaving(facts, policy):
        return None
    return _Violation(
        f"Evenkeel cordoned {count_of(cordons, 'node')} of the fleet; the limit is {policy.fleet_cordons}."
    )


def _check_pool_cordons(_action: GuardrailAction, facts: GuardrailFacts, policy: GuardrailPolicy) -> _Violation | None:
    limit = pool_limit(policy.pool_cordons, policy.pool_cordon_share, facts.pool_nodes)
    cordons = facts.under_way.count_others(facts.life_key, facts.pool)
    if cordons < limit or _is_leaving(facts, policy):
        return None
    return _Violation(f"Evenkeel cordoned {_share_of_pool(cordons, facts)}; the limit is {limit}.")


def _is_leaving(facts: GuardrailFacts, policy: GuardrailPolicy) -> bool:
    """Whether AWS ends the node so soon that its jobs must save now or never."""
    return facts.terminates_at is not None and facts.terminates_at - facts.now < timedelta(
        seconds=policy.leaving_seconds
    )


def _share_of_pool(count: int, facts: GuardrailFacts) -> str:
    if facts.pool_nodes:
        return f"{count} of {count_of(facts.pool_nodes, 'node')} of {facts.pool}"
    return f"{count_of(count, 'node')} of {facts.pool}"


GUARDRAILS: tuple[Guardrail, ...] = (
    Guardrail(GuardrailName.HOLD, (GuardrailAction.STOP, *REPAIRS), _check_hold),
    Guardrail(GuardrailName.CORDON_BLOCKED, (GuardrailAction.STOP,), _check_blocked_cordon),
    Guardrail(GuardrailName.GROUP_TROUBLE, REPAIRS, _check_group_trouble),
    Guardrail(GuardrailName.SHARED_CAUSE, REPAIRS, _check_shared_cause),
    Guardrail(GuardrailName.STALE_EVIDENCE, REPAIRS, _check_stale_evidence),
    Guardrail(GuardrailName.FLEET_REPAIRS, REPAIRS, _check_fleet_repairs),
    Guardrail(GuardrailName.POOL_REPAIRS, REPAIRS, _check_pool_repairs),
    Guardrail(GuardrailName.REPAIR_RATE, REPAIRS, _check_repair_rate),
    Guardrail(GuardrailName.FLEET_CORDONS, (GuardrailAction.CORDON,), _check_fleet_cordons),
    Guardrail(GuardrailName.POOL_CORDONS, (GuardrailAction.CORDON,), _check_pool_cordons),
)
"""Every guardrail. A hold does not block a cordon: with the node cordoned, waiting is safe."""


def pool_limit(count: int | None, share: float | None, pool_size: int) -> int:
    """Return how many nodes of a pool may be out of service at a time: the lower of count and share, at least 1."""
    limits = [limit for limit in (count, None if share is None else math.floor(share * pool_size)) if limit is not None]
    return max(1, min(limits))


# ---------------------------------------------------------------- blocked actions that may continue


class BlockedAction(Value):
    """A recovery that a guardrail blocks, and its action."""

    incident_id: str
    severity: Severity
    opened_at: Instant
    action: GuardrailAction
    facts: GuardrailFacts
    cause: str = ""
    """Key of the shared cause that its block names."""
    is_drill: bool = False


def unblocked_actions(blocked_actions: Iterable[BlockedAction], policy: GuardrailPolicy) -> frozenset[str]:
    """Return the ids of the blocked incidents that may act now, together.

    The order is severity, then age; drills come last. Each unblocked action counts as under way for the next one. So a
    guardrail unblocks only as many actions as its limit allows. An action with stale evidence is unblocked too, because
    Evenkeel then validates the node instead of repairing it.
    """
    unblocked_ids: set[str] = set()
    entries_by_action: dict[GuardrailAction, list[RegisterEntry]] = {
        GuardrailAction.CORDON: [],
        GuardrailAction.REPLACE: [],
        GuardrailAction.STOP: [],
    }
    for blocked_action in sorted(blocked_actions, key=_unblock_order):
        earlier = entries_by_action[
            GuardrailAction.REPLACE if blocked_action.action in REPAIRS else blocked_action.action
        ]
        under_way = blocked_action.facts.under_way
        for entry in earlier:
            under_way = under_way.with_entry(entry, is_request=blocked_action.action in REPAIRS)
        verdict = check_guardrails(blocked_action.action, blocked_action.facts.replace(under_way=under_way), policy)
        if verdict.is_allowed:
            facts = blocked_action.facts
            earlier.append(
                RegisterEntry(
                    life_key=facts.life_key, incident_id=blocked_action.incident_id, pool=facts.pool, since=facts.now
                )
            )
        is_stale = verdict.guardrail == GuardrailName.STALE_EVIDENCE or (
            # A node that waits to be cordoned and looks healthy by now needs no cordon.
            blocked_action.action is GuardrailAction.CORDON
            and _check_stale_evidence(blocked_action.action, blocked_action.facts, policy) is not None
        )
        # The recorded block may not name the shared cause yet, for example after a hold. The recovery must run once
        # to record the cause and to page a person.
        is_new_cause = verdict.cause not in ("", blocked_action.cause)
        if verdict.is_allowed or is_stale or is_new_cause:
            unblocked_ids.add(blocked_action.incident_id)
    return frozenset(unblocked_ids)


def _unblock_order(blocked_action: BlockedAction) -> tuple[bool, int, datetime, str]:
    return (
        blocked_action.is_drill,
        -blocked_action.severity.rank,
        blocked_action.opened_at,
        blocked_action.incident_id,
    )


# ---------------------------------------------------------------- shared causes


class NodeFailure(NamedTuple):
    """A node that failed, and when."""

    life_key: str
    pool: str
    at: datetime
    is_open: bool = False
    """Whether its incident is open and the node has not recovered."""


def shared_causes(
    life_key: str,
    pool: str,
    fleet: Iterable[FleetNode],
    faulty: Collection[NodeFailure],
    *,
    now: datetime,
    boot_seconds: int,
    ended_at_by_incident: Mapping[str, datetime] = MappingProxyType({}),
) -> tuple[SharedCause, ...]:
    """Return the possible shared causes of a node's fault: its zone, UltraServer and image, with their faulty nodes.

    An image is an instance group with its image version. Nodes of one image also share their lifecycle scripts. Nodes
    in maintenance do not count, because they are down on purpose. A node without a fleet row shares only its pool.

    Args:
        life_key: Key of the node life.
        pool: Its instance group or NodePool.
        fleet: All nodes in the ledger, including recently terminated nodes.
        faulty: The nodes that failed recently or have an open incident.
        now: The current time.
        boot_seconds: See `FleetNode.can_be_acted_on`.
        ended_at_by_incident: Time at which a person ended a cause, by the key of the cause. A node that failed before
            that time and has that cause counts for no cause.
    """
    node_by_life = {node.life.key: node for node in fleet}
    failed_at: dict[str, datetime] = {}
    open_at: dict[str, datetime] = {}
    for failure in sorted(faulty, key=lambda node_failure: node_failure.at, reverse=True):
        node = node_by_life.get(failure.life_key)
        keys = (f"{kind}/{name}" for kind, name in _possible_causes(node, node.pool if node else failure.pool))
        if any(key in ended_at_by_incident and failure.at <= ended_at_by_incident[key] for key in keys):
            continue
        if node is None or node.is_gone or not node.is_maintained:
            failed_at[failure.life_key] = failure.at
            if failure.is_open and not (node and node.is_gone):
                open_at[failure.life_key] = failure.at
    pools = {
        **{failure.life_key: failure.pool for failure in faulty},
        **{key: node.pool for key, node in node_by_life.items()},
    }
    own_node = node_by_life.get(life_key)
    causes = []
    for kind, name in _possible_causes(own_node, pool):
        members = {
            key
            for key in {*node_by_life, *failed_at}
            if (kind, name) in _possible_causes(node_by_life.get(key), pools.get(key, ""))
            and (key in failed_at or node_by_life[key].can_be_acted_on(now, boot_seconds=boot_seconds))
        }
        failure_times = sorted(failed_at[key] for key in members if key in failed_at)
        open_since = sorted(open_at[key] for key in members if key in open_at)
        causes.append(
            SharedCause(
                kind=kind, name=name, nodes=len(members), faulted_at=tuple(failure_times), open_at=tuple(open_since)
            )
        )
    return tuple(causes)


def _possible_causes(node: FleetNode | None, pool: str) -> tuple[tuple[str, str], ...]:
    image = ("image", f"{pool} {node.image if node else ''}".strip())
    if node is None:
        return (image,) if pool else ()
    causes = (("zone", node.zone), ("UltraServer", node.ultra_server), image)
    return tuple((kind, name) for kind, name in causes if name)


def _format_time(at: datetime) -> str:
    return at.strftime("%H:%M:%S UTC")


def _format_duration(duration: timedelta) -> str:
    seconds = round(duration.total_seconds())
    if seconds < 120:
        return f"{seconds} s"
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{round(seconds / 3600)} h"
