"""Each minute: watch the cluster for most of it, and resolve waits in about a second."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.sweep import watch_cluster


@entry.scheduled
def handler(_event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    world = wiring.world()
    ports = watch_cluster.WatchPorts(
        ledger=world.ledger,
        cluster=world.cluster,
        provider=world.provider,
        workflows=world.workflows,
        wait_answers=world.wait_answers,
        clock=world.clock,
        ids=world.ids,
        telemetry=world.telemetry,
    )
    outcome = watch_cluster.run(
        ports,
        clusters=world.settings.kubernetes_clusters,
        policy=world.policy,
        drills_may_act=world.settings.drills_may_act,
    )
    return outcome.to_json()
