"""State MarkRunning of run_job: record that every pod of the attempt runs."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.attempts import mark_running
from evenkeel.services.storage import attempt_store


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = attempt_store.AttemptRequest.model_validate(event)
    context = wiring.context()
    return mark_running.run(request, context).to_json()
