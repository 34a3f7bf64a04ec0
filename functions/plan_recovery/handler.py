"""State PlanRecovery of recover_node: plan the recovery of the node, and check whether it is allowed."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import plan_recovery


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = plan_recovery.Request.model_validate(event)
    context = wiring.context()
    outcome = plan_recovery.run(request, context)
    return outcome.to_json()
