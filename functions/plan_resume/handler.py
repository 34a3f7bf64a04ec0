"""State PlanResume of recover_node: choose the resume option with the least loss for each interrupted job."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.resume import plan_resume


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = plan_resume.Request.model_validate(event)
    context = wiring.context()
    outcome = plan_resume.run(request, context)
    return outcome.to_json()
