"""Ingest events about nodes and instance groups from the queue `events`.

EventBridge and a site's detectors send them.
"""

from operator import attrgetter

from evenkeel.events import envelope
from evenkeel.events.outcomes import Ignored, Malformed, ParsedEvent, Unknown
from evenkeel.runtime import entry, wiring
from evenkeel.services.incidents import ingest_event


@entry.event(parse=envelope.parse, urgency=attrgetter("urgency"), malformed=Malformed, ignored_types=(Ignored, Unknown))
def handler(parsed: ParsedEvent, _context: entry.LambdaContext) -> entry.Json:
    return ingest_event.run(parsed, wiring.context())
