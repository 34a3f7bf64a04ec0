"""Tasks of burst_capacity: open a pool, hand its nodes over, try other pools, return all nodes."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.rentals import rent_capacity


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = rent_capacity.RentCapacityRequest.model_validate(event)
    context = wiring.context()
    result = rent_capacity.run(request, context)
    return result.to_json()
