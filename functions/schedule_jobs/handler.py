"""A scheduling pass: asked for through the queue `passes`, and each minute."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.scheduling import schedule_jobs


@entry.scheduled
def handler(_event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    world = wiring.world()
    outcome = schedule_jobs.run(
        world.ledger,
        world.cluster,
        world.provider,
        world.workflows,
        world.ids,
        world.telemetry,
        clusters=world.settings.kubernetes_clusters,
        policy=world.policy,
        mode=world.settings.mode,
        admission=world.settings.admission,
        now=world.clock.now(),
    )
    return outcome.to_json() | {"batchItemFailures": []}
