"""Coverage of the seeds: the number of each kind of fault, workflow transition and guardrail."""

from collections import Counter
from collections.abc import Iterator

from evenkeel.domain.health.incidents import IncidentState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.recovery.guardrails import GuardrailName
from tests.simulator.asl import transitions
from tests.simulator.chaos import EFFECT_FAULTS, READ_FAULTS
from tests.simulator.elastic_scenario import DISTURBANCES
from tests.simulator.elastic_scenario import KINDS as KINDS_OF_SIZES
from tests.simulator.elastic_scenario import OUTCOMES as OUTCOMES_OF_SIZES
from tests.simulator.fault_schedule import (
    FAULTS,
    INJECTED_FAULTS,
    NODE_RECOVERY,
    OUTAGES,
    PERSON_ACTIONS,
    UNREACHABLE_PORTS,
)
from tests.simulator.kueue_scenario import KINDS as KINDS_OF_ADMISSIONS
from tests.simulator.placement_scenario import ENDS, LABELS
from tests.simulator.renting_scenario import KINDS as KINDS_OF_POOLS
from tests.simulator.renting_scenario import NODE_FAULTS, PART_FAULTS
from tests.simulator.renting_scenario import OUTCOMES as OUTCOMES_OF_RENTING
from tests.simulator.renting_scenario import PERSON_ACTIONS as RENTING_ACTIONS
from tests.simulator.team_scenario import KINDS, OUTCOMES
from tests.simulator.team_scenario import PERSON_ACTIONS as TEAM_ACTIONS

MACHINES = ("recover_node", "run_job", "burst_capacity")
"""The workflows that the seeds run."""


def all_events() -> Iterator[str]:
    """Yield the name of everything that a seed may cover."""
    yield from (f"read {kind}" for kind in READ_FAULTS)
    yield from (f"effect {kind}" for kind in EFFECT_FAULTS)
    yield from (f"fault {kind}" for kind in INJECTED_FAULTS)
    yield from (f"shows {kind}" for kind in (*FAULTS, "a spot notice"))
    yield from (f"action {kind}" for kind in (*PERSON_ACTIONS, *TEAM_ACTIONS))
    yield from (f"setting {value}" for value in NODE_RECOVERY)
    yield from (f"teams {kind}" for kind in KINDS)
    yield from (f"decision ADMISSION {action}" for action in OUTCOMES)
    yield from (
        f"outage {kind}" for kind in (*OUTAGES, *UNREACHABLE_PORTS, "no capacity", "cluster updating", "of a function")
    )
    yield from (f"renting {kind}" for kind in (*NODE_FAULTS, *KINDS_OF_POOLS, *PART_FAULTS, "on loan"))
    yield from (f"action {kind}" for kind in RENTING_ACTIONS)
    yield from (f"decision {outcome}" for outcome in (*OUTCOMES_OF_RENTING, *OUTCOMES_OF_SIZES))
    yield from (f"elastic {kind}" for kind in (*KINDS_OF_SIZES, "a spike"))
    yield from (f"action {kind} in mid-resize" for kind in DISTURBANCES)
    yield from (f"kueue {kind}" for kind in KINDS_OF_ADMISSIONS)
    yield from (f"{subject} {kind}" for subject in ("end", "plan") for kind in ENDS)
    yield from (f"labels {kind}" for kind in LABELS)
    modes = ("act", "observe", "recommend", "all events are lost", "HyperPod repairs by itself")
    yield from (f"mode {kind}" for kind in (*modes, "with Karpenter's nodes"))
    yield from (f"guardrail {rule}" for rule in GuardrailName)
    yield from (f"end incident {state}" for state in IncidentState if state.is_settled)
    yield from (f"end job {state}" for state in JobState if state.has_ended)
    for machine in MACHINES:
        yield from transitions(machine)


def never_seen(counts: Counter[str]) -> list[str]:
    """Return the possible items that no seed covered."""
    return [event for event in dict.fromkeys(all_events()) if not counts[event]]


def table(counts: Counter[str]) -> str:
    """Count each item, and print known items with their counts."""
    known = list(dict.fromkeys([*all_events(), *sorted(counts)]))
    return "\n".join(f"{counts[event]:8}  {event}" for event in known)
