"""Queue `events`: one event about nodes or groups of them, from EventBridge or from a site's own detector."""

from evenkeel.events import envelope
from evenkeel.events.outcomes import Ignored, Malformed, ParsedEvent, Unknown
from evenkeel.runtime import entry, wiring
from evenkeel.services.incidents import receive_event


@entry.event(parse=envelope.parse, malformed=Malformed, passed_over=(Ignored, Unknown))
def handler(parsed: ParsedEvent, _context: entry.LambdaContext) -> entry.Json:
    world = wiring.world()
    outcomes = receive_event.ingest_event(
        parsed.facts,
        ledger=world.ledger,
        provider=world.provider,
        workflows=world.workflows,
        clock=world.clock,
        ids=world.ids,
        telemetry=world.telemetry,
        clusters=world.settings.kubernetes_clusters,
        cluster_arn=world.settings.hyperpod_cluster_arn,
        drills_may_act=world.settings.drills_may_act,
        catalogue=world.policy.catalogue,
    )
    return receive_event.summary(outcomes)
