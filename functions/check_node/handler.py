"""State CheckNode of recover_node: start the check that a node must pass before it takes work again."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import check_node
from evenkeel.services.storage import incident_record


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = incident_record.RecoveryRun.model_validate(event)
    context = wiring.context()
    result = check_node.run(request, context)
    return result.to_json()
