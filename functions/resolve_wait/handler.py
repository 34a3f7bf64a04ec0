"""Answer one wait, once. The only function that sends task success."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.waits import resolve_wait


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = resolve_wait.ResolveWaitRequest.model_validate(event)
    context = wiring.context()
    result = resolve_wait.run(request, context)
    return result.to_json()
