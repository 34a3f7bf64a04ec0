"""State RepairNode of recover_node: choose the next rung, record the intent, call the provider once."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import repair_node


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = repair_node.Request.model_validate(event)
    context = wiring.context()
    outcome = repair_node.run(request, context)
    return outcome.to_json()
