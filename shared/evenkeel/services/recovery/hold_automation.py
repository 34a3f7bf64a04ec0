"""A person holds harmful actions for a while, or releases them. Uncordon and recording are never held."""

from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.recovery import operator_effects
from evenkeel.domain.recovery.holds import Hold, Holds
from evenkeel.domain.recovery.modes import most_cautious_mode
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value, milliseconds, rfc3339
from evenkeel.ports import Delete, Invalid, KeyReused, Ledger, Put, Row, Write
from evenkeel.services.context import Context
from evenkeel.services.storage import known_names
from evenkeel.services.storage.dry_run import DryRunLedger
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import fleet_rows, rows

Json = dict[str, Any]

MAX_HOLDS = 100
"""Holds in force at a time. All of them are in one row, which every harmful action reads."""
MAX_ENDED_CAUSES = 200
"""Ended shared causes that are kept. All of them are in one row."""
LONGEST_HOLD = timedelta(days=7)
"""The longest hold. A person must renew a longer one, so that a forgotten hold does not stop repairs for good."""


class HoldRequest(Value):
    """A request to hold: the person, the reason and the end."""

    by: str
    reason: str
    until: datetime
    pool: str = ""
    """Hold only nodes of this pool; empty for all pools."""
    instance_id: str = ""
    """Hold only this node; empty for all nodes."""
    stops_scheduling: bool = False
    """Hold admissions, preemptions, resizes, migrations and rentals, too; only for the whole fleet."""
    allows_unknown: bool = False
    """Whether to accept a pool or node that the fleet does not know yet."""
    request_id: str
    """Identity of the request. A repeated request changes nothing."""
    fingerprint: str
    """Digest of the whole request. The same id with another digest is refused."""


class ReleaseRequest(Value):
    """A request to release: the person, the scope and the reason. It ends only the hold of exactly this scope."""

    by: str
    reason: str
    pool: str = ""
    instance_id: str = ""
    cause: str = ""
    """The shared cause to end instead of a hold: `zone/use1-az1`."""
    request_id: str
    fingerprint: str


def show_automation(context: Context) -> Json:
    """Return the mode in force, and the holds in force."""
    row = context.ledger.get(fleet_rows.hold_key())
    holds = rows.decode(row, Holds).in_force(context.now) if row else ()
    rules = context.policy.modes
    return {
        "mode": context.mode,
        "modeInForce": most_cautious_mode(context.mode, rules, "", ""),
        "modeRules": [rule.to_json() for rule in rules if rule.fault_class or rule.pool],
        "drillsMayAct": context.site.drills_may_act,
        "isHeld": bool(holds),
        "hold": holds[0].to_json() if holds else None,
        "holds": [hold.to_json() for hold in holds],
    }


def set_hold(request: HoldRequest, context: Context) -> Hold:
    """Hold harmful actions until `request.until`. A hold in force with the same scope is replaced.

    Idempotent: yes, by the request id, which is recorded in the same commit.

    Raises:
        Invalid: the end is past, or beyond the longest hold; the fleet has no such pool or node.
        KeyReused: the request id was used for another request.
    """
    if (
        _first_answer(context.ledger.get(fleet_rows.automation_request_key(request.request_id)), request, context.now)
        is None
    ):
        if not context.now < request.until <= context.now + LONGEST_HOLD:
            fault = f"must be in the future, at most {LONGEST_HOLD.days} days from now"
            raise Invalid(f"a hold until {request.until.isoformat()}", (("until", fault),))
        if request.stops_scheduling and (request.pool or request.instance_id):
            raise Invalid("a hold on scheduling has no scope", (("stopsScheduling", "omit pool and instanceId"),))
        if not request.allows_unknown:
            _check_scope(request, context)
    requested_hold = Hold(
        by=request.by,
        reason=request.reason,
        since=context.now,
        until=request.until,
        pool=request.pool,
        instance_id=request.instance_id,
        stops_scheduling=request.stops_scheduling,
    )
    scope_text = requested_hold.scope_text + (", with all scheduling," if requested_hold.stops_scheduling else "")
    text = f"Held{scope_text} by {request.by} until {request.until:%Y-%m-%dT%H:%M:%SZ}: {request.reason}"
    return Hold.model_validate(
        _commit_once(
            context.ledger,
            request,
            TimelineEntry(at=context.now, kind="held", text=text, writer=request.by),
            requested_hold,
        )
    )


def plan_hold(request: HoldRequest, context: Context) -> Json:
    """Return the plan of a hold. It is refused where the hold would be refused. Changes and records nothing.

    Raises:
        Invalid: as for `set_hold`.
        KeyReused: the request id was used for another request.
    """
    row = context.ledger.get(fleet_rows.hold_key())
    in_force = rows.decode(row, Holds).in_force(context.now) if row else ()
    hold = set_hold(request, context.replace(ledger=DryRunLedger(context.ledger)))
    return {
        "dryRun": True,
        "change": "hold",
        "pool": hold.pool,
        "instanceId": hold.instance_id,
        "until": rfc3339(hold.until),
        "effects": list(operator_effects.hold_effects(hold, in_force)),
    }


def _check_scope(request: HoldRequest | ReleaseRequest, context: Context) -> None:
    if request.pool:
        known_names.check_pool(request.pool, context)
    if request.instance_id:
        known_names.check_instance(request.instance_id, context)


