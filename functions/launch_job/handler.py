"""State LaunchJob of run_job: fence out earlier attempts, pin the resume point, create the Kubernetes Job."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.attempts import launch_job
from evenkeel.services.storage import attempt_store


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = attempt_store.AttemptRequest.model_validate(event)
    context = wiring.context()
    result = launch_job.run(request, context)
    return result.to_json()
