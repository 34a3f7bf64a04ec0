"""Read the queues of a scheduling cycle: the first page of each, and further pages of long queues."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.decisions import unpacked
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.scheduling.cycle_snapshot import CycleSnapshot
from evenkeel.domain.scheduling.decide_cycle import is_strict
from evenkeel.domain.scheduling.queue_cursors import ALL_JOBS, QueueCursors, queues_to_read
from evenkeel.domain.scheduling.queue_heads import HEADS_PER_CYCLE, QueueHead, QueueHeads
from evenkeel.ports import Key, Ledger, Page, Row, Table, get_all
from evenkeel.services.context import Context
from evenkeel.services.scheduling.loaded_cycle import (
    READS_AT_ONCE,
    LoadedCycle,
    StoredHeads,
    jobs_by_id,
    read_jobs,
    versions_of,
)
from evenkeel.services.storage import open_jobs
from evenkeel.services.tables import job_rows, quota_rows

_PAGES_PER_PARKED_QUEUE = 4
"""Pages that a cycle reads at once after the first page of a queue, if all jobs of that page are parked."""
_PAGES_PER_LONG_QUEUE = 1
"""Pages that a cycle reads of each long queue, from the cursor of the last cycle."""
PENDING_PARTITION = f"JOB#{JobState.PENDING}"


class QueuedJobKeys(NamedTuple):
    """Keys of pending jobs. Each job is read by its key afterwards, since the index of pending jobs may lag."""

    keys: tuple[Key, ...]
    cursor_after_first_page: Mapping[str, str]
    """Team whose queue is longer than a page → the cursor after that page."""
    cursors_of_next_cycle: QueueCursors | None
    cursors_row: Row | None
    may_read_later_pages: bool = False
    """Whether the cycle can examine jobs of later pages, too."""
    heads: StoredHeads | None = None


def read_queues(snapshot: CycleSnapshot, context: Context) -> QueuedJobKeys:
    """Read the first page of each queue, and one more page of as many long queues as a cycle can examine."""
    ledger, setup, policy = context.ledger, snapshot.setup, context.policy.scheduling
    page_size = policy.jobs_per_first_page(len(setup.by_name))
    # If all pending jobs fit on one page, no team's queue has more. Jobs older than the teams come first on the page.
    first_page = ledger.by_state(Table.JOBS, PENDING_PARTITION, limit=page_size)
    keys = [row.key for row in first_page.rows]
    cursor_after_first_page: dict[str, str] = {ALL_JOBS: first_page.cursor} if first_page.cursor else {}
    teams = tuple(setup.by_name) if first_page.cursor else ()
    stored_heads = None
    heads: Mapping[str, QueueHead]
    if len(teams) <= HEADS_PER_CYCLE:
        heads = _read_heads(teams, page_size, {}, context)
    else:
        stored_heads = _read_many_heads(teams, page_size, context)
        heads = stored_heads.heads.by_team
    for team, head in heads.items():
        keys += map(job_rows.job_key, head.jobs)
        if head.cursor:
            cursor_after_first_page[team] = head.cursor
    if not cursor_after_first_page:
        return QueuedJobKeys(tuple(keys), {}, None, None, heads=stored_heads)
    later_keys, cursors, cursors_row = _read_next_pages(setup, cursor_after_first_page, policy, ledger)
    # A job that waits until its victims stop stays the head of its queue, wherever it is listed.
    first_keys = map(
        job_rows.job_key, (*snapshot.scheduler_state.sticky.values(), *(job_id for job_id, _ in cursors.barriers))
    )
    may_read_later_pages = (
        len(keys) + len(later_keys) + policy.jobs_per_page * _PAGES_PER_PARKED_QUEUE <= policy.examined_jobs_limit
    )
    return QueuedJobKeys(
        (*first_keys, *keys, *later_keys),
        cursor_after_first_page,
        cursors,
        cursors_row,
        may_read_later_pages,
        stored_heads,
    )


def _read_many_heads(teams: Sequence[str], page_size: int, context: Context) -> StoredHeads:
    """Return the heads of all queues. Only heads that may have changed are read again, and a few others."""
    ledger = context.ledger
    row = ledger.get(quota_rows.queue_heads_key()) or Row(quota_rows.queue_heads_key(), {})
    known_heads = _known_heads(row, page_size)
    # A mark is read before its queue. So a change between the two reads makes the head outdated.
    keys = {team: open_jobs.queue_mark_key(team) for team in teams}
    marks = get_all(ledger, keys.values())
    versions = {team: marks[key].version if key in marks else 0 for team, key in keys.items()}
    new_heads = _read_heads(known_heads.to_read(teams, versions), page_size, versions, context)
    heads = known_heads.after_read(teams, new_heads)
    return StoredHeads(heads, row, heads.are_current(versions))


def _known_heads(row: Row, page_size: int) -> QueueHeads:
    """Return the heads in a row. No head is known if the row cannot be read, so the cycle reads all of them."""
    try:
        return QueueHeads.from_json(unpacked(row.doc), page_size)
    except (KeyError, TypeError, ValueError):
        return QueueHeads(page_size)


def _read_heads(
    teams: Iterable[str], page_size: int, marks: Mapping[str, int], context: Context
) -> dict[str, QueueHead]:
    """Read the first pages of some queues from the index."""
    now = context.now
    return {
        team: QueueHead(tuple(str(row.doc["jobId"]) for row in page.rows), page.cursor, marks.get(team, 0), now, now)
        for team, page in _read_pages([(team, page_size, None) for team in teams], context.ledger)
    }


def _read_pages(queries: Iterable[tuple[str, int, str | None]], ledger: Ledger) -> list[tuple[str, Page]]:
    """Read a page of several queues in parallel. A query is a team, a number of jobs and a cursor."""
    with ThreadPoolExecutor(max_workers=READS_AT_ONCE) as readers:
        reads = [(team, readers.submit(_read_page, ledger, team, limit, cursor)) for team, limit, cursor in queries]
    return [(team, page_read.result()) for team, page_read in reads]


def _read_page(ledger: Ledger, team: str, limit: int, cursor: str | None) -> Page:
    return ledger.by_state(Table.JOBS, PENDING_PARTITION, prefix=_queue_prefix(team), limit=limit, cursor=cursor)


def _read_next_pages(
    setup: TeamSetup, cursor_after_first_page: Mapping[str, str], policy: SchedulingPolicy, ledger: Ledger
) -> tuple[list[Key], QueueCursors, Row]:
    """Load the next page of long queues, from the stored cursors. In a strict queue no job may pass the head.

    If there are more long queues than a cycle can examine, each cycle reads the queues after the last cycle's queues.
    """
    cursors_row = ledger.get(quota_rows.queue_cursors_key()) or Row(quota_rows.queue_cursors_key(), {})
    stored_cursors: dict[str, str] = cursors_row.doc.get("cursors", {})
    long_queues = sorted(team for team in cursor_after_first_page if not is_strict(team, setup))
    queues_this_cycle = queues_to_read(long_queues, cursors_row.doc.get("turn"), policy.long_queues_per_cycle)
    keys: list[Key] = []
    other_queues = set(long_queues) - set(queues_this_cycle)
    page_starts = {team: cursor for team, cursor in stored_cursors.items() if team in other_queues}
    last_queue = queues_this_cycle[-1] if len(queues_this_cycle) < len(long_queues) else None
    cursors = QueueCursors(page_starts, last_queue=last_queue)
    limit = policy.jobs_per_page * _PAGES_PER_LONG_QUEUE
    queries = [(team, limit, stored_cursors.get(team, cursor_after_first_page[team])) for team in queues_this_cycle]
    for team, page in _read_pages(queries, ledger):
        # The queue of each team is read by itself.
        keys += [row.key for row in page.rows if team or row.doc.get("queue", "") not in setup.by_name]
        if page.cursor:
            page_starts[team] = page.cursor
        if team == ALL_JOBS and not setup.has_teams:
            cursors = cursors._replace(
                page_jobs=frozenset(str(row.doc["jobId"]) for row in page.rows),
                page_start=stored_cursors.get(team, cursor_after_first_page[team]),
                barriers=tuple((str(job_id), str(at)) for job_id, at in cursors_row.doc.get("barriers", ())),
            )
    return keys, cursors, cursors_row


def read_later_pages(loaded_cycle: LoadedCycle, teams: Iterable[str], context: Context) -> LoadedCycle:
    """Read several pages at once after the first pages of these queues, until the cycle has enough jobs to examine."""
    snapshot, policy = loaded_cycle.snapshot, context.policy.scheduling
    limit = policy.jobs_per_page * _PAGES_PER_PARKED_QUEUE
    pending, versions = dict(snapshot.pending), dict(loaded_cycle.versions)
    cursor_after_read, cursors = dict(snapshot.cursor_after_read), snapshot.cursors_of_next_cycle
    charged_jobs = frozenset(charge.job_id for charge in snapshot.charges())
    for team in teams:
        if len(pending) >= policy.examined_jobs_limit:
            break
        page = context.ledger.by_state(
            Table.JOBS, PENDING_PARTITION, prefix=_queue_prefix(team), limit=limit, cursor=cursor_after_read.pop(team)
        )
        jobs = read_jobs(context.ledger, (row.key for row in page.rows))
        # A job whose charge this cycle still sees as live was settled since. The next cycle decides about it.
        pending_jobs = {
            job_id: entry
            for job_id, entry in jobs.items()
            if entry[0].state is JobState.PENDING and job_id not in charged_jobs
        }
        pending |= jobs_by_id(pending_jobs)
        versions |= versions_of(pending_jobs)
        if cursors is not None and team == ALL_JOBS:
            cursors = cursors._replace(
                page_jobs=cursors.page_jobs - jobs.keys()
            )  # the cycle read these jobs in order, without a gap
        if page.cursor:
            cursor_after_read[team] = page.cursor
    return loaded_cycle._replace(
        snapshot=snapshot._replace(pending=pending, cursor_after_read=cursor_after_read, cursors_of_next_cycle=cursors),
        versions=versions,
    )


def _queue_prefix(team: str) -> str:
    return "" if team == ALL_JOBS else job_rows.queue_prefix(team)
