"""State RepairNode of recover_node: choose the next rung, record the intent, call the provider once."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.incidents import recovery_step
from evenkeel.services.recovery import repair_node


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = recovery_step.RecoveryStepRequest.model_validate(event)
    context = wiring.context()
    result = repair_node.run(request, context)
    return result.to_json()
