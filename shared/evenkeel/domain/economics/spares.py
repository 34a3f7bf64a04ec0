"""How many spare nodes to keep, from a stock that is reordered or with machines that are repaired.

Stock of S spares, each failure orders one node, and an order takes L hours on average. The number of open orders is
Poisson distributed with mean x L, whatever the distribution of L (Palm's theorem). So a failure finds no spare with
P(Poisson(x L) >= S). If a failure without a spare orders nothing, because it takes a node from elsewhere, the
probability is Erlang's loss formula with the same load.

Machines with a limited number of repairers: a birth-death process in the number of broken machines.
"""

import math

from evenkeel.domain.economics import poisson
from evenkeel.domain.economics.figure_checks import WrongFigure, at_least, more_than_0, whole_number
from evenkeel.domain.values import Value

_MAX_SPARES = 10_000
_MAX_MACHINES = 100_000


def no_spare_probability(spares: int, failures_per_hour: float, lead_hours: float) -> float:
    """Return the probability that a failure finds no spare, if each failure orders one node."""
    load = at_least("failures_per_hour", failures_per_hour) * at_least("lead_hours", lead_hours)
    return poisson.at_least_probability(whole_number("spares", spares), load)


def erlang_loss(servers: int, load: float) -> float:
    """Return Erlang's loss formula: the probability that all servers are busy."""
    blocked_share = 1.0
    for server_count in range(1, whole_number("servers", servers) + 1):
        blocked_share = at_least("load", load) * blocked_share / (server_count + load * blocked_share)
    return blocked_share


# ---------------------------------------------------------------- stock


class SpareInputs(Value):
    """The facts that decide the number of spares."""

    nodes: int
    failures_per_node_hour: float
    lead_seconds: float
    """Time from an order until the node is a spare."""
    wait_seconds: float
    """Wait for a node if a failure finds no spare."""
    detect_seconds: float
    resume_seconds: float
    run_cost_usd: float | None = None
    """Cost of the run without failures and spares; None if unknown."""

    @property
    def failures_per_hour(self) -> float:
        """Failures of the job per hour."""
        return whole_number("nodes", self.nodes, 1) * at_least("failures_per_node_hour", self.failures_per_node_hour)


class SpareCost(Value):
    """Time and cost of a run with a number of spares."""

    spares: int
    no_spare_probability: float
    """Result if each failure orders one node."""
    no_spare_probability_without_backorder: float
    """Erlang's loss formula."""
    mean_downtime_seconds: float
    time_factor: float
    """T/T0 in the renewal form."""
    cost_factor: float
    """Time factor times (nodes + spares) / nodes."""
    cost_usd: float | None
    next_spare_saves_usd: float | None
    next_spare_pays: bool
    """Whether one more spare lowers the cost."""


def spare_cost(spares: int, inputs: SpareInputs) -> SpareCost:
    """Return time and cost with a number of spares."""
    per_hour, factor = inputs.failures_per_hour, _cost_factor(spares, inputs)
    next_factor = _cost_factor(spares + 1, inputs)
    usd = inputs.run_cost_usd
    if usd is not None:
        at_least("run_cost_usd", usd)
    lead = at_least("lead_seconds", inputs.lead_seconds) / 3600
    downtime = _downtime_seconds(spares, inputs)
    return SpareCost(
        spares=spares,
        no_spare_probability=no_spare_probability(spares, per_hour, lead),
        no_spare_probability_without_backorder=erlang_loss(spares, per_hour * lead),
        mean_downtime_seconds=downtime,
        time_factor=1 + per_hour * downtime / 3600,
        cost_factor=factor,
        cost_usd=None if usd is None else usd * factor,
        next_spare_saves_usd=None if usd is None else usd * (factor - next_factor),
        next_spare_pays=next_factor < factor,
    )


