"""Commits of many independent groups of writes: cut to the size of one commit, and split if the ledger refuses one.

groups ── cut at BATCH_BYTES and MAX_WRITES ── commit ──┬── done
                                                         └── Refused: halves, until one group is left: set it aside
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from evenkeel.ports import LARGEST_COMMIT, MAX_WRITES, Put, Refused, Telemetry, Write, row_bytes

BATCH_BYTES = 3_000_000
"""Bytes of one batch. The rest of `LARGEST_COMMIT` is for rows whose stored size the writer does not know."""
assert BATCH_BYTES < LARGEST_COMMIT
_UNKNOWN_BYTES = 1024
"""Estimated bytes of a write that does not carry its row: `Add`, `Delete` and `Check`."""


class WriteGroup(NamedTuple):
    """Writes that belong together: one commit holds all of them, or none."""

    subject: str
    """Id of their job or incident."""
    writes: tuple[Write, ...]


def size_of(writes: Iterable[Write]) -> int:
    """Return the approximate size of some writes in a commit, in bytes."""
    return sum(row_bytes(write.row) if isinstance(write, Put) else _UNKNOWN_BYTES for write in writes)


def cut_into_batches(
    write_groups: Iterable[WriteGroup], *, common_writes: Sequence[Write] = (), extra_writes: int = 0
) -> Iterator[tuple[WriteGroup, ...]]:
    """Yield the groups in order, in batches that fit into one commit.

    Args:
        write_groups: The groups. A group that is too large by itself becomes a batch of its own, and is refused.
        common_writes: Writes that every commit holds, too.
        extra_writes: Number of small writes that come with each group.
    """
    base_bytes, base_writes = size_of(common_writes), len(common_writes)
    batch: list[WriteGroup] = []
    batch_bytes, batch_writes = base_bytes, base_writes
    for write_group in write_groups:
        group_bytes = size_of(write_group.writes) + extra_writes * _UNKNOWN_BYTES
        group_writes = len(write_group.writes) + extra_writes
        is_full = batch_bytes + group_bytes > BATCH_BYTES or batch_writes + group_writes > MAX_WRITES
        if batch and is_full:
            yield tuple(batch)
            batch, batch_bytes, batch_writes = [], base_bytes, base_writes
        batch.append(write_group)
        batch_bytes += group_bytes
        batch_writes += group_writes
    if batch:
        yield tuple(batch)


def commit_each(
    batch: Sequence[WriteGroup],
    commit: Callable[[Sequence[WriteGroup]], None],
    on_refused: Callable[[WriteGroup, Refused], None],
) -> None:
    """Commit a batch. If the ledger refuses it, commit its halves, and set aside only the refused group.

    Args:
        batch: The groups.
        commit: Commits some of them at once. If it raises `Conflict`, the whole call ends.
        on_refused: Called with each group that the ledger refuses alone.
    """
    try:
        commit(batch)
    except Refused as refusal:
        if len(batch) == 1:
            on_refused(batch[0], refusal)
            return
        middle = len(batch) // 2
        commit_each(batch[:middle], commit, on_refused)
        commit_each(batch[middle:], commit, on_refused)


def note_refusal(telemetry: Telemetry, subject: str, refusal: Refused) -> None:
    """Count a write that the ledger refused. The alarm `WritesRejectedTicket` watches this metric."""
    telemetry.count("WritesRejected")
    telemetry.warning("WriteRefused", subject=subject, error=str(refusal)[:1000])
