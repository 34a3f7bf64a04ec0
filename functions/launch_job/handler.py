"""State LaunchJob of run_job: fence out earlier attempts, pin the resume point, create the Kubernetes Job."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.attempts import launch_job


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = launch_job.Request.model_validate(event)
    context = wiring.context()
    outcome = launch_job.run(request, context)
    return outcome.to_json()
