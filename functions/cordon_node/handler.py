"""State CordonNode of recover_node: keep new pods off a suspect node."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import cordon_node


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = cordon_node.Request.model_validate(event)
    context = wiring.context()
    outcome = cordon_node.run(request, context)
    return outcome.to_json()
