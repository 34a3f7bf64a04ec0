"""Queue `events`: one event about nodes or groups of them, from EventBridge or from a site's own detector."""

from evenkeel.events import envelope
from evenkeel.events.outcomes import Ignored, Malformed, ParsedEvent, Unknown
from evenkeel.runtime import entry, wiring
from evenkeel.services.incidents import receive_event


@entry.event(parse=envelope.parse, malformed=Malformed, passed_over=(Ignored, Unknown))
def handler(parsed: ParsedEvent, _context: entry.LambdaContext) -> entry.Json:
    context = wiring.context()
    outcomes = receive_event.ingest_event(parsed.facts, context)
    return receive_event.summary(outcomes)
