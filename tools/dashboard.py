"""Write the dashboard of template.yaml from the declared metrics, the functions, the workflows and the alarms."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.alias_generators import to_pascal

from evenkeel.domain.metrics import FLEET_DIMENSION, METRICS, NAMESPACE
from tools.architecture import template

TEMPLATE = Path(__file__).resolve().parents[1] / "template.yaml"
BEGIN, END = "  # dashboard: begin\n", "  # dashboard: end\n"
_FLEET = "${FleetName}"
_COLUMNS, _WIDTH, _HEIGHT = 24, 8, 6
_MAX_ALARMS = 100
"""Maximum number of alarms in one widget.

Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
"""
_PERIOD = 300

Json = dict[str, Any]


class Series(NamedTuple):
    """A metric in a graph, with one curve for each value of its dimensions."""

    metric: str
    stat: str
    label: str = ""


class Graph(NamedTuple):
    """A graph of Evenkeel's own metrics."""

    title: str
    series: tuple[Series, ...]
    axis: str
    """The unit of the axis."""


def _percentiles(name: str, label: str) -> tuple[Series, ...]:
    return tuple(Series(name, stat, f"{label}, {stat}") for stat in ("p50", "p99"))


GRAPHS = (
    Graph(
        "Recovery time by stage",
        (*_percentiles("DetectedToCordoned", "to the cordon"), *_percentiles("DetectedToReturned", "to the return")),
        "seconds",
    ),
    Graph("Time to the end of an incident, by outcome", (Series("DetectedToSettled", "p90"),), "seconds"),
    Graph("Waits of workflows, by kind", (Series("WaitSeconds", "p90"),), "seconds"),
    Graph(
        "Cordons and repairs in flight",
        (
            Series("IncidentsOpen", "Maximum", "open incidents"),
            Series("RepairsInFlight", "Maximum", "repairs in flight"),
            Series("NodesCordoned", "Maximum", "cordoned nodes"),
            Series("IncidentsBlocked", "Maximum", "blocked incidents"),
        ),
        "now",
    ),
    Graph("Actions blocked, by guardrail", (Series("ActionsBlocked", "Sum"),), "in 5 minutes"),
    Graph("Repairs requested, by rung and answer", (Series("RepairsRequested", "Sum"),), "in 5 minutes"),
    Graph(
        "Jobs by state",
        tuple(
            Series(f"Jobs{state.capitalize()}", "Maximum", state)
            for state in ("pending", "starting", "running", "stopping", "suspended")
        ),
        "now",
    ),
    Graph("Time from admission to running", _percentiles("AdmittedToRunning", "admission to running"), "seconds"),
    Graph("Ended attempts, by state", (Series("AttemptsSettled", "Sum"),), "in 5 minutes"),
    Graph(
        "Nodes",
        (
            Series("NodesReady", "Minimum", "ready"),
            Series("NodesNotReady", "Maximum", "not ready"),
            Series("LemonNodes", "Maximum", "lemons"),
        ),
        "now",
    ),
    Graph(
        "Cost of rented nodes, and its cap",
        (Series("RentalUsdPerHour", "Maximum", "cost"), Series("RentalCapUsdPerHour", "Maximum", "cap")),
        "US dollars an hour",
    ),
    Graph("Node time of the last day, by use", (Series("DayNodeSeconds", "Maximum"),), "seconds"),
    Graph(
        "Effective training time ratio of the last day", (Series("DayTrainingTimeRatio", "Maximum", "ETTR"),), "ratio"
    ),
    Graph("Cost of the failures of the last day", (Series("DayLostUsd", "Maximum", "lost"),), "US dollars"),
    Graph("Work that the sweep finished, by step", (Series("SweepCorrections", "Sum"),), "in 5 minutes"),
    Graph("Stale sources, by kind", (Series("SourcesStale", "Maximum"),), "now"),
    Graph(
        "Events",
        (
            Series("EventsReceived", "Sum", "received"),
            Series("EventsIgnored", "Sum", "ignored"),
            Series("EventsUnknown", "Sum", "unknown"),
        ),
        "in 5 minutes",
    ),
)


def metric_lines(series: Series) -> list[Any]:
    """Return a series in the format of a dashboard.

    A series with several dimensions becomes a search for all their values.
    """
    metric = METRICS[series.metric]
    if not metric.dimensions:
        return [NAMESPACE, metric.name, FLEET_DIMENSION, _FLEET, {"stat": series.stat, "label": series.label}]
    names = ",".join([NAMESPACE, FLEET_DIMENSION, *map(to_pascal, metric.dimensions)])
    query = f'{{{names}}} MetricName="{metric.name}" {FLEET_DIMENSION}="{_FLEET}"'
    return [{"expression": f"SEARCH('{query}', '{series.stat}', {_PERIOD})"}]


