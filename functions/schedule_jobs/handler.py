"""Run a scheduling cycle: each minute, and on a request in `CyclesQueue` that no cycle answered yet."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.scheduling import schedule_jobs


@entry.scheduled
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    context = wiring.context()
    result = schedule_jobs.run(context, requested_at=entry.newest_sent_at(event))
    return result.to_json() | {"batchItemFailures": []}
