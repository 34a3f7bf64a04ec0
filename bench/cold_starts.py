"""`python -m bench.cold_starts`: processor seconds that each function needs before its first event.

Each sample is a new process. It imports the handler, the adapters and the layer's SDK, and creates every client that
the role of the function permits. So it counts at least what a new execution environment does. The seconds are seconds
of the reference processor: a fixed loop runs just before each process. Two parts of the
time are measured separately: the libraries with the creation of the clients, and the work to build pydantic's models.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.cpu_usage import Usage
from bench.origin import describe_origin, write_figures
from bench.scale.functions import ColdStart, measure_start
from tests.template.documents import template

ON_THE_WAY_TO_A_CORDON: Final = ("receive_event", "plan_recovery", "cordon_node")
AIM_SECONDS: Final = 0.35
"""For the functions before a cordon."""
OTHER_AIM_SECONDS: Final = 0.5

_PARTS: Final = {
    # prefix of an IAM action: the adapters and the clients
    "autoscaling": (("autoscaling",), ("autoscaling", "eks")),
    "cloudwatch": (("container_insights",), ("cloudwatch",)),
    "dynamodb": (("dynamo_ledger",), ("dynamodb",)),
    "ec2": (("capacity_reservations",), ("ec2",)),
    "eks": (("cluster", "eks"), ("eks", "sts")),
    "events": (("messages",), ("events",)),
    "lambda": (("messages",), ("lambda",)),
    "s3": (("s3_checkpoints", "messages"), ("s3",)),
    "sagemaker": (("hyperpod",), ("sagemaker",)),
    "sns": (("messages",), ("sns",)),
    "sqs": (("messages",), ("sqs",)),
    "states": (("stepfunctions",), ("stepfunctions",)),
}


def permitted_services() -> dict[str, list[str]]:
    """Return the services that the role of each function may call, as prefixes of IAM actions, by function."""
    resources = template()["Resources"]
    services = {}
    for resource in resources.values():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::Serverless::Function" and properties.get("CodeUri"):
            role = resources[properties["Role"]["Fn::GetAtt"][0]]
            name = properties["CodeUri"].strip("/").rpartition("/")[2]
            actions = _actions_in(role["Properties"]["Policies"])
            services[name] = sorted({action.partition(":")[0] for action in actions} & set(_PARTS))
    return services


def _actions_in(document: Any) -> Iterator[str]:
    """Yield every allowed IAM action, also in conditional statements."""
    if isinstance(document, list):
        for part in document:
            yield from _actions_in(part)
    elif isinstance(document, dict) and document.get("Effect") == "Allow":
        actions = document["Action"]
        yield from [actions] if isinstance(actions, str) else actions
    elif isinstance(document, dict):
        yield from _actions_in(list(document.values()))


def measure(rounds: int, functions: Sequence[str]) -> list[dict[str, Any]]:
    """Measure each function once per round, so that a disturbance affects all functions alike."""
    services = permitted_services()
    samples: dict[str, list[ColdStart]] = {name: [] for name in functions or sorted(services)}
    for _ in range(rounds):
        for name, starts in samples.items():
            parts = [_PARTS[service] for service in services[name]]
            adapters = sorted({adapter for adapters, _ in parts for adapter in adapters})
            clients = sorted({client for _, clients in parts for client in clients})
            starts.append(measure_start(name, adapters, clients))
    return [
        {
            "function": name,
            "clients": services[name],
            "aim": AIM_SECONDS if name in ON_THE_WAY_TO_A_CORDON else OTHER_AIM_SECONDS,
            **_figures_of(starts),
        }
        for name, starts in samples.items()
    ]


def _figures_of(starts: Sequence[ColdStart]) -> dict[str, float]:
    seconds = [start.processor_seconds for start in starts]
    return {
        "median": round(statistics.median(seconds), 3),
        "low": round(min(seconds), 3),
        "high": round(max(seconds), 3),
        "libraries": round(statistics.median(start.library_seconds / start.processor_seconds for start in starts), 3),
        "models": round(statistics.median(start.model_seconds / start.processor_seconds for start in starts), 3),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.cold_starts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("functions", nargs="*", help="functions to measure; default all")
    parser.add_argument("--rounds", type=int, default=7, help="samples of each function")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    arguments = parser.parse_args(words)
    before, document = Usage.now(), describe_origin("bench.cold_starts", words, [])
    document["functions"] = measure(arguments.rounds, arguments.functions)
    document["othersShare"] = round(Usage.now().others_since(before), 2)
    for figures in document["functions"]:
        is_met = figures["median"] <= figures["aim"]
        print(
            f"  {figures['function']:<16}{figures['median']:>7.3f} s ({figures['low']:.3f} to {figures['high']:.3f})"
            f"  aim {figures['aim']} s: {'met' if is_met else 'missed'}  {figures['libraries']:.0%} for libraries,"
            f" {figures['models']:.0%} for pydantic's models"
        )
    print(f"\nOther programs used {document['othersShare']:.0%} of the processors meanwhile.")
    write_figures(arguments.output, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
