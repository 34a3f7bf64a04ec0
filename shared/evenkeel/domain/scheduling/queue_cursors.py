"""How far scheduling cycles have read the queues that are longer than one page.

    │ head: each cycle │ barrier │    …     │ page of this cycle │ page of the next cycle │ … │
                       ▲         ▲          ▲                    ▲
        cursor after head  its cursor  page start         page start of the next cycle

Each cycle reads the first page of every queue, which is its head, and one later page of long queues. The next cycle
reads the page after that one, and after the last page the second page again. If there are more long queues than a cycle
can read, they take turns. So every queued job is examined within as many turns of its queue as the queue has pages. A
barrier is a job before the page that waits for nodes. Once it no longer waits, the next cycle continues behind it,
because it blocked the jobs there.
"""

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision

ALL_JOBS = ""
"""Stands for no team: the list of all pending jobs. Without teams it is the only queue. With teams it also holds
jobs that were submitted before teams were set up, and jobs of removed teams."""


def queues_to_read(long_queues: Sequence[str], last_queue: str | None, max_queues: int) -> tuple[str, ...]:
    """Return the long queues to read now, by name: the next ones after the last queue that was read.

    Args:
        long_queues: The long queues, sorted by name.
        last_queue: The last queue that the last cycle read; None if there is none.
        max_queues: Queues that a cycle can read.
    """
    start = bisect.bisect_right(long_queues, last_queue) if last_queue is not None else 0
    return tuple([*long_queues[start:], *long_queues[:start]][:max_queues])


class QueueCursors(NamedTuple):
    """The cursors after the heads of long queues, from which the next cycle continues."""

    page_starts: Mapping[str, str]
    """Team → the cursor where its next page starts. A queue that was read to its end is not listed: its next page is
    the first."""
    page_jobs: frozenset[str] = frozenset()
    """Jobs that this cycle read behind the head of the list of all pending jobs."""
    page_start: str = ""
    """The cursor where that page starts."""
    barriers: tuple[tuple[str, str], ...] = ()
    """Jobs before that page that wait for nodes, each with the cursor behind it. Used without teams only."""
    last_queue: str | None = None
    """The last queue that this cycle read behind its head; None if it read all of them."""

    def with_barriers(self, decisions: Iterable[AdmissionDecision], cursor_after_first_page: str) -> "QueueCursors":
        """Return the cursors with this cycle's waiting jobs as barriers. Used without teams only.

        Args:
            decisions: Decisions about the pending jobs.
            cursor_after_first_page: The cursor after the head of the list.
        """
        if ALL_JOBS not in self.page_starts:
            return self._replace(barriers=())
        barriers = {job_id for job_id, _ in self.barriers}
        blocking_job_ids = [
            decision.job_id for decision in decisions if decision.blocks_queue and decision.job_id not in barriers
        ]
        waiting_jobs = sorted((job_id in self.page_jobs, job_id) for job_id in blocking_job_ids)
        added_barriers = tuple(
            (job_id, self.page_start if is_behind else cursor_after_first_page) for is_behind, job_id in waiting_jobs
        )
        return self._replace(barriers=(*self.barriers, *added_barriers))

    def rewound_to_barrier(self, decisions: Iterable[AdmissionDecision]) -> "QueueCursors | None":
        """Return the cursors at the first barrier that no longer waits; None if all barriers still wait.

        The jobs behind that barrier were blocked by it, so they come before the jobs of the present page.
        """
        blocking_job_ids = {
            decision.job_id
            for decision in decisions
            if decision.action in (AdmissionAction.WAIT, AdmissionAction.BLOCKED)
        }
        for index, (job_id, cursor) in enumerate(self.barriers):
            if job_id not in blocking_job_ids:
                return self._replace(page_starts={**self.page_starts, ALL_JOBS: cursor}, barriers=self.barriers[:index])
        return None
