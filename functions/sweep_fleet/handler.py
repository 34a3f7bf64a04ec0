"""Each minute: compare ledger and world, and repeat what a crash left half done."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.sweep import sweep_fleet
from evenkeel.services.sweep.sweep_run import SweepPorts


@entry.scheduled
def handler(_event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    world = wiring.world()
    ports = SweepPorts(
        ledger=world.ledger,
        cluster=world.cluster,
        provider=world.provider,
        workflows=world.workflows,
        wait_answers=world.wait_answers,
        passes=world.passes,
        inbox=world.inbox,
        clock=world.clock,
        ids=world.ids,
        telemetry=world.telemetry,
    )
    outcome = sweep_fleet.run(
        ports,
        clusters=world.settings.kubernetes_clusters,
        policy=world.policy,
        mode=world.settings.mode,
        drills_may_act=world.settings.drills_may_act,
        has_hyperpod=bool(world.settings.hyperpod_cluster_arn),
    )
    return outcome.to_json()
