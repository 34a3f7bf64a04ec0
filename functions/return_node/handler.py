"""State ReturnNode of recover_node: return the node in the slot to service."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.incidents import recovery_step
from evenkeel.services.recovery import return_node


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = recovery_step.RecoveryStepRequest.model_validate(event)
    context = wiring.context()
    result = return_node.run(request, context)
    return result.to_json()
