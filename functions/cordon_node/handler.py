"""State CordonNode of recover_node: keep new pods off a suspect node."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import cordon_node


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = cordon_node.Request.model_validate(event)
    world = wiring.world()
    outcome = cordon_node.run(
        request,
        ledger=world.ledger,
        cluster=world.cluster,
        telemetry=world.telemetry,
        policy=world.policy,
        mode=world.settings.mode,
        drills_may_act=world.settings.drills_may_act,
        now=world.clock.now(),
    )
    return outcome.to_json()
