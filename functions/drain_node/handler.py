"""State DrainNode of recover_node: stop the jobs on the node, with the grace that its fault allows."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import drain_node


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = drain_node.Request.model_validate(event)
    context = wiring.context()
    outcome = drain_node.run(request, context)
    return outcome.to_json()
