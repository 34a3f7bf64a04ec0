"""Write the tables of docs/operate/metrics.md: the declared metrics, and the alarms of template.yaml."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_pascal

from evenkeel.domain.metrics import METRICS
from tools.architecture import template
from tools.generated_tables import with_tables

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operate" / "metrics.md"


def metric_rows() -> Iterator[str]:
    """Yield a row for each declared metric."""
    yield "| metric | unit | dimensions besides `Fleet` | a data point means |"
    yield "|---|---|---|---|"
    for metric in METRICS.values():
        dimensions = ", ".join(f"`{to_pascal(name)}`" for name in metric.dimensions) or "–"
        yield f"| `{metric.name}` | {metric.unit} | {dimensions} | {metric.meaning} |"


def alarm_rows() -> Iterator[str]:
    """Yield a row for each alarm, by name."""
    yield "| alarm | watches | what happened, and its runbook |"
    yield "|---|---|---|"
    resources = template()
    for name in sorted(resources):
        if resources[name]["Type"] == "AWS::CloudWatch::Alarm":
            alarm = resources[name]["Properties"]
            text, _, runbook = alarm["AlarmDescription"].partition(" Runbook: docs/runbooks/")
            page = runbook.removesuffix(".md")
            yield f"| `{name}` | `{watched_metrics(alarm)}` | {text} [{page}](../runbooks/{page}.md) |"


def watched_metrics(alarm: Mapping[str, Any]) -> str:
    """Return the namespace and the names of the metrics that an alarm watches."""
    read = [query["MetricStat"]["Metric"] for query in alarm.get("Metrics", ()) if "MetricStat" in query] or [alarm]
    return f"{read[0]['Namespace']} {', '.join(dict.fromkeys(metric['MetricName'] for metric in read))}"


TABLES = {"metrics": metric_rows, "alarms": alarm_rows}


def files() -> dict[Path, str]:
    """Return the page with its tables."""
    return {PAGE: with_tables(PAGE, TABLES)}