def _downtime_seconds(spares: int, inputs: SpareInputs) -> float:
    waits = no_spare_probability(spares, inputs.failures_per_hour, inputs.lead_seconds / 3600)
    stages = at_least("detect_seconds", inputs.detect_seconds) + at_least("resume_seconds", inputs.resume_seconds)
    return stages + waits * at_least("wait_seconds", inputs.wait_seconds)


def _cost_factor(spares: int, inputs: SpareInputs) -> float:
    time = 1 + inputs.failures_per_hour * _downtime_seconds(spares, inputs) / 3600
    return time * (inputs.nodes + spares) / inputs.nodes


def best_spares(inputs: SpareInputs) -> int:
    """Return the number of spares with the lowest cost."""
    for spares in range(_MAX_SPARES):
        # Past the mean number of open orders, each further spare helps less than the one before.
        if spares >= inputs.failures_per_hour * inputs.lead_seconds / 3600 and _cost_factor(
            spares + 1, inputs
        ) >= _cost_factor(spares, inputs):
            candidates = range(spares + 1)
            return min(candidates, key=lambda candidate: _cost_factor(candidate, inputs))
    raise WrongFigure("lead_seconds", f"would keep more than {_MAX_SPARES} nodes on order")


# ---------------------------------------------------------------- machines with repairers


class RepairShop(Value):
    """Machines and spares that a limited number of repairers bring back, in the steady state."""

    nodes: int
    spares: int
    repairers: int
    broken_probabilities: tuple[float, ...]
    """Probability of 0, 1, … broken machines, at a random time."""
    mean_broken: float
    mean_waiting_for_a_repairer: float
    enough_nodes_probability: float
    """Share of time in which the job has all its nodes."""
    no_spare_probability: float
    """Probability that a failure of a running job finds no spare."""
    mean_nodes_short: float
    """Nodes that the job lacks, on average over time."""


def repair_shop(
    nodes: int,
    spares: int,
    failures_per_node_hour: float,
    repair_hours: float,
    repairers: int | None = None,
    *,
    fails_while_stopped: bool = False,
) -> RepairShop:
    """Return the steady state of a fleet whose broken machines are repaired.

    Args:
        nodes: Nodes that the job needs.
        spares: Machines beyond these. A spare does not fail while it waits.
        failures_per_node_hour: Failure rate of a node in use.
        repair_hours: Mean time of one repair.
        repairers: Repairs that can run at once; None for one per machine.
        fails_while_stopped: Whether nodes also fail while the job lacks a node.
    """
    machines = whole_number("nodes", nodes, 1, _MAX_MACHINES) + whole_number("spares", spares, 0, _MAX_SPARES)
    repairer_count = machines if repairers is None else whole_number("repairers", repairers, 1)
    rate = at_least("failures_per_node_hour", failures_per_node_hour)
    repairs = 1 / more_than_0("repair_hours", repair_hours)
    logs = [0.0]
    for broken in range(machines):
        in_use = nodes if broken <= spares else (machines - broken) * fails_while_stopped
        ratio = in_use * rate / (min(broken + 1, repairer_count) * repairs)
        if not ratio:
            break
        logs.append(logs[-1] + math.log(ratio))
    states = _shares_of_weights(logs)
    enough = math.fsum(states[: spares + 1])
    return RepairShop(
        nodes=nodes,
        spares=spares,
        repairers=repairer_count,
        broken_probabilities=states,
        mean_broken=math.fsum(n * p for n, p in enumerate(states)),
        mean_waiting_for_a_repairer=math.fsum(max(0, n - repairer_count) * p for n, p in enumerate(states)),
        enough_nodes_probability=enough,
        # Relative to the states in which the job runs: their share of all states may be too small for a float.
        no_spare_probability=_shares_of_weights(logs[: spares + 1])[spares] if len(logs) > spares else 0.0,
        mean_nodes_short=math.fsum(max(0, n - spares) * p for n, p in enumerate(states)),
    )


def _shares_of_weights(logs: list[float]) -> tuple[float, ...]:
    """Return shares from the logarithms of weights."""
    top = max(logs)
    weights = [math.exp(log - top) for log in logs]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)
