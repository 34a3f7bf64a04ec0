"""Alarms, dashboards and documents name metrics as the functions emit them in the environment of the template."""

import ast
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic.alias_generators import to_pascal

from evenkeel.domain.metrics import FLEET_DIMENSION, METRICS, NAMESPACE
from evenkeel.domain.sources import SourceKind
from evenkeel.runtime.settings import Settings
from evenkeel.runtime.wiring import Ports
from evenkeel.services.scheduling import schedule_jobs
from evenkeel.services.sweep import sweep_run as sweep_writer
from evenkeel.services.sweep import watch_cluster
from tests.template.documents import ROOT, Json, resources, template

TEMPLATE = template()
FUNCTIONS = resources("AWS::Serverless::Function")
ALARMS = resources("AWS::CloudWatch::Alarm")
DOCUMENTS = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
LIST = ROOT / "docs" / "operate" / "metrics.md"
_MAX_DIMENSIONS = 3
PARAMETERS = {"FleetName": "research", "KubernetesClusters": ["research-eks", "burst-eks"]}
"""Parameters of the tested deployment. All others have their defaults."""
LAMBDA = {"AWS_REGION": "us-west-2", "AWS_LAMBDA_FUNCTION_NAME": "evenkeel-main-x", "_X_AMZN_TRACE_ID": "Root=1"}
"""Environment variables that Lambda sets."""
VALUES = {
    ("Heartbeat", "function"): (schedule_jobs.WRITER, watch_cluster.WRITER, sweep_writer.WRITER),
    ("SourcesStale", "source"): tuple(SourceKind),
}
"""Possible values of the dimensions for which an alarm chooses one value."""
OF_AWS = {
    # https://docs.aws.amazon.com/lambda/latest/dg/monitoring-metrics-types.html
    ("AWS/Lambda", "Errors"): {"FunctionName"},
    ("AWS/Lambda", "Throttles"): {"FunctionName"},
    ("AWS/Lambda", "IteratorAge"): {"FunctionName"},
    # One metric for the whole account: https://docs.aws.amazon.com/lambda/latest/dg/monitoring-concurrency.html
    ("AWS/Lambda", "ClaimedAccountConcurrency"): set(),
    # https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/metrics-dimensions.html
    ("AWS/DynamoDB", "ReadThrottleEvents"): {"TableName"},
    ("AWS/DynamoDB", "WriteThrottleEvents"): {"TableName"},
    # https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-available-cloudwatch-metrics.html
    ("AWS/SQS", "ApproximateNumberOfMessagesVisible"): {"QueueName"},
    ("AWS/SQS", "ApproximateAgeOfOldestMessage"): {"QueueName"},
    # https://docs.aws.amazon.com/step-functions/latest/dg/procedure-cw-metrics.html
    ("AWS/States", "ExecutionsFailed"): {"StateMachineArn"},
    ("AWS/States", "ExecutionsTimedOut"): {"StateMachineArn"},
    ("AWS/States", "ExecutionsAborted"): {"StateMachineArn"},
    ("AWS/States", "ExecutionThrottled"): {"StateMachineArn"},
    # https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-metrics-and-dimensions.html
    ("AWS/ApiGateway", "5XXError"): {"ApiName"},
    # A rule on the default bus: https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-monitoring.html
    ("AWS/Events", "InvocationsFailedToBeSentToDlq"): {"RuleName"},
}
"""Metrics of AWS services that an alarm may watch, with their dimensions."""
GAUGES = {"IteratorAge": "Maximum", "IncidentsBlocked": "Minimum", "SourcesStale": "Maximum"}
"""Metrics whose data points are levels: their sum is meaningless."""


class Series(NamedTuple):
    """A time series of CloudWatch."""

    namespace: str
    name: str
    dimensions: frozenset[tuple[str, str]]


def resolved(value: Any) -> Any:
    """Return a value as CloudFormation resolves it: with these parameters, and with every condition true."""
    match value:
        case {"Ref": "AWS::NoValue"}:
            return None
        case {"Ref": str(name)} if name in TEMPLATE["Parameters"]:
            return PARAMETERS.get(name, TEMPLATE["Parameters"][name]["Default"])
        case {"Ref": str(name)}:
            return name
        case {"Fn::GetAtt": target}:
            return ".".join(target) if isinstance(target, list) else target
        case {"Fn::If": [_, given, _]}:
            return resolved(given)
        case {"Fn::Join": [separator, parts]}:
            return separator.join(resolved(parts))
        case {"Fn::Sub": _}:
            return "substituted"
    return value


