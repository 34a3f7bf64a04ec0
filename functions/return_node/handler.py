"""State ReturnNode of recover_node: return the node in the slot to service."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import return_node


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = return_node.Request.model_validate(event)
    context = wiring.context()
    outcome = return_node.run(request, context)
    return outcome.to_json()
