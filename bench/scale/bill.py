"""The AWS bill: of one whole recovery, and of a fleet in a month without faults.

Prices are in `bench/setups/scale.json` with their date. Calls and capacity units are counted; durations are modelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.scale.fleet import FleetSize
from bench.scale.functions import limits
from bench.scale.model import ClientCosts, Latencies
from bench.scale.scenarios import CaseFigures
from evenkeel.domain.metrics import METRICS
from evenkeel.domain.policy import Policy
from tests.fakes.metered import CallCounter, ObjectSizes, metered_ports
from tests.template.documents import template
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario

_MONTH_MINUTES: Final = 30 * 24 * 60
_MILLION: Final = 1_000_000
_RECOVERY_MB: Final = 1769
"""Memory of the largest function of a recovery. The bill is an upper bound: most functions have less."""
_CHOICES_PER_TASK: Final = 1.5
"""Choice and Parallel states for each task of `recover_node`, which are transitions too; rounded up from its graph."""


@dataclass
class Bill:
    """US dollars by service."""

    usd: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, amount: float) -> None:
        self.usd[name] = self.usd.get(name, 0.0) + amount

    @property
    def total(self) -> float:
        return sum(self.usd.values())

    def to_json(self) -> dict[str, float]:
        return {name: round(amount, 6) for name, amount in self.usd.items()} | {"total": round(self.total, 6)}


def recovery_bill(setup: Mapping[str, Any], costs: ClientCosts, nodes: int) -> tuple[Bill, dict[str, Any]]:
    """Return the bill of a recovery of one node with a job, from the event until the incident is settled."""
    scenario = RecoveryScenario(size=nodes)
    counter = CallCounter()
    ports = metered_ports(scenario.world, counter, ObjectSizes())
    for name, port in ports.items():
        setattr(scenario if hasattr(scenario, name) else scenario.world, name, port)
    scenario.world.clock.advance(60)
    scenario.report_fault()
    outcome = scenario.recover()
    latencies, prices = Latencies(setup), setup["prices"]["usd"]
    share = min(1.0, _RECOVERY_MB / 1769)
    seconds = sum(latencies.of(api_call.api).p50 + costs.seconds(api_call) / share for api_call in counter.calls)
    tasks = len(scenario.visited)
    transitions = tasks * (1 + _CHOICES_PER_TASK)
    bill = Bill()
    bill.add("Lambda", seconds * _RECOVERY_MB / 1024 * prices["lambdaGBSecond"] + tasks * prices["lambdaRequest"])
    bill.add("Step Functions", transitions * prices["stateTransition"])
    _add_calls(bill, counter.by_api, _units(counter), prices)
    bill.add("CloudWatch logs", tasks * setup["bill"]["logBytesPerInvocation"] / 1e9 * prices["logGB"])
    return bill, {
        "outcome": outcome,
        "tasks": tasks,
        "transitions": transitions,
        "calls": len(counter.calls),
        "lambdaSeconds": round(seconds, 2),
    }


def monthly_bill(setup: Mapping[str, Any], results: Sequence[CaseFigures], size: FleetSize) -> Bill:
    """Return the bill of a month in which nothing fails: the schedules, the alarms, the metrics and the polling."""
    prices, policy = setup["prices"]["usd"], Policy()
    cases = {result.case: result for result in results if result.size == size}
    bill = Bill()
    for case, function in (("watch", "watch_cluster"), ("cycle", "schedule_jobs"), ("sweep", "sweep_fleet")):
        measured = cases[case]
        seconds, rounds = measured.seconds_p50, 1.0
        if case == "watch":
            # The watch stays open for most of a minute, and evaluates the waits at each tick.
            seconds = max(seconds, policy.watch.watch_seconds)
            rounds = policy.watch.watch_seconds / max(policy.watch.tick_seconds, measured.seconds_p50)
        memory = limits()[function].memory_mb / 1024
        bill.add(f"Lambda {function}", _MONTH_MINUTES * seconds * memory * prices["lambdaGBSecond"])
        bill.add(f"Lambda {function}", _MONTH_MINUTES * prices["lambdaRequest"])
        units = {
            unit_kind: amount * (rounds if unit_kind == "read" else 1)
            for unit_kind, amount in measured.capacity_units.items()
        }
        if case == "cycle":
            units["write"] = 0.0  # a quiet minute admits no job and records no new reason
        size_bill = Bill()
        _add_calls(size_bill, measured.calls, units, prices)
        for name, amount in size_bill.usd.items():
            bill.add(f"{name} {function}", amount * _MONTH_MINUTES)
        bill.add("CloudWatch logs", _MONTH_MINUTES * setup["bill"]["logBytesPerInvocation"] / 1e9 * prices["logGB"])
    alarms = sum(resource["Type"] == "AWS::CloudWatch::Alarm" for resource in template()["Resources"].values())
    bill.add("CloudWatch alarms", alarms * prices["alarm"])
    bill.add("CloudWatch metrics", len(METRICS) * setup["bill"]["seriesPerMetric"] * prices["metric"])
    bill.add("SQS polling", setup["bill"]["pollsPerMonth"] * prices["sqsRequest"])
    return bill


def _units(counter: CallCounter) -> dict[str, float]:
    units = {"read": 0.0, "write": 0.0}
    for call in counter.calls:
        units["write" if "Write" in call.api else "read"] += call.units
    return units


def _add_calls(bill: Bill, calls: Mapping[str, int], units: Mapping[str, float], prices: Mapping[str, float]) -> None:
    bill.add("DynamoDB", units.get("read", 0.0) * prices["readUnit"] + units.get("write", 0.0) * prices["writeUnit"])
    requests = {"s3:PutObject": "s3Put", "s3:GetObject": "s3Get", "s3:ListObjectsV2": "s3Put", "sqs:": "sqsRequest"}
    for prefix, price in requests.items():
        count = sum(number for api, number in calls.items() if api.startswith(prefix))
        if count:
            bill.add(price[:2].upper() if price.startswith("s3") else "SQS", count * prices[price])
