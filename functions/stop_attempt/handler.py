"""State StopAttempt of run_job: stop the attempt's pods, with time for a last checkpoint."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.attempts import stop_attempt
from evenkeel.services.storage import attempt_store


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = attempt_store.AttemptRequest.model_validate(event)
    context = wiring.context()
    return stop_attempt.run(request, context).to_json()
