"""State ReturnNode of recover_node: return the node in the slot to service."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import return_node
from evenkeel.services.storage import incident_record


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = incident_record.RecoveryRun.model_validate(event)
    context = wiring.context()
    result = return_node.run(request, context)
    return result.to_json()
