"""Signals that nobody else brought: what node objects say, and facts whose machine was not known."""

from evenkeel.events import kubernetes_node
from evenkeel.services import note_group_fact, receive_event
from evenkeel.services.sweep.round import Round


def tell_facts(sweep: Round) -> int:
    """Tell what node objects say: the watch may have missed it."""
    world = sweep.world
    opened = 0
    ending = note_group_fact.ending_reservations(world.ledger, sweep.now)
    for node in sweep.kubernetes:
        for fact in kubernetes_node.facts_of(node, sweep.policy.watch, sweep.now, ending):
            outcome = receive_event.run(
                fact,
                ledger=world.ledger,
                provider=world.provider,
                workflows=world.workflows,
                clock=world.clock,
                ids=world.ids,
                telemetry=world.telemetry,
                clusters=sweep.clusters,
                drills_may_act=sweep.drills_may_act,
                catalogue=sweep.policy.catalogue,
            )
            opened += outcome.outcome == "OPEN"
    return opened


def retry_unresolved(sweep: Round) -> int:
    """Try again the facts whose machine was not known."""
    world = sweep.world
    outcomes = receive_event.retry_unresolved(
        ledger=world.ledger,
        provider=world.provider,
        workflows=world.workflows,
        clock=world.clock,
        ids=world.ids,
        telemetry=world.telemetry,
        clusters=sweep.clusters,
        drills_may_act=sweep.drills_may_act,
        catalogue=sweep.policy.catalogue,
    )
    return len(outcomes)
