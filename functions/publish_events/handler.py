"""Publish the events that follow from stored changes of jobs, incidents, nodes, holds and quotas."""

from evenkeel.runtime import entry, wiring
from evenkeel.services.publishing import publish_events


@entry.stream
def handler(change: entry.StoredChange) -> entry.Json:
    return publish_events.run(change, wiring.context()).to_json()
