"""Deployments that nodes are rented for, as people and programs see them: what was decided last, and what they have."""

from typing import Any

from evenkeel.domain.scheduling.renting import Rental
from evenkeel.domain.scheduling.replicas import ServingMemory
from evenkeel.ports import Ledger, Table
from evenkeel.services import read_jobs, rows

Json = dict[str, Any]

_MOST = 100
"""Deployments, and rentals that are not over, that are listed: the bounds of each in the policy are far below."""


def list_serving(ledger: Ledger) -> list[Json]:
    """Return each Deployment that was ever short of nodes and may have some rented, with its rentals, oldest first."""
    found = ledger.by_state(Table.JOBS, "SERVING", limit=_MOST).rows
    if not found:
        return []
    by_holder: dict[str, list[Rental]] = {}
    for row in ledger.by_state(Table.JOBS, "RENTAL#OPEN", limit=_MOST).rows:
        rental = rows.read(row, Rental)
        by_holder.setdefault(rental.job_id, []).append(rental)
    return [_shown(memory, by_holder) for memory in (rows.read(row, ServingMemory) for row in found)]


def _shown(memory: ServingMemory, rentals: dict[str, list[Rental]]) -> Json:
    return {
        "id": memory.holder_id,
        "cluster": memory.cluster,
        "namespace": memory.namespace,
        "name": memory.name,
        "reason": memory.said.text if memory.said else None,
        "decisionId": (memory.said.decision_id or None) if memory.said else None,
        "rentals": [read_jobs.shown_rental(each) for each in rentals.get(memory.holder_id, ())],
    }
