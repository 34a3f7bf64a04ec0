"""Watch the cluster for most of each minute, and resolve waits in about a second."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.sweep import watch_cluster


@entry.scheduled
def handler(_event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    return watch_cluster.run(wiring.context()).to_json()
