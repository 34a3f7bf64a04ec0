"""State LaunchJob of run_job: fence the past out, pin the resume point, create the Kubernetes Job."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.attempts import launch_job


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = launch_job.Request.model_validate(event)
    world = wiring.world()
    outcome = launch_job.run(
        request,
        world.ledger,
        world.cluster,
        world.checkpoints,
        world.telemetry,
        service_account=world.settings.job_service_account,
        policy=world.policy,
        mode=world.settings.mode,
        now=world.clock.now(),
    )
    return outcome.to_json()
