"""Coverage of the seeds: the number of each kind of fault, workflow transition and guardrail."""

from collections import Counter
from collections.abc import Iterator

from evenkeel.domain.health.incidents import IncidentState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.recovery.guardrails import GuardrailName
from tests.simulator.asl import ways
from tests.simulator.chaos import EFFECT_FAULTS, READ_FAULTS
from tests.simulator.elastic_scenario import DISTURBANCES
from tests.simulator.elastic_scenario import KINDS as KINDS_OF_SIZES
from tests.simulator.elastic_scenario import OUTCOMES as OUTCOMES_OF_SIZES
from tests.simulator.fault_schedule import AWAY, DEEDS, FAULTS, HURTS, OUTAGES
from tests.simulator.renting_scenario import DEEDS as DEEDS_OF_RENTING
from tests.simulator.renting_scenario import KINDS as KINDS_OF_POOLS
from tests.simulator.renting_scenario import OUTCOMES as OUTCOMES_OF_RENTING
from tests.simulator.renting_scenario import TROUBLES
from tests.simulator.team_scenario import DEEDS as DEEDS_OF_TEAMS
from tests.simulator.team_scenario import KINDS, OUTCOMES

PLAYED = ("recover_node", "run_job", "burst_capacity")
"""The workflows that the worlds lead to."""


def all_events() -> Iterator[str]:
    """Yield all that a seed may try."""
    yield from (f"read {kind}" for kind in READ_FAULTS)
    yield from (f"effect {kind}" for kind in EFFECT_FAULTS)
    yield from (f"fault {kind}" for kind in HURTS)
    yield from (f"shows {kind}" for kind in (*FAULTS, "a spot notice"))
    yield from (f"deed {kind}" for kind in (*DEEDS, *DEEDS_OF_TEAMS))
    yield from (f"teams {kind}" for kind in KINDS)
    yield from (f"decision ADMISSION {action}" for action in OUTCOMES)
    yield from (f"outage {kind}" for kind in (*OUTAGES, *AWAY, "no capacity", "cluster updating", "of a function"))
    yield from (f"renting {kind}" for kind in (*TROUBLES, *KINDS_OF_POOLS, "on loan"))
    yield from (f"deed {kind}" for kind in DEEDS_OF_RENTING)
    yield from (f"decision {outcome}" for outcome in (*OUTCOMES_OF_RENTING, *OUTCOMES_OF_SIZES))
    yield from (f"elastic {kind}" for kind in (*KINDS_OF_SIZES, "a spike"))
    yield from (f"deed {kind} in mid-resize" for kind in DISTURBANCES)
    modes = ("act", "observe", "recommend", "all events are lost", "HyperPod repairs by itself")
    yield from (f"mode {kind}" for kind in (*modes, "with Karpenter's nodes"))
    yield from (f"guardrail {rule}" for rule in GuardrailName)
    yield from (f"end incident {state}" for state in IncidentState if state.is_settled)
    yield from (f"end job {state}" for state in JobState if state.has_ended)
    for machine in PLAYED:
        yield from ways(machine)


def never_seen(counts: Counter[str]) -> list[str]:
    """Return the possible items that no seed covered."""
    return [event for event in dict.fromkeys(all_events()) if not counts[event]]


def table(counts: Counter[str]) -> str:
    """Count each item, and print known items with their counts."""
    known = list(dict.fromkeys([*all_events(), *sorted(counts)]))
    return "\n".join(f"{counts[event]:8}  {event}" for event in known)
