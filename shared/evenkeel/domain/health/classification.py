"""Attach the catalogue's fault to a fact or an incident.

fact, node ─▶ ClassifiedFact ─▶ IngestDecision ─▶ incident ─▶ IncidentFault ─▶ plan, repair, resume
"""

from typing import NamedTuple, Self

from evenkeel.domain.health.faults import NODE_RUNGS, Fault, FaultCatalogue, Rung
from evenkeel.domain.health.incidents import AffectedNode, FactKind, Incident, NodeFact


class ClassifiedFact(NamedTuple):
    """A fact about a node of the fleet, with the fault that it reports."""

    fact: NodeFact
    affected_node: AffectedNode
    fault: Fault
    """The fault with the site's overrides. Meaningful only if the fact is `FAULT`."""

    @classmethod
    def of(cls, fact: NodeFact, affected_node: AffectedNode, catalogue: FaultCatalogue) -> Self:
        """Return a fact with its fault."""
        return cls(fact, affected_node, catalogue.look_up(fact.fault_key))

    @property
    def is_evidence(self) -> bool:
        """Whether the fact reports a fault that says something about the node by itself."""
        return self.fact.kind is FactKind.FAULT and self.fault.is_evidence


class IncidentFault(NamedTuple):
    """The fault of an incident, with the rungs that the assessment of its signals leaves."""

    fault: Fault
    """The fault with the site's overrides."""
    rungs: tuple[Rung, ...]
    """The rungs of the fault in order, without the rungs below the incident's `min_rung`."""

    @classmethod
    def of(cls, incident: Incident, catalogue: FaultCatalogue) -> Self:
        """Return the fault of an incident."""
        fault = catalogue.look_up(incident.fault_key)
        return cls(fault, _rungs_from(incident.min_rung, fault.ladder))

    @property
    def node_rungs(self) -> tuple[Rung, ...]:
        """The rungs that act on the node itself, in order."""
        return tuple(rung for rung in self.rungs if rung in NODE_RUNGS)


def _rungs_from(min_rung: str, ladder: tuple[Rung, ...]) -> tuple[Rung, ...]:
    if not min_rung:
        return ladder
    first_rung = Rung(min_rung)
    if first_rung is Rung.ASK_PERSON:
        return (first_rung,)
    stronger = tuple(rung for rung in ladder if rung.strength > first_rung.strength)
    return ladder[ladder.index(first_rung) :] if first_rung in ladder else (first_rung, *stronger)
