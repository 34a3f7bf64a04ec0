"""States Await… of both workflows: store the wait and evaluate it once. `resolve_wait` sends the answer."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.waits import open_wait


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = open_wait.Request.model_validate(event)
    context = wiring.context()
    outcome = open_wait.run(request, context)
    return outcome.to_json()
