"""Keys, index entries and lifetimes of timelines, waits and decisions: of incidents and of jobs alike."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from evenkeel.domain.decisions import MAX_ALTERNATIVES, PACKED_FROM, Decision, packed
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import rfc3339
from evenkeel.domain.waiting import Wait
from evenkeel.ports import Key, Row, Table
from evenkeel.services.tables import rows

DECISIONS_LISTED = timedelta(days=90)
"""How long the list of the fleet's decisions goes back. The records themselves are kept longer."""


def subject_partition(subject: str) -> tuple[Table, str]:
    """Return the table and partition of a job or an incident, by the prefix of its id."""
    if subject.startswith("inc-"):
        return Table.INCIDENTS, f"INC#{subject}"
    return Table.JOBS, f"JOB#{subject}"


def timeline_row(subject: str, entry: TimelineEntry, discriminator: str) -> Row:
    """Return the row `… / EVENT#time#discriminator`. The discriminator makes a retried write the same row."""
    table, pk = subject_partition(subject)
    key = Key(table, pk, f"EVENT#{rfc3339(entry.at)}#{discriminator}")
    return Row(key, entry.to_json(), 0, None, entry.at + rows.KEPT)


def wait_key(subject: str, name: str) -> Key:
    """Return the key `… / WAIT#name`."""
    table, pk = subject_partition(subject)
    return Key(table, pk, f"WAIT#{name}")


def wait_row(wait: Wait, version: int) -> Row:
    """Return the row of a wait. The index `byState` lists it by deadline, under `WAIT#OPEN` or `WAIT#ANSWERED`."""
    return Row(
        wait_key(wait.subject, wait.name),
        wait.to_json(),
        version,
        (f"WAIT#{wait.state}", f"{rfc3339(wait.deadline_at)}#{wait.subject}#{wait.name}"),
        wait.deadline_at + rows.FACT_KEPT,
    )


def decision_key(decision_id: str) -> Key:
    """Return the key `DEC#id / META`."""
    return Key(Table.INCIDENTS, f"DEC#{decision_id}", "META")


def decision_row(decision: Decision, packed_from: int = PACKED_FROM) -> Row:
    """Return the row; `byState` lists it under `DEC#<subject>` by time: the decisions about one incident or job.

    Facts with at least `packed_from` characters are compressed.
    """
    return Row(
        decision_key(decision.decision_id),
        {
            **decision.replace(facts={}, alternatives=decision.alternatives[:MAX_ALTERNATIVES]).to_json(),
            "facts": packed(decision.facts, packed_from),
        },
        0,
        (f"DEC#{decision.subject}", rfc3339(decision.decided_at)),
        decision.decided_at + rows.KEPT,
    )


def listed_decision_row(decision: Decision) -> Row:
    """Return the row `DECIDED#id / META`; `byState` lists it under `DECIDED#<month>` by the time of the decision.

    It has no facts and no alternatives, so a page of the fleet's decisions is small. `publish_events` writes it.
    """
    return Row(
        Key(Table.INCIDENTS, f"DECIDED#{decision.decision_id}", "META"),
        decision.replace(facts={}, alternatives=(), chosen=None).to_json(),
        0,
        (f"DECIDED#{decision.decided_at:%Y-%m}", f"{rfc3339(decision.decided_at)}#{decision.decision_id}"),
        decision.decided_at + DECISIONS_LISTED,
    )


def listed_decision_months(now: datetime) -> Iterator[str]:
    """Yield the index partitions of `listed_decision_row` that a list may need, the newest first."""
    first_day, oldest_listed = now.replace(day=1), now - DECISIONS_LISTED
    while (first_day.year, first_day.month) >= (oldest_listed.year, oldest_listed.month):
        yield f"DECIDED#{first_day:%Y-%m}"
        first_day = (first_day - timedelta(days=1)).replace(day=1)
