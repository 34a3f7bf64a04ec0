"""Heads of queues, remembered between cycles. With many queues, a cycle reads only a few of them from the index.

    mark of a queue    the version of a row that changes with each job that enters the queue or moves in it
    head of a queue    the jobs of its first page, and the mark that was read before them

A head is outdated if its mark changed, or if one of its jobs left the queue. A cycle reads the outdated heads, the
longest unread head first, and a few heads that do not look outdated. So a change that no mark shows is still seen
within some cycles. The index may lag, so a head is read until its mark has been unchanged for a while.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from evenkeel.domain.values import rfc3339

HEADS_PER_CYCLE = 16
"""Maximum heads that a cycle reads from the index. With fewer queues, it reads all of them."""
LONGEST_UNREAD_HEADS = 4
"""Heads that a cycle reads although they do not look outdated: those that were not read for the longest time."""
_INDEX_LAG = timedelta(seconds=30)
"""How long the index may lag behind the mark of a queue."""
_NO_MARK = -1


class QueueHead(NamedTuple):
    """The first page of a queue."""

    jobs: tuple[str, ...]
    cursor: str | None
    """The cursor after it; None if the queue has no more jobs."""
    mark: int
    marked_at: datetime
    """When a cycle first saw this mark."""
    read_at: datetime

    def is_outdated(self, mark: int) -> bool:
        """Whether the queue may have changed since it was read."""
        return mark != self.mark or self.read_at - self.marked_at < _INDEX_LAG


class QueueHeads(NamedTuple):
    """The heads of all queues, as far as they are known."""

    page_size: int
    by_team: Mapping[str, QueueHead] = {}

    def to_read(self, teams: Collection[str], marks: Mapping[str, int]) -> tuple[str, ...]:
        """Return the teams whose heads a cycle reads now. If no head is known, it reads all of them.

        Args:
            teams: All teams.
            marks: Team → the present mark of its queue.
        """
        if not self.by_team:
            return tuple(teams)
        longest_unread = sorted(teams, key=self._last_read)
        outdated_teams = (
            team for team in longest_unread if team not in self.by_team or self.by_team[team].is_outdated(marks[team])
        )
        return tuple(dict.fromkeys([*longest_unread[:LONGEST_UNREAD_HEADS], *outdated_teams]))[:HEADS_PER_CYCLE]

    def are_current(self, marks: Mapping[str, int]) -> bool:
        """Whether the head of every queue is known and has the present mark of its queue."""
        return all(team in self.by_team and self.by_team[team].mark == mark for team, mark in marks.items())

    def _last_read(self, team: str) -> tuple[str, str]:
        head = self.by_team.get(team)
        return (rfc3339(head.read_at) if head else "", team)

    def after_read(self, teams: Collection[str], new_heads: Mapping[str, QueueHead]) -> "QueueHeads":
        """Return the heads with those that were read now, without the heads of removed teams."""
        known_heads = {**self.by_team, **new_heads}
        return self._replace(
            by_team={team: _since(self.by_team.get(team), known_heads[team]) for team in teams if team in known_heads}
        )

    def without_jobs(self, job_ids: Collection[str]) -> "QueueHeads":
        """Return the heads after jobs have left their queues. The next cycle reads these heads."""
        gone_job_ids = frozenset(job_ids)
        return self._replace(
            by_team={
                team: head if gone_job_ids.isdisjoint(head.jobs) else head._replace(mark=_NO_MARK)
                for team, head in self.by_team.items()
            }
        )

    def outdated(self, teams: Iterable[str]) -> "QueueHeads":
        """Return the heads after jobs have joined the queues of some teams."""
        changed_heads = {team: self.by_team[team]._replace(mark=_NO_MARK) for team in teams if team in self.by_team}
        return self._replace(by_team={**self.by_team, **changed_heads})

    def to_json(self) -> dict[str, Any]:
        """Return the heads as a document."""
        return {
            "pageSize": self.page_size,
            "heads": {
                team: [list(head.jobs), head.cursor, head.mark, rfc3339(head.marked_at), rfc3339(head.read_at)]
                for team, head in self.by_team.items()
            },
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], page_size: int) -> "QueueHeads":
        """Return the heads of a document. None is known if the size of a page has changed since."""
        if document.get("pageSize") != page_size:
            return cls(page_size)
        heads = {
            str(team): QueueHead(tuple(jobs), cursor, int(mark), _instant(marked_at), _instant(read_at))
            for team, (jobs, cursor, mark, marked_at, read_at) in document["heads"].items()
        }
        return cls(page_size, heads)


def _since(earlier_head: QueueHead | None, head: QueueHead) -> QueueHead:
    """Return a head with the time at which its mark was first seen."""
    return head._replace(marked_at=earlier_head.marked_at) if earlier_head and earlier_head.mark == head.mark else head


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
