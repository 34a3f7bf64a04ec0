"""State CheckNode of recover_node: begin the check that is to vouch for a machine before it takes work again."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.recovery import check_node


@entry.task
def handler(event: entry.Json, _context: entry.LambdaContext) -> entry.Json:
    request = check_node.Request.model_validate(event)
    world = wiring.world()
    outcome = check_node.run(
        request,
        ledger=world.ledger,
        cluster=world.cluster,
        provider=world.provider,
        ids=world.ids,
        telemetry=world.telemetry,
        policy=world.policy,
        namespace=world.settings.job_namespace,
        now=world.clock.now(),
    )
    return outcome.to_json()