def release_hold(request: ReleaseRequest, context: Context) -> Json:
    """End the hold of a scope, if there is one. The next evaluation of waits continues the actions that it blocked.

    Idempotent: yes, by the request id; if there is no hold, that is success.

    Raises:
        Invalid: there is no hold with this scope, and the fleet has no such pool or node.
        KeyReused: the request id was used for another request.
    """
    if request.cause:
        return _end_cause(request, context)
    row = context.ledger.get(fleet_rows.hold_key())
    scopes = {active.scope for active in (rows.decode(row, Holds).in_force(context.now) if row else ())}
    if (request.pool, request.instance_id) not in scopes:
        is_new = (
            _first_answer(
                context.ledger.get(fleet_rows.automation_request_key(request.request_id)), request, context.now
            )
            is None
        )
        if is_new:
            _check_scope(request, context)
    text = f"Released by {request.by}" + (f": {request.reason}" if request.reason else "")
    return _commit_once(
        context.ledger, request, TimelineEntry(at=context.now, kind="released", text=text, writer=request.by), None
    )


def _end_cause(request: ReleaseRequest, context: Context) -> Json:
    """End a shared cause. Nodes that failed before now no longer count for it, and their repairs continue in order."""
    if not request.reason:
        raise Invalid("ending a shared cause needs a reason", (("reason", "say why the cause is over"),))
    if request.pool or request.instance_id:
        raise Invalid("a cause has no scope", (("cause", "omit pool and instanceId"),))

    def commit_once() -> Json:
        earlier = context.ledger.get(fleet_rows.automation_request_key(request.request_id))
        first_answer = _first_answer(earlier, request, context.now)
        if first_answer is not None:
            return first_answer
        cause_rows = (
            context.ledger.get(fleet_rows.cause_key(request.cause, is_drill=is_drill)) for is_drill in (False, True)
        )
        if not any(cause_rows):
            message = "there is no such shared cause; list the causes: evenkeel incidents ls --state BLOCKED"
            raise Invalid(f"no shared cause {request.cause}", (("cause", message),))
        answer: Json = {"cause": request.cause, "endedAt": rfc3339(context.now)}
        row = context.ledger.get(fleet_rows.ended_causes_key())
        other_causes = {key: end for key, end in (row.doc["causes"] if row else {}).items() if key != request.cause}
        # Drop the oldest: their nodes were repaired or replaced long ago.
        newest_causes = dict(sorted(other_causes.items(), key=lambda item: str(item[1]["at"]))[-MAX_ENDED_CAUSES:])
        ended_causes = {
            **(row.doc if row else {}),
            "causes": newest_causes
            | {request.cause: {"at": rfc3339(context.now), "by": request.by, "reason": request.reason}},
        }
        text = f"Shared cause {request.cause} ended by {request.by}: {request.reason}"
        entry = TimelineEntry(at=context.now, kind="cause-ended", text=text, writer=request.by)
        answer_document = {"fingerprint": request.fingerprint, "answer": answer}
        fresh = fleet_rows.automation_request_row(request.request_id, answer_document, context.now)
        context.ledger.commit(
            Put(Row(fresh.key, fresh.doc, earlier.version if earlier else 0, None, fresh.expires_at)),
            Put(fleet_rows.automation_event_row(entry, request.request_id)),
            Put(Row(fleet_rows.ended_causes_key(), ended_causes, row.version if row else 0)),
        )
        return answer

    return until_committed(commit_once, "The cause changed on every try. Try again.")


def _commit_once(
    ledger: Ledger, request: HoldRequest | ReleaseRequest, entry: TimelineEntry, requested_hold: Hold | None
) -> Json:
    """Write the hold, or its end, and its record in one commit. A repeated request returns the first answer."""
    now = entry.at

    def commit_once() -> Json:
        earlier = ledger.get(fleet_rows.automation_request_key(request.request_id))
        first_answer = _first_answer(earlier, request, now)
        if first_answer is not None:
            return first_answer
        row = ledger.get(fleet_rows.hold_key())
        stored_holds = rows.decode(row, Holds) if row else Holds()
        in_force = stored_holds.in_force(now)
        holds = tuple(hold for hold in in_force if hold.scope != (request.pool, request.instance_id))
        if requested_hold and len(holds) >= MAX_HOLDS:
            fault = f"there are {len(holds)} holds in force: release some, or hold a pool or the fleet"
            raise Invalid("too many holds", (("instanceId" if request.instance_id else "pool", fault),))
        was_held = len(holds) < len(in_force)
        answer = requested_hold.to_json() if requested_hold else {"wasHeld": was_held, "releasedAt": rfc3339(now)}
        answer_document = {"fingerprint": request.fingerprint, "answer": answer}
        # DynamoDB deletes expired rows within days, not at once. This one may be overwritten.
        fresh = fleet_rows.automation_request_row(request.request_id, answer_document, now)
        writes: list[Write] = [
            Put(Row(fresh.key, fresh.doc, earlier.version if earlier else 0, None, fresh.expires_at)),
            Put(fleet_rows.automation_event_row(entry, request.request_id)),
        ]
        holds_after = (*holds, requested_hold) if requested_hold else holds
        if holds_after:
            holds_row = Row(
                fleet_rows.hold_key(), stored_holds.replace(holds=holds_after).to_json(), row.version if row else 0
            )
            writes.append(Put(holds_row, first_version=milliseconds(now)))
        elif row is not None:
            writes.append(Delete(fleet_rows.hold_key(), row.version))
        ledger.commit(*writes)
        return answer

    return until_committed(commit_once, "The hold changed on every try. Try again.")


def _first_answer(earlier: Row | None, request: HoldRequest | ReleaseRequest, now: datetime) -> Json | None:
    """Return the earlier answer to the same request; None if the request is new, or so old that it counts as new."""
    if earlier is None or (earlier.expires_at is not None and earlier.expires_at <= now):
        return None
    if earlier.doc["fingerprint"] != request.fingerprint:
        raise KeyReused("This idempotency key was used for a different request. Use a new key.")
    first_answer: Json = earlier.doc["answer"]
    return first_answer
