"""Keys, index entries and lifetimes of the quotas table."""

import hashlib
import json
from datetime import datetime

from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.quotas.teams import FleetQuotas, Team
from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.renting.rental_book import RentalAllocation
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Key, Row, Table
from evenkeel.services.tables import rows

_SETUP = "SETUP"
SETUP_EVENTS = "SETUP-EVENTS"
"""Partition of the changes of the setup."""
ROOT_TREE = "fleet"
"""The only cohort tree."""


def tree_key(root: str = ROOT_TREE) -> Key:
    """Return the key `TREE#root / META`: its version orders all admissions of the tree."""
    return Key(Table.QUOTAS, f"TREE#{root}", "META")


def queue_cursors_key() -> Key:
    """Return the key `TREE#root / TURN`: team → how far cycles have read its queue after the head."""
    return Key(Table.QUOTAS, f"TREE#{ROOT_TREE}", "TURN")


def queue_heads_key() -> Key:
    """Return the key `TREE#root / HEADS`: the heads of many queues, as the last cycle read them."""
    return Key(Table.QUOTAS, f"TREE#{ROOT_TREE}", "HEADS")


def finished_cycle_key() -> Key:
    """Return the key `CYCLE#finished / META`: when the last cycle that finished for a request began to read."""
    return Key(Table.QUOTAS, "CYCLE#finished", "META")


def charge_key(attempt: Attempt) -> Key:
    """Return the key `TREE#root / CHARGE#workload`, in the tree's partition for consistent reads."""
    return Key(Table.QUOTAS, f"TREE#{ROOT_TREE}", f"CHARGE#{attempt.workload_name}")


def charge_row(attempt: Attempt, job: Job | None = None) -> Row:
    """Return the row: the amounts and nodes of an admitted attempt.

    Written with the attempt, released or deleted at its end.
    """
    return Row(charge_key(attempt), Charge.of(attempt, job).to_compact_json())


def released_charge_row(attempt: Attempt, version: int, now: datetime) -> Row:
    """Mark a charge as released by a job that waits again. The row stays, so that a cycle knows whose quota it was."""
    return Row(charge_key(attempt), Charge.of(attempt).replace(released_at=now).to_json(), version)


def rental_allocation_key(job_id: str, number: int) -> Key:
    """Return the key `TREE#root / RENTAL#job-bn`: in the tree's partition, for consistent checks of the caps."""
    return Key(Table.QUOTAS, f"TREE#{ROOT_TREE}", f"RENTAL#{job_id}-b{number}")


def rental_allocation_row(rental: Rental, version: int) -> Row:
    """Return the row: the share of a rental in caps and limits. Written with the rental, deleted once it has ended."""
    return Row(rental_allocation_key(rental.job_id, rental.number), RentalAllocation.of(rental).to_json(), version)


def setup_key() -> Key:
    """Return the key `SETUP / VERSION`: raised by every change of the setup, so that concurrent changes conflict."""
    return Key(Table.QUOTAS, _SETUP, "VERSION")


def fleet_quotas_key() -> Key:
    """Return the key `SETUP / FLEET`: the part that no single team owns."""
    return Key(Table.QUOTAS, _SETUP, "FLEET")


def team_key(team: str) -> Key:
    """Return the key `SETUP / TEAM#team`: a team's quota and members.

    A single query reads the whole setup consistently.
    """
    return Key(Table.QUOTAS, _SETUP, f"TEAM#{team}")


def setup_row(key: Key, part: Team | FleetQuotas, version: int) -> Row:
    """Return the row, stored as text.

    A queue tries its flavors in their written order, and a stored map has no order.
    """
    return Row(key, {"document": json.dumps(part.to_json(), separators=(",", ":"))}, version)


def setup_event_row(change: TimelineEntry, version: int) -> Row:
    """Return the row `SETUP-EVENTS / EVENT#time#version`: a change of the setup, with person and reason.

    A `SetupChange` also keeps the quota before the change.

    No cycle reads them.
    """
    key = Key(Table.QUOTAS, SETUP_EVENTS, f"EVENT#{rfc3339(change.at)}#{version:08d}")
    return Row(key, change.to_compact_json(), 0, None, change.at + rows.KEPT)


def setup_version_of(key: Key) -> int:
    """Return the version of the setup since a change, from the key of its row."""
    return int(key.sk.rpartition("#")[2])


def usage_key(team: str) -> Key:
    """Return the key `TEAM#team / USAGE`: accelerators charged, changed by ADD only."""
    return Key(Table.QUOTAS, f"TEAM#{team}", "USAGE")


USED = "USED#"


def used_key(team: str, week: str, submitter: str) -> Key:
    """Return the key `TEAM#team / USED#week#digest`: a submitter's decayed use by settled attempts.

    Changed by ADD only.

    Each submitter has a row: there may be any number of sessions, and one row for all would become too large.
    """
    digest = hashlib.sha256(submitter.encode()).hexdigest()[:32]
    return Key(Table.QUOTAS, f"TEAM#{team}", f"{USED}{week}#{digest}")


def spent_key(team: str, period: str) -> Key:
    """Return the key `TEAM#team / SPENT#period`: the use of settled attempts in one period. Changed by ADD only."""
    return Key(Table.QUOTAS, f"TEAM#{team}", f"SPENT#{period}")
