"""Queue `events`: one signal about a node, from EventBridge."""

from evenkeel.events import envelope
from evenkeel.events.outcomes import Ignored, Malformed, Unknown
from evenkeel.runtime import entry, wiring
from evenkeel.services import receive_event


@entry.event(parse=envelope.parse, malformed=Malformed, passed_over=(Ignored, Unknown))
def handler(fact: envelope.Fact, _context: entry.Context) -> entry.Json:
    world = wiring.world()
    outcome = receive_event.run(
        fact,
        ledger=world.ledger,
        provider=world.provider,
        workflows=world.workflows,
        clock=world.clock,
        ids=world.ids,
        telemetry=world.telemetry,
        clusters=world.settings.kubernetes_clusters,
        drills_may_act=world.settings.drills_may_act,
    )
    return outcome.to_json()
