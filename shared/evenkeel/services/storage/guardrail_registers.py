"""The registers: which machines are in repair, and which carry our cordon. One row each, for the whole fleet.

Drills have registers of their own: however many there are, they take no place from a real recovery.

A machine enters in the very commit that records the intent, under the version on which its verdict was given. It leaves
in the commit that returns or settles it. What a crash leaves behind goes by the sweeper.
"""

import contextlib
from collections.abc import Callable
from enum import StrEnum

from evenkeel.domain.recovery.guardrails import Register, RegisterEntry
from evenkeel.ports import Conflict, Key, Put, Row
from evenkeel.services.context import Context
from evenkeel.services.storage import rows


class RegisterName(StrEnum):
    """The two registers."""

    REPAIRS = "repairs"
    CORDONS = "cordons"


def load(context: Context, which: RegisterName, *, is_drill: bool = False) -> tuple[Register, int]:
    """Return what counts now, and the version of the row."""
    row = context.ledger.get(_key(which, is_drill=is_drill))
    return (rows.read(row, Register).at(context.now), row.version) if row else (Register(), 0)


def entering(
    which: RegisterName, register: Register, version: int, entry: RegisterEntry, *, asks: bool, is_drill: bool = False
) -> Put:
    """Return the write that puts a machine in: it fails where the register changed since it was read."""
    return Put(Row(_key(which, is_drill=is_drill), register.with_entry(entry, asks=asks).to_json(), version))


def leaving(context: Context, which: RegisterName, *lives: str, is_drill: bool = False) -> tuple[Put, ...]:
    """Return the write that takes machines out, none where they are not in it: part of the commit that lets them go."""
    register, version = load(context, which, is_drill=is_drill)
    if not any(entry.life in lives for entry in register.entries):
        return ()
    return (Put(Row(_key(which, is_drill=is_drill), register.without(*lives).to_json(), version)),)


def reconcile(
    context: Context, which: RegisterName, is_over: Callable[[RegisterEntry], bool], *, is_drill: bool = False
) -> int:
    """Take out the machines whose entry is over; return how many.

    Idempotent: yes, and a change in between is left to the next round.
    """
    register, version = load(context, which, is_drill=is_drill)
    over = [entry.life for entry in register.entries if is_over(entry)]
    if not over:
        return 0
    with contextlib.suppress(Conflict):
        # Under the version that was judged: whoever entered since with the same machine stays in.
        context.ledger.commit(Put(Row(_key(which, is_drill=is_drill), register.without(*over).to_json(), version)))
        return len(over)
    return 0


def _key(which: RegisterName, *, is_drill: bool) -> Key:
    return rows.register_key(which, is_drill=is_drill)