def of_aws(namespace: str, name: str, dimension: str, values: Mapping[str, str], stat: str = "Sum") -> list[Any]:
    """Return the metric of each resource, from its label and the value of the dimension."""
    return [[namespace, name, dimension, value, {"stat": stat, "label": label}] for label, value in values.items()]


def widget(title: str, metrics: list[Any], axis: str) -> Json:
    """Return a graph."""
    properties = {
        "title": title,
        "view": "timeSeries",
        "region": "${AWS::Region}",
        "period": _PERIOD,
        "yAxis": {"left": {"label": axis, "min": 0, "showUnits": False}},
        "metrics": metrics,
    }
    return {"type": "metric", "properties": properties}


def widgets() -> Iterator[Json]:
    """Yield the widgets in order, without their positions."""
    resources = template()

    def named(kind: str) -> list[str]:
        return [name for name, resource in resources.items() if resource["Type"] == kind]

    alarms = [f"${{{name}.Arn}}" for name in sorted(named("AWS::CloudWatch::Alarm"))]
    for start in range(0, len(alarms), _MAX_ALARMS):
        yield {"type": "alarm", "properties": {"title": "Alarms", "alarms": alarms[start : start + _MAX_ALARMS]}}
    for graph in GRAPHS:
        yield widget(graph.title, [metric_lines(series) for series in graph.series], graph.axis)
    functions = {name: f"${{{name}}}" for name in named("AWS::Serverless::Function")}
    machines = {name: f"${{{name}}}" for name in named("AWS::Serverless::StateMachine")}
    tables = {name: f"${{{name}}}" for name in named("AWS::DynamoDB::Table")}
    queues = {name: f"${{{name}.QueueName}}" for name in ("EventsQueue", "CyclesQueue")}
    age = of_aws("AWS/SQS", "ApproximateAgeOfOldestMessage", "QueueName", queues, "Maximum")
    yield widget("Age of the oldest message", age, "seconds")
    yield widget("Errors of functions", of_aws("AWS/Lambda", "Errors", "FunctionName", functions), "in 5 minutes")
    throttles = of_aws("AWS/Lambda", "Throttles", "FunctionName", functions)
    yield widget("Throttled functions", throttles, "in 5 minutes")
    refused = [
        line
        for name, what in (("ReadThrottleEvents", "reads"), ("WriteThrottleEvents", "writes"))
        for line in of_aws(
            "AWS/DynamoDB", name, "TableName", {f"{table}, {what}": value for table, value in tables.items()}
        )
    ]
    yield widget("Throttled tables", refused, "in 5 minutes")
    delayed = of_aws("AWS/States", "ExecutionThrottled", "StateMachineArn", machines)
    yield widget("Throttled workflows", delayed, "in 5 minutes")
    ended = [
        line
        for name, how in (("ExecutionsFailed", "failed"), ("ExecutionsTimedOut", "timed out"))
        for line in of_aws(
            "AWS/States", name, "StateMachineArn", {f"{machine}, {how}": value for machine, value in machines.items()}
        )
    ]
    yield widget("Failed workflows", ended, "in 5 minutes")


def widgets_with_positions() -> Iterator[Json]:
    """Yield the widgets with their positions: alarms over the whole width, three graphs in a row."""
    x = y = 0
    for document in widgets():
        width = _COLUMNS if document["type"] == "alarm" else _WIDTH
        if x + width > _COLUMNS:
            x, y = 0, y + _HEIGHT
        yield {"x": x, "y": y, "width": width, "height": _HEIGHT, **document}
        x += width


def resource() -> str:
    """Return the dashboard as a resource of the template."""
    rows = ",\n".join(f"            {json.dumps(document)}" for document in widgets_with_positions())
    return f"""  FleetDashboard:
    Type: AWS::CloudWatch::Dashboard
    Condition: EvaluatesMetricMath # it shows the alarms that have this condition
    Properties:
      DashboardName: !Sub "${{AWS::StackName}}-${{AWS::Region}}" # a name is unique in the account, in all regions
      DashboardBody: !Sub |-
        {{
          "start": "-PT12H",
          "widgets": [
{rows}
          ]
        }}
"""


def files() -> dict[Path, str]:
    """Return the template with its dashboard.

    Raises:
        ValueError: the template has not exactly one place for it.
    """
    text = TEMPLATE.read_text(encoding="utf-8")
    blocks = re.findall(f"{re.escape(BEGIN)}.*?{re.escape(END)}", text, flags=re.DOTALL)
    if len(blocks) != 1:
        raise ValueError(f"template.yaml needs one place for the dashboard, it has {len(blocks)}")
    return {TEMPLATE: text.replace(blocks[0], BEGIN + resource() + END)}
