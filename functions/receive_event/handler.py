"""Ingest an event of the queue `events`: about nodes or instance groups, from EventBridge or a site's detector."""

from evenkeel.events import envelope
from evenkeel.events.outcomes import Ignored, Malformed, ParsedEvent, Unknown
from evenkeel.runtime import entry, wiring
from evenkeel.services.incidents import receive_event


@entry.event(parse=envelope.parse, malformed=Malformed, passed_over=(Ignored, Unknown))
def handler(parsed: ParsedEvent, _context: entry.LambdaContext) -> entry.Json:
    context = wiring.context()
    outcomes = receive_event.ingest_event(parsed.facts, context)
    return receive_event.summary(outcomes)
