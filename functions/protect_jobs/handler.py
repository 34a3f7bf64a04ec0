"""State ProtectJobs of recover_node: stop the jobs on the node, with the grace that its fault allows."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import protect_jobs


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = protect_jobs.Request.model_validate(event)
    context = wiring.context()
    outcome = protect_jobs.run(request, context)
    return outcome.to_json()
