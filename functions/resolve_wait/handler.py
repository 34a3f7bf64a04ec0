"""The only sender of task success: answers one wait, once."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.waits import resolve_wait


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = resolve_wait.Request.model_validate(event)
    world = wiring.world()
    outcome = resolve_wait.run(
        request, ledger=world.ledger, tokens=world.tokens, telemetry=world.telemetry, now=world.clock.now()
    )
    return outcome.to_json()
