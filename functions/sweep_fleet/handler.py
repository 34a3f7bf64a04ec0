"""Compare the ledger with the clusters each minute, and finish work that a crash interrupted."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.sweep import sweep_fleet


@entry.scheduled
def handler(_event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    return sweep_fleet.run(wiring.context()).to_json()
