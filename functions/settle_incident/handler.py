"""State SettleIncident of recover_node: close the incident and, if needed, page a person."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.incidents import settle_incident


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = settle_incident.SettleIncidentRequest.model_validate(event)
    context = wiring.context()
    result = settle_incident.run(request, context)
    return result.to_json()
