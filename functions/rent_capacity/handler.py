"""The tasks of burst_capacity: open a pool, hand its nodes over, ask elsewhere, give everything back."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.rentals import rent_capacity


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = rent_capacity.Request.model_validate(event)
    world = wiring.world()
    outcome = rent_capacity.run(
        request,
        world.ledger,
        world.cluster,
        world.passes,
        world.ids,
        world.telemetry,
        policy=world.policy,
        mode=world.settings.mode,
        now=world.clock.now(),
    )
    return outcome.to_json()
