"""State SettleAttempt of run_job: record the attempt's end, release its charge, set the job's next state."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.attempts import settle_attempt


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = settle_attempt.SettleAttemptRequest.model_validate(event)
    context = wiring.context()
    result = settle_attempt.run(request, context)
    return result.to_json()
