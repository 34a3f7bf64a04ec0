"""State PlanResume of recover_node: choose for each interrupted job the way back with the least loss."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.resume import plan_resume


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = plan_resume.Request.model_validate(event)
    world = wiring.world()
    outcome = plan_resume.run(
        request,
        ledger=world.ledger,
        cluster=world.cluster,
        passes=world.passes,
        ids=world.ids,
        telemetry=world.telemetry,
        policy=world.policy,
        mode=world.settings.mode,
        drills_may_act=world.settings.drills_may_act,
        now=world.clock.now(),
    )
    return outcome.to_json()
