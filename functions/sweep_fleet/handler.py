"""Each minute: compare ledger and world, and repeat what a crash left half done."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.sweep import sweep_fleet


@entry.scheduled
def handler(_event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    return sweep_fleet.run(wiring.context()).to_json()
