"""Restart the workflows of rentals. A restarted workflow continues at the rental's recorded state."""

from evenkeel.domain.renting.rental import Rental, RentalState, with_next_execution
from evenkeel.ports import ExecutionState, Put, Table, WorkflowName
from evenkeel.services.rentals import rental_store
from evenkeel.services.sweep.sweep_run import SweepRun
from evenkeel.services.tables import job_rows

_RUNBOOK = "rental-stuck"


def resume_rentals(sweep: SweepRun) -> int:
    """Start the workflow of each rental that has none: rented nodes cost money until the workflow returns them.

    Idempotent: yes, an execution is named after the rental and its run, and the run number is increased before.
    """
    repaired_count = 0
    for row, rental in sweep.readable_rows(sweep.read_present_rows(sweep.list_rows(Table.JOBS, "RENTAL#OPEN")), Rental):
        if rental.state is RentalState.ENDED or sweep.is_fresh(rental.begun_at):
            continue
        with sweep.isolate_item(rental.name):
            repaired_count += _resume_rental(rental, row.version, sweep)
    return repaired_count


def _resume_rental(rental: Rental, version: int, sweep: SweepRun) -> bool:
    """Start the workflow of a rental, unless it runs. Return whether it was started."""
    state = sweep.execution_state(WorkflowName.BURST_CAPACITY, rental.execution_name)
    if state is ExecutionState.RUNNING:
        return False
    if state is not ExecutionState.NONE:
        # The execution has failed or was stopped. Its name cannot be used again.
        if rental.run >= sweep.context.policy.watch.max_runs:
            sweep.context.telemetry.error("RentalWorkflowFails", rental=rental.name, runbook=_RUNBOOK)
        rental = with_next_execution(rental)
        sweep.context.ledger.commit(Put(job_rows.rental_row(rental, version)))
    return rental_store.start(rental, sweep.context)