def environment_of(function: str) -> dict[str, str]:
    """Return the environment that Lambda gives to a function."""
    common = TEMPLATE["Globals"]["Function"]["Environment"]["Variables"]
    own = FUNCTIONS[function].get("Environment", {}).get("Variables", {})
    document = {name: resolved(value) for name, value in {**common, **own}.items()}
    return {name: str(value) for name, value in document.items() if value is not None} | LAMBDA


METHODS = {"Count": "count", "Seconds": "seconds", "None": "gauge"}
"""Unit → the method of the telemetry that emits it."""


def emitted_series(
    function: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[tuple[Series, str]]:
    """Yield every series, with its unit, that the real telemetry emits in the environment of one function."""
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in environment_of(function).items():
        monkeypatch.setenv(name, value)
    telemetry = Ports(Settings.from_environment(os.environ)).telemetry
    capsys.readouterr()
    for metric in METRICS.values():
        emit = getattr(telemetry, METHODS[metric.unit])
        chosen = next((candidate for candidate in VALUES if candidate[0] == metric.name), None)
        for value in VALUES[chosen] if chosen else ("any",):
            emit(metric.name, 1.0, **dict.fromkeys(metric.dimensions, str(value)))
    for line in capsys.readouterr().out.splitlines():
        document = json.loads(line)
        (directive,) = document["_aws"]["CloudWatchMetrics"]
        (dimensions,) = directive["Dimensions"]
        (definition,) = directive["Metrics"]
        pairs = frozenset((name, document[name]) for name in dimensions)
        yield Series(directive["Namespace"], definition["Name"], pairs), definition["Unit"]


def series_watched_by(alarm: Json) -> Iterator[tuple[Series, Json]]:
    """Yield each series that an alarm watches, with its statistic and unit."""
    for source in [alarm, *(query["MetricStat"] for query in alarm.get("Metrics", ()) if "MetricStat" in query)]:
        metric = source.get("Metric", source)
        if "MetricName" in metric:
            pairs = frozenset(
                (dimension["Name"], resolved(dimension["Value"])) for dimension in metric.get("Dimensions", ())
            )
            yield Series(metric["Namespace"], metric["MetricName"], pairs), source


def widgets() -> list[Json]:
    """Return the widgets of the dashboard. References to resources stay as they are written."""
    (dashboard,) = resources("AWS::CloudWatch::Dashboard").values()
    text = dashboard["DashboardBody"]["Fn::Sub"]
    body: Json = json.loads(text.replace("${FleetName}", str(PARAMETERS["FleetName"])))
    return list(body["widgets"])


def watched_by_dashboards() -> Iterator[tuple[str, Series]]:
    """Yield each series that a widget shows. A search shows all series with its dimensions."""
    for widget in widgets():
        for namespace, *rest in widget["properties"].get("metrics", ()):
            if isinstance(namespace, str):
                metric, *flat = (part for part in rest if isinstance(part, str))
                pairs = frozenset(zip(flat[::2], flat[1::2], strict=True))
                yield widget["properties"]["title"], Series(namespace, metric, pairs)


SEARCH = re.compile(r"SEARCH\('\{(\w+),([\w,]+)\} MetricName=\"(\w+)\" Fleet=\"research\"', '(\w+)', 300\)")


def searches() -> Iterator[tuple[str, set[str], str]]:
    """Yield the metric, the dimensions and the statistic of each search of the dashboard."""
    for widget in widgets():
        for first, *_ in widget["properties"].get("metrics", ()):
            if isinstance(first, dict):
                match = SEARCH.fullmatch(first["expression"])
                assert match, first["expression"]
                assert match[1] == NAMESPACE
                yield match[3], set(match[2].split(",")), match[4]


def test_each_search_names_the_exact_dimensions_of_its_metric() -> None:
    expressions = list(searches())
    assert expressions
    for name, dimensions, _ in expressions:
        assert dimensions == {FLEET_DIMENSION, *map(to_pascal, METRICS[name].dimensions)}, name


def test_dashboard_has_a_widget_for_each_question_of_operators() -> None:
    shown = {series.name for _, series in watched_by_dashboards()} | {name for name, _, _ in searches()}

    assert shown >= {
        *("DetectedToCordoned", "DetectedToReturned", "DetectedToSettled", "WaitSeconds"),  # recovery time by stage
        *(f"Jobs{state}" for state in ("Pending", "Starting", "Running", "Stopping", "Suspended")),
        *("ApproximateAgeOfOldestMessage", "NodesCordoned", "RepairsInFlight", "ActionsBlocked"),
        *("RentalUsdPerHour", "RentalCapUsdPerHour", "SweepCorrections"),
        *("Errors", "Throttles", "ReadThrottleEvents", "WriteThrottleEvents", "ExecutionThrottled"),
    }


def test_dashboard_shows_aws_metrics_of_resources_with_their_dimensions() -> None:
    kinds = {logical: resource["Type"] for logical, resource in TEMPLATE["Resources"].items()}
    aws_series = [series for _, series in watched_by_dashboards() if series.namespace.startswith("AWS/")]
    assert aws_series
    for series in aws_series:
        ((dimension, value),) = series.dimensions
        assert {dimension} == OF_AWS[series.namespace, series.name]
        assert kinds[value.strip("${}").partition(".")[0]]
        assert value.endswith(".QueueName}") is (dimension == "QueueName")


def test_dashboard_shows_every_function_table_workflow_and_alarm() -> None:
    text = json.dumps(widgets())
    kinds = ("AWS::Serverless::Function", "AWS::Serverless::StateMachine", "AWS::DynamoDB::Table")

    assert [name for kind in kinds for name in resources(kind) if f"${{{name}}}" not in text] == [], (
        "run `make generate`, or add the resource to tools/dashboard.py"
    )
    assert [name for name in ALARMS if f"${{{name}.Arn}}" not in text] == [], (
        "run `make generate`, or add the alarm to tools/dashboard.py"
    )


def test_widgets_do_not_overlap() -> None:
    cells = [
        (widget["x"] + right, widget["y"] + down)
        for widget in widgets()
        for right in range(widget["width"])
        for down in range(widget["height"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23, "fill all 24 columns of the CloudWatch grid, and no more"


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_every_alarm_and_widget_reads_an_emitted_metric(
    function: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    units = dict(emitted_series(function, monkeypatch, capsys))
    watched = [(name, *watched_series) for name, alarm in ALARMS.items() for watched_series in series_watched_by(alarm)]
    watched += [(name, series, {}) for name, series in watched_by_dashboards()]
    own_series = [entry for entry in watched if not entry[1].namespace.startswith("AWS/")]

    assert own_series
    for name, series, how in own_series:
        assert series in units, f"{name} watches {series}, which {function} never emits"
        assert how.get("Unit", units[series]) == units[series], name


@pytest.mark.parametrize(
    "name",
    [
        *("IncidentsStuck", "IncidentsBlocked", "PolicyInvalid", "BudgetsRunningOut", "UnmanagedJobsNotCreated"),
        *("LaunchesForbidden", "LaunchesWithoutCheckpoint", "JobsOnDistrustedCheckpoints", "WritesRejected"),
        *("EventsUnknown", "ChangesNotPublished", "SourcesStale", "Heartbeat"),
    ],
)
def test_work_that_only_a_person_can_free_has_an_alarm(name: str) -> None:
    assert name in {alarm.get("MetricName") for alarm in ALARMS.values()}


def test_no_two_alarms_watch_the_same_metric() -> None:
    assert {name for name, alarm in ALARMS.items() if not alarm.keys() & {"MetricName", "Metrics"}} == set()
    single = [alarm for alarm in ALARMS.values() if "Metrics" not in alarm]
    watched = Counter((alarm["Namespace"], alarm["MetricName"], repr(alarm.get("Dimensions"))) for alarm in single)

    assert [series for series, count in watched.items() if count > 1] == []


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_every_metric_has_exactly_its_declared_dimensions(
    function: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for series, unit in emitted_series(function, monkeypatch, capsys):
        metric = METRICS[series.name]
        names = {name for name, _ in series.dimensions}
        assert series.namespace == NAMESPACE
        assert names == {FLEET_DIMENSION, *map(to_pascal, metric.dimensions)}
        assert len(names) <= _MAX_DIMENSIONS
        assert unit == metric.unit
        assert (FLEET_DIMENSION, PARAMETERS["FleetName"]) in series.dimensions


@pytest.mark.parametrize("name", sorted(ALARMS))
def test_alarm_on_an_aws_metric_has_real_dimensions(name: str) -> None:
    for series, how in series_watched_by(ALARMS[name]):
        if series.namespace == NAMESPACE:
            continue
        given = dict(series.dimensions)
        assert given.pop("GlobalSecondaryIndexName", "byState") == "byState", "watch no index except byState"
        assert set(given) == OF_AWS[series.namespace, series.name]
        value = next(iter(given.values()), "")
        kinds = {logical: resource["Type"] for logical, resource in TEMPLATE["Resources"].items()}
        match series.namespace:
            case "AWS/Lambda" if value:
                assert kinds[value] == "AWS::Serverless::Function"
            case "AWS/DynamoDB":
                assert kinds[value] == "AWS::DynamoDB::Table"
            case "AWS/SQS":
                logical, _, attribute = value.partition(".")
                assert (kinds[logical], attribute) == ("AWS::SQS::Queue", "QueueName")
            case "AWS/States":
                assert kinds[value] == "AWS::Serverless::StateMachine"
            case "AWS/Events":
                assert kinds[value] == "AWS::Events::Rule"
                assert "EventBusName" not in TEMPLATE["Resources"][value]["Properties"]
            case "AWS/ApiGateway":
                (api,) = resources("AWS::Serverless::Api").values()
                assert resolved(api["Name"]) == value
        assert "Unit" not in how


@pytest.mark.parametrize("name", sorted(name for name, alarm in ALARMS.items() if "Metrics" not in alarm))
def test_alarm_evaluation_fits_its_metric(name: str) -> None:
    alarm = ALARMS[name]
    treats_missing_as_breach = alarm["MetricName"] == "Heartbeat"
    level = "Maximum" if alarm["Namespace"] == "AWS/SQS" else "Sum"

    assert alarm["TreatMissingData"] == ("breaching" if treats_missing_as_breach else "notBreaching")
    assert alarm["ComparisonOperator"] == ("LessThanThreshold" if treats_missing_as_breach else "GreaterThanThreshold")
    assert alarm["Statistic"] == GAUGES.get(alarm["MetricName"], level)
    assert alarm["Period"] % 60 == 0
    assert alarm["Period"] * alarm["EvaluationPeriods"] <= 86_400
    assert alarm["Threshold"] >= (1 if treats_missing_as_breach else 0)


@pytest.mark.parametrize("name", sorted(name for name, alarm in ALARMS.items() if "Metrics" in alarm))
def test_alarm_on_an_expression_reads_all_its_series(name: str) -> None:
    assert TEMPLATE["Resources"][name]["Condition"] == "EvaluatesMetricMath", (
        "add the condition EvaluatesMetricMath: the local engine refuses this alarm"
    )
    alarm = ALARMS[name]
    (shown,) = [query for query in alarm["Metrics"] if query.get("ReturnData", True)]
    read = {query["Id"]: query["MetricStat"] for query in alarm["Metrics"] if "MetricStat" in query}
    expression = resolved(shown["Expression"])

    assert len(read) <= 10, "split the alarm: CloudWatch allows 10 metrics"
    assert expression == "SUM(METRICS())" or list(read) == ["claimed"]
    assert len({query["Period"] for query in read.values()}) == 1
    assert alarm["TreatMissingData"] == "notBreaching"
    assert not {"Namespace", "MetricName", "Statistic", "Period"} & set(alarm)


@pytest.mark.parametrize(
    ("limit", "claimed", "pages"),
    [(1000, 949, False), (1000, 951, True), (10_000, 9_400, False), (50, 10, False), (50, 49, True)],
)
def test_concurrency_alarm_fits_the_limit_of_every_account(limit: int, claimed: int, *, pages: bool) -> None:
    alarm = ALARMS["ConcurrencyLowAlarm"]
    expression = alarm["Metrics"][0]["Expression"]["Fn::Sub"].replace("${LambdaConcurrencyLimit}", str(limit))

    left = eval(expression, {"__builtins__": {}}, {"claimed": claimed})

    assert alarm["ComparisonOperator"] == "LessThanThreshold"
    assert (left < alarm["Threshold"]) is pages


@pytest.mark.parametrize("table", sorted(resources("AWS::DynamoDB::Table")))
def test_alarm_counts_throttles_of_a_table_and_its_index(table: str) -> None:
    throttled = {
        (series.name, dict(series.dimensions).get("GlobalSecondaryIndexName", ""))
        for series, _ in series_watched_by(ALARMS[f"{table}ThrottledAlarm"])
        if ("TableName", table) in series.dimensions
    }

    assert throttled == {
        (name, index) for name in ("ReadThrottleEvents", "WriteThrottleEvents") for index in ("", "byState")
    }


def test_each_function_and_workflow_has_one_throttle_alarm() -> None:
    watched = [
        (series.name, dict(series.dimensions).get("FunctionName") or dict(series.dimensions)["StateMachineArn"])
        for alarm in ALARMS.values()
        for series, _ in series_watched_by(alarm)
        if series.name in ("Throttles", "ExecutionThrottled")
    ]

    assert sorted(watched) == sorted(
        [
            *(("ExecutionThrottled", name) for name in resources("AWS::Serverless::StateMachine")),
            *(("Throttles", name) for name in FUNCTIONS),
        ]
    ), "add the function or workflow to exactly one throttle alarm in template.yaml"


def test_every_kind_of_data_source_has_a_staleness_alarm() -> None:
    watched = {
        pair for alarm in ALARMS.values() for series, _ in series_watched_by(alarm) for pair in series.dimensions
    }
    assert {value for name, value in watched if name == "Source"} == set(SourceKind), (
        "add an alarm KINDStaleAlarm with this value of the dimension Source"
    )


# ---------------------------------------------------------------- what the code emits, and what documents say


class Emission(NamedTuple):
    """A call in the code that emits a metric."""

    location: str
    name: re.Pattern[str]
    unit: str
    dimensions: frozenset[str]


def emissions() -> Iterator[Emission]:
    """Yield every call of a method in `METHODS` in the product's code."""
    for path in sorted([*(ROOT / "shared" / "evenkeel").rglob("*.py"), *(ROOT / "functions").rglob("*.py")]):
        module = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(module):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in METHODS.values()
                and "telemetry" in ast.unparse(node.func.value)
            ):
                unit = next(unit for unit, method in METHODS.items() if method == node.func.attr)
                names = frozenset(word.arg or "**" for word in node.keywords if word.arg != "value")
                for pattern in _patterns(node.args[0], module):
                    yield Emission(f"{path.name}:{node.lineno}", pattern, unit, names)


def _patterns(name: ast.expr, module: ast.Module) -> list[re.Pattern[str]]:
    """Return the possible values of a name: a literal, literals with anything between, or the values of a mapping."""
    if isinstance(name, ast.JoinedStr):
        parts = [re.escape(str(part.value)) if isinstance(part, ast.Constant) else "[A-Za-z]+" for part in name.values]
        return [re.compile("".join(parts))]
    if isinstance(name, ast.Subscript):
        mappings = [
            node.value
            for node in module.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == ast.unparse(name.value)
        ]
        return [
            re.compile(re.escape(ast.literal_eval(value)))
            for mapping in mappings
            if isinstance(mapping, ast.Dict)
            for value in mapping.values
        ]
    assert isinstance(name, ast.Constant), ast.unparse(name)
    return [re.compile(re.escape(str(name.value)))]


def test_every_emitted_metric_is_declared() -> None:
    all_emissions = list(emissions())
    assert len(all_emissions) > 50
    for emission in all_emissions:
        declared = [metric for metric in METRICS.values() if emission.name.fullmatch(metric.name)]
        assert declared, f"{emission.location} emits {emission.name.pattern}, which is not declared"
        alike = [m for m in declared if m.unit == emission.unit and frozenset(m.dimensions) == emission.dimensions]
        assert alike, f"{emission.location} emits {emission.name.pattern} with {sorted(emission.dimensions)}"


def test_every_declared_metric_is_emitted() -> None:
    patterns = [emission.name for emission in emissions()]
    assert not [name for name in METRICS if not any(pattern.fullmatch(name) for pattern in patterns)], (
        "emit the metric through the port Telemetry, or delete it from domain/metrics.py"
    )


def test_documented_metrics_match_the_declared_metrics() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", LIST.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [
        (
            metric.name,
            metric.unit,
            ", ".join(f"`{to_pascal(name)}`" for name in metric.dimensions) or "–",
            metric.meaning,
        )
        for metric in METRICS.values()
    ], "run `make generate`: docs/operate/metrics.md follows domain/metrics.py"


def test_documented_alarms_match_the_template() -> None:
    row = r"^\| `(\w+)` \| `([\w/]+) (\w+(?:, \w+)*)` \| (.*) \[([a-z-]+)\]\(\.\./runbooks/\5\.md\) \|$"
    rows = re.findall(row, LIST.read_text(encoding="utf-8"), re.MULTILINE)
    written = [
        (name, namespace, metric, f"{text} Runbook: docs/runbooks/{page}.md")
        for name, namespace, metric, text, page in rows
    ]
    assert written == [
        (
            name,
            next(series.namespace for series, _ in series_watched_by(alarm)),
            ", ".join(dict.fromkeys(series.name for series, _ in series_watched_by(alarm))),
            alarm["AlarmDescription"],
        )
        for name, alarm in sorted(ALARMS.items())
    ], "run `make generate`: docs/operate/metrics.md follows template.yaml"


def test_every_alarm_has_its_own_description() -> None:
    counts = Counter(document["AlarmDescription"] for document in ALARMS.values())
    assert [text for text, count in counts.items() if count > 1] == [], (
        "describe in AlarmDescription what this alarm alone says"
    )


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_name_only_emitted_metrics(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"metrics? `(\w+)`", text)
    assert set(named) <= set(METRICS) | {name for _, name in OF_AWS}, "correct the name of the metric on the page"
