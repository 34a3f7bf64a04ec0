"""Deployments for which nodes are rented: the last decision about each, and its rentals."""

from typing import Any

from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.renting.serving_rentals import ServingState
from evenkeel.ports import Ledger, Table
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.tables import job_rows, rows

Json = dict[str, Any]

_MAX_LISTED = 100
"""Maximum number of listed Deployments and open rentals: far more than a policy can name."""
_MAX_ENDED_RENTALS = 8
"""Maximum number of listed ended rentals of each."""


def list_serving(ledger: Ledger) -> list[Json]:
    """Return each Deployment for which nodes may have been rented, with its open rentals and its last ended rentals."""
    memory_rows = ledger.by_state(Table.JOBS, "SERVING", limit=_MAX_LISTED).rows
    memories = [memory for _, memory in rows.readable_rows(memory_rows, ServingState)]
    if not memories:
        return []
    rental_rows = ledger.by_state(Table.JOBS, "RENTAL#OPEN", limit=_MAX_LISTED).rows
    open_rentals = [rental for _, rental in rows.readable_rows(rental_rows, Rental)]
    return [_deployment_document(memory, _load_rentals(memory, open_rentals, ledger)) for memory in memories]


def _load_rentals(memory: ServingState, open_rentals: list[Rental], ledger: Ledger) -> list[Rental]:
    last_numbers = range(max(1, memory.rentals - _MAX_ENDED_RENTALS + 1), memory.rentals + 1)
    rentals_by_number = {rental.number: rental for rental in open_rentals if rental.job_id == memory.holder_id}
    stored_rows = (ledger.get(job_rows.rental_key(memory.holder_id, number)) for number in last_numbers)
    for _, rental in rows.readable_rows((row for row in stored_rows if row is not None), Rental):
        rentals_by_number[rental.number] = rental  # the index may lag behind
    return [rentals_by_number[number] for number in sorted(rentals_by_number, reverse=True)]


def _deployment_document(memory: ServingState, rentals: list[Rental]) -> Json:
    note = memory.last_note
    return {
        "id": memory.holder_id,
        "cluster": memory.cluster,
        "namespace": memory.namespace,
        "name": memory.name,
        "reason": note.text if note else None,
        "decisionId": (note.decision_id or None) if note else None,
        "rentals": [read_jobs.shown_rental(rental) for rental in rentals],
    }
