"""State CheckNode of recover_node: start the check that a node must pass before it takes work again."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.incidents import recovery_step
from evenkeel.services.recovery import check_node


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = recovery_step.RecoveryStepRequest.model_validate(event)
    context = wiring.context()
    result = check_node.run(request, context)
    return result.to_json()
