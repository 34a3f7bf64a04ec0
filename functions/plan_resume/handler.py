"""State PlanResume of recover_node: choose the resume option with the least loss for each interrupted job."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.incidents import recovery_step
from evenkeel.services.resume import plan_resume


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = recovery_step.RecoveryStepRequest.model_validate(event)
    context = wiring.context()
    result = plan_resume.run(request, context)
    return result.to_json()
