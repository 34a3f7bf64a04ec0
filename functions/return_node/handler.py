"""State ReturnNode of recover_node: give the machine in the seat back to the scheduler."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import return_node


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = return_node.Request.model_validate(event)
    world = wiring.world()
    outcome = return_node.run(
        request,
        ledger=world.ledger,
        cluster=world.cluster,
        provider=world.provider,
        passes=world.passes,
        telemetry=world.telemetry,
        now=world.clock.now(),
    )
    return outcome.to_json()
