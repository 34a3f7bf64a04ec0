"""State RepairNode of recover_node: choose the next rung, record the intent, ask the provider once."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import repair_node


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = repair_node.Request.model_validate(event)
    world = wiring.world()
    outcome = repair_node.run(
        request,
        ledger=world.ledger,
        cluster=world.cluster,
        provider=world.provider,
        ids=world.ids,
        pager=world.pager,
        telemetry=world.telemetry,
        policy=world.policy,
        mode=world.settings.mode,
        drills_may_act=world.settings.drills_may_act,
        now=world.clock.now(),
    )
    return outcome.to_json()
