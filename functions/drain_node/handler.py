"""State DrainNode of recover_node: stop the jobs on the node, with the grace that its fault allows."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.incidents import recovery_step
from evenkeel.services.recovery import drain_node


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = recovery_step.RecoveryStepRequest.model_validate(event)
    context = wiring.context()
    result = drain_node.run(request, context)
    return result.to_json()
