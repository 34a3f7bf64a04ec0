"""State RepairNode of recover_node: choose the next rung, record the intent, call the provider once."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import repair_node
from evenkeel.services.storage import incident_record


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = incident_record.RecoveryRun.model_validate(event)
    context = wiring.context()
    result = repair_node.run(request, context)
    return result.to_json()
