"""The sample events and their variations."""

import copy
import json
from pathlib import Path
from typing import Any

from evenkeel.domain.health.group_facts import GroupFact
from evenkeel.domain.health.incidents import NodeFact
from evenkeel.events import envelope
from evenkeel.events.outcomes import ParsedEvent

EVENTS = Path(__file__).resolve().parents[2] / "fixtures" / "events"
Json = dict[str, Any]


def sample_event(name: str, **changes: Any) -> Json:
    """Return a sample event. Each change replaces a field of its `detail` (`__` between names)."""
    event: Json = json.loads((EVENTS / f"{name}.json").read_text(encoding="utf-8"))
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = event["detail"]
        for part in parents:
            section = section[part]
        section[last] = value
    return event


def without_field(event: Json, *path: str) -> Json:
    """Return an event without one field of its `detail`."""
    changed = copy.deepcopy(event)
    section = changed["detail"]
    for part in path[:-1]:
        section = section[part]
    del section[path[-1]]
    return changed


def parse_event(event: Json) -> Any:
    return envelope.parse(json.dumps(event).encode())


def facts_of_event(event: Json) -> tuple[NodeFact | GroupFact, ...]:
    answer = parse_event(event)
    assert isinstance(answer, ParsedEvent), answer
    return answer.facts


def node_facts(event: Json) -> list[NodeFact]:
    return [fact for fact in facts_of_event(event) if isinstance(fact, NodeFact)]


def group_facts(event: Json) -> list[GroupFact]:
    return [fact for fact in facts_of_event(event) if isinstance(fact, GroupFact)]
