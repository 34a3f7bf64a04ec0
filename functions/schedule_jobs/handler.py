"""Run a scheduling cycle: each minute, and on a request in `CyclesQueue`."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.scheduling import schedule_jobs


@entry.scheduled
def handler(_event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    context = wiring.context()
    outcome = schedule_jobs.run(context)
    return outcome.to_json() | {"batchItemFailures": []}
