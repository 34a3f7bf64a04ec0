"""State ProtectJobs of recover_node: stop what runs on the node, with the grace that its fault allows."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import protect_jobs


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = protect_jobs.Request.model_validate(event)
    world = wiring.world()
    outcome = protect_jobs.run(
        request,
        ledger=world.ledger,
        cluster=world.cluster,
        ids=world.ids,
        telemetry=world.telemetry,
        policy=world.policy,
        mode=world.settings.mode,
        drills_may_act=world.settings.drills_may_act,
        now=world.clock.now(),
    )
    return outcome.to_json()
