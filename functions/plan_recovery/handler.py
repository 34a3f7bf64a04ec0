"""State PlanRecovery of recover_node: what is to be done about this node, and may we?"""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import plan_recovery


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = plan_recovery.Request.model_validate(event)
    world = wiring.world()
    outcome = plan_recovery.run(
        request,
        ledger=world.ledger,
        cluster=world.cluster,
        provider=world.provider,
        ids=world.ids,
        telemetry=world.telemetry,
        policy=world.policy,
        mode=world.settings.mode,
        drills_may_act=world.settings.drills_may_act,
        now=world.clock.now(),
    )
    return outcome.to_json()
