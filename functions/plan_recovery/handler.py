"""State PlanRecovery of recover_node: plan the recovery of the node, and check whether it is allowed."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.incidents import recovery_step
from evenkeel.services.recovery import plan_recovery


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = recovery_step.RecoveryStepRequest.model_validate(event)
    context = wiring.context()
    result = plan_recovery.run(request, context)
    return result.to_json()
