"""States Await… of both workflows: store the wait and evaluate it once. `resolve_wait` sends the answer."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.waits import open_wait


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = open_wait.OpenWaitRequest.model_validate(event)
    context = wiring.context()
    result = open_wait.run(request, context)
    return result.to_json()
