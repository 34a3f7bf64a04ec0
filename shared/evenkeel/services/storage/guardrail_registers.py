"""The registers of nodes in repair and of nodes with Evenkeel's cordon. Each is one row for the whole fleet.

Drills have registers of their own, so that they never count against a real recovery.

A node enters in the commit that records the intent, at the version of its verdict. It leaves in the commit that returns
or settles it. The sweep removes leftovers of a crash.
"""

import contextlib
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum

from evenkeel.domain.recovery.guardrails import Register, RegisterEntry
from evenkeel.ports import Conflict, Key, Put, Row
from evenkeel.services.context import Context
from evenkeel.services.tables import fleet_rows, rows


class RegisterName(StrEnum):
    """The two registers."""

    REPAIRS = "repairs"
    CORDONS = "cordons"


def load_register(name: RegisterName, context: Context, *, is_drill: bool = False) -> tuple[Register, int]:
    """Return the present entries, and the version of the row."""
    return parse_register(context.ledger.get(_register_key(name, is_drill=is_drill)), context.now)


def parse_register(row: Row | None, now: datetime) -> tuple[Register, int]:
    """Return the present entries of a register's row, and its version."""
    return (rows.decode(row, Register).without_old_requests(now), row.version) if row else (Register(), 0)


def addition_put(
    name: RegisterName,
    register: Register,
    version: int,
    entry: RegisterEntry,
    *,
    is_request: bool,
    is_drill: bool = False,
) -> Put:
    """Return the write that adds a node. It fails if the register changed since it was read."""
    return Put(
        Row(
            _register_key(name, is_drill=is_drill), register.with_entry(entry, is_request=is_request).to_json(), version
        )
    )


def removal_writes(name: RegisterName, context: Context, *lives: str, is_drill: bool = False) -> tuple[Put, ...]:
    """Return the write that removes nodes from a register, or nothing if it has none of them.

    The caller commits it together with the release of the nodes.
    """
    register, version = load_register(name, context, is_drill=is_drill)
    if not any(entry.life_key in lives for entry in register.entries):
        return ()
    return (Put(Row(_register_key(name, is_drill=is_drill), register.without_nodes(*lives).to_json(), version)),)


def refusal_writes(requested_at: datetime, context: Context, *, is_drill: bool = False) -> tuple[Put, ...]:
    """Return the write after which a refused repair request no longer counts for the rate limit, if it counts.

    The caller commits it together with the refusal, so one refusal removes one request.
    """
    register, version = load_register(RegisterName.REPAIRS, context, is_drill=is_drill)
    remaining = register.without_request(requested_at)
    if remaining == register:
        return ()
    return (Put(Row(_register_key(RegisterName.REPAIRS, is_drill=is_drill), remaining.to_json(), version)),)


def remove_outdated_entries(
    name: RegisterName, is_over: Callable[[RegisterEntry], bool], context: Context, *, is_drill: bool = False
) -> int:
    """Remove the nodes whose entry is outdated. Return how many.

    Idempotent: yes. If the register changes meanwhile, the next sweep removes them.
    """
    register, version = load_register(name, context, is_drill=is_drill)
    outdated_life_keys = [entry.life_key for entry in register.entries if is_over(entry)]
    if not outdated_life_keys:
        return 0
    with contextlib.suppress(Conflict):
        # At the version that was read: a node that was added again since stays.
        context.ledger.commit(
            Put(
                Row(
                    _register_key(name, is_drill=is_drill),
                    register.without_nodes(*outdated_life_keys).to_json(),
                    version,
                )
            )
        )
        return len(outdated_life_keys)
    return 0


def _register_key(name: RegisterName, *, is_drill: bool) -> Key:
    return fleet_rows.register_key(name, is_drill=is_drill)
