"""The table of checks: each check reads facts and judges them."""

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from evenkeel_cli.doctor import evaluate
from evenkeel_cli.doctor.deadlines import CHECK_SECONDS, answers_within
from evenkeel_cli.doctor.findings import CouldNotCheck, DoctorFinding, Status, failed, unknown
from evenkeel_cli.doctor.site import KUEUE_READER, BadCredentials, InspectedSite, ResourceNotFound
from evenkeel_client.errors import CommandFailed

Json = dict[str, Any]

SCHEDULED = ("schedule_jobs", "sweep_fleet", "watch_cluster")
RULES = ("HyperPodEvents", "Ec2Notices", "Ec2InstanceStates", "HealthEvents")
_DAY = timedelta(days=1)


class DoctorCheck(NamedTuple):
    """One check: its name, how it runs, and what it is about."""

    name: str
    run: Callable[[Any, datetime], list[DoctorFinding]]
    """Takes the `Site`, or the `PlannedSite` of the checks before a deployment."""
    title: str
    """Subject of the check, for the help and the documentation."""
    if_unanswered: Status = Status.UNKNOWN
    """Status of the check if it does not finish in time."""


def credentials(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    try:
        arn = site.aws.call("sts", "get_caller_identity")["Arn"]
    except BadCredentials as error:
        return [failed(error.reason, error.fix)]
    return evaluate.judge_credentials(arn)


def api(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    try:
        overview = site.overview()
    except CommandFailed as problem:
        return evaluate.judge_api(problem.text, problem.hint or "evenkeel status", {})
    return evaluate.judge_api("", "", overview)


def stack(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    site.read_stack()  # raises CouldNotCheck if the stack cannot be described
    url = site.context.url
    is_ours = not url or site.output("ApiId") in url
    return evaluate.judge_stack(site.stack_description()["StackStatus"], is_ours, url)


def api_logs(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    role = site.aws.call("apigateway", "get_account").get("cloudwatchRoleArn") or ""
    return evaluate.judge_api_log_role(site.parameter("ApiLogRole") or "present", role)


def hyperpod(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    arn = site.parameter("HyperPodClusterArn")
    if not arn:
        return evaluate.judge_hyperpod("", None)
    try:
        document = site.aws.call("sagemaker", "describe_cluster", ClusterName=arn)
    except ResourceNotFound:
        return evaluate.judge_hyperpod(arn, None)
    return evaluate.judge_hyperpod(arn, document)


def kubernetes(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    tests, problems = site.self_tests()
    states = {cluster: _eks_state(site, cluster) for cluster in site.clusters()}
    return evaluate.judge_kubernetes(states, tests, problems)


def _eks_state(site: InspectedSite, cluster: str) -> str:
    try:
        return str(site.aws.call("eks", "describe_cluster", name=cluster)["cluster"].get("status", ""))
    except ResourceNotFound:
        return "NOT_FOUND"
    except CouldNotCheck:
        return ""  # each function's own check reports the cause


def access(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    tests, problems = site.self_tests()
    groups = {function: site.rights.groups_of(function) for function in tests}
    problem = site.namespaces_problem()
    partly = (
        [unknown(f"Namespaces of teams were not tested: {problem}", "evenkeel teams ls", "teams")] if problem else []
    )
    return [*evaluate.judge_access(tests, site.roles(), groups), *evaluate.judge_untested(problems), *partly]


def kueue(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    return evaluate.judge_kueue(_reader_test(site), site.namespaces())


def policy(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    return evaluate.judge_policy(_reader_test(site)["policy"])


def _reader_test(site: InspectedSite) -> Json:
    tests, problems = site.self_tests()
    if KUEUE_READER not in tests:
        raise CouldNotCheck(*problems.get(KUEUE_READER, ("No function could be tested.", "docs/operate/doctor.md")))
    return tests[KUEUE_READER]


def versions(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    from importlib.metadata import version

    tests, _ = site.self_tests()
    if not tests:
        _reader_test(site)
    return evaluate.judge_versions(version("evenkeel"), tests)


def queues(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    return evaluate.judge_queues(_message_count(site, "EventsQueue"), _message_count(site, "CyclesQueue"))


def dead_letters(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    return evaluate.judge_dead_letters({name: _message_count(site, name) for name in evaluate.DEAD_LETTERS})


def _message_count(site: InspectedSite, queue: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    url = site.output(f"{queue}Url")
    attributes = site.aws.call("sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(attributes[name]) for name in names)


def schedules(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    return evaluate.judge_schedules({function: _schedule_state(site, function) for function in SCHEDULED}, ENABLE)


def _schedule_state(site: InspectedSite, function: str) -> str:
    try:
        return str(site.aws.call("scheduler", "get_schedule", Name=f"{site.stack}-{function}").get("State", ""))
    except ResourceNotFound:
        return ""


def sources(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    sources = _read_overview(site).get("sourceAges")
    if not sources:
        raise CouldNotCheck("The deployed API does not report the ages of sources.", "Deploy this version: make deploy")
    return evaluate.judge_sources(sources)


def _read_overview(site: InspectedSite) -> Json:
    try:
        return site.overview()
    except CommandFailed as problem:
        raise CouldNotCheck(f"The API call failed: {problem.text}", problem.hint or "evenkeel status") from problem


def ages(site: InspectedSite, now: datetime) -> list[DoctorFinding]:
    overview = _read_overview(site)
    states = {}
    for function in SCHEDULED:
        try:
            states[function] = _schedule_state(site, function)
        except CouldNotCheck:
            continue
    ages = {heartbeat["function"]: _seconds_since(heartbeat["at"], now) for heartbeat in overview["heartbeats"]}
    return evaluate.judge_ages(ages, states, _deployed_seconds(site, now))


def _deployed_seconds(site: InspectedSite, now: datetime) -> float | None:
    """Return how long ago the stack was deployed; None if that cannot be read."""
    try:
        description = site.stack_description()
    except CouldNotCheck:
        return None
    at = description.get("LastUpdatedTime") or description.get("CreationTime")
    return None if at is None else max(0.0, (now - at).total_seconds())


def _seconds_since(instant: str | None, now: datetime) -> float | None:
    return None if instant is None else max(0.0, (now - datetime.fromisoformat(instant)).total_seconds())


def concurrency(site: InspectedSite, now: datetime) -> list[DoctorFinding]:
    limits = site.aws.call("lambda", "get_account_settings")["AccountLimit"]
    try:
        peak = _read_metric(site, now, "AWS/Lambda", "ConcurrentExecutions", "Maximum")
    except CouldNotCheck:
        peak = None
    return evaluate.judge_concurrency(limits["ConcurrentExecutions"], limits["UnreservedConcurrentExecutions"], peak)


def events(site: InspectedSite, now: datetime) -> list[DoctorFinding]:
    has_metrics = site.parameter("LocalEngine") != "true"
    counts_by_rule: dict[str, Json] = {}
    for logical in RULES:
        name = site.resources().get(logical, "")
        counts_by_rule[logical] = {"state": _rule_state(site, name), "matched": None, "failed": None}
        if has_metrics and name:
            for field, metric in (("matched", "MatchedEvents"), ("failed", "FailedInvocations")):
                counts_by_rule[logical][field] = (
                    _read_metric(site, now, "AWS/Events", metric, "Sum", RuleName=name) or 0.0
                )
    return evaluate.judge_events(counts_by_rule)


def _rule_state(site: InspectedSite, name: str) -> str:
    if not name:
        return ""
    try:
        return str(site.aws.call("events", "describe_rule", Name=name.rpartition("|")[2]).get("State", ""))
    except ResourceNotFound:
        return ""


def _read_metric(
    site: InspectedSite, now: datetime, namespace: str, name: str, statistic: str, **dimensions: str
) -> float | None:
    """Return a metric's sum or maximum of the last day; None if there is no data point."""
    answer = site.aws.call(
        "cloudwatch",
        "get_metric_statistics",
        Namespace=namespace,
        MetricName=name,
        Dimensions=[{"Name": key, "Value": value} for key, value in dimensions.items()],
        StartTime=now - _DAY,
        EndTime=now,
        Period=3600,
        Statistics=[statistic],
    )
    points = [float(point[statistic]) for point in answer.get("Datapoints", ())]
    if not points:
        return None
    return max(points) if statistic == "Maximum" else sum(points)


def pages(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    topic = site.output("PageTopicArn")
    subscriptions = site.aws.call("sns", "list_subscriptions_by_topic", TopicArn=topic)["Subscriptions"]
    return evaluate.judge_pages([subscription["SubscriptionArn"] for subscription in subscriptions], topic)


def fleets(site: InspectedSite, _now: datetime) -> list[DoctorFinding]:
    own_name = site.parameter("FleetName")
    fleet_documents: dict[str, Json] = {}
    token: dict[str, str] = {}
    while True:
        page = site.aws.call("ssm", "get_parameters_by_path", Path=evaluate.FLEETS, **token)
        for parameter in page["Parameters"]:
            try:
                fleet_documents[parameter["Name"].rpartition("/")[2]] = json.loads(parameter["Value"])
            except ValueError:
                raise CouldNotCheck(
                    f"The parameter {parameter['Name']} is not JSON.", "Deploy that stack again."
                ) from None
        if not page.get("NextToken"):
            break
        token = {"NextToken": page["NextToken"]}
    other_fleets = {name: fleet_document for name, fleet_document in fleet_documents.items() if name != own_name}
    return evaluate.judge_fleets(site.clusters(), site.parameter("HyperPodClusterArn"), other_fleets)


ENABLE = "set Schedules=on in samconfig.toml, then make deploy (docs/deploy.md, step 9)"
"""How to turn the schedules on."""

CHECKS = (
    DoctorCheck("credentials", credentials, "your identity in AWS"),
    DoctorCheck("stack", stack, "whether the stack is deployed, and whether the command talks to its API"),
    DoctorCheck("api", api, "whether the API answers you, the mode, holds", if_unanswered=Status.FAILED),
    DoctorCheck("api-logs", api_logs, "whether API Gateway has a role to write access logs with"),
    DoctorCheck("hyperpod", hyperpod, "the HyperPod cluster: state, `NodeRecovery`, patch level"),
    DoctorCheck("kubernetes", kubernetes, "which EKS clusters answer the functions"),
    DoctorCheck("access", access, "which verbs each function's role lacks in Kubernetes"),
    DoctorCheck("kueue", kueue, "whether Kueue admits where Evenkeel's jobs run"),
    DoctorCheck("queues", queues, "messages that wait in the queues"),
    DoctorCheck("dead-letters", dead_letters, "messages in the dead-letter queues"),
    DoctorCheck("schedules", schedules, "whether the schedules are on"),
    DoctorCheck("ages", ages, "how long ago each scheduled function finished"),
    DoctorCheck("sources", sources, "when each source of facts last answered"),
    DoctorCheck("concurrency", concurrency, "free concurrent Lambda invocations"),
    DoctorCheck("events", events, "whether the event rules are on, and matched events in the last day"),
    DoctorCheck("pages", pages, "whether alarms reach a person"),
    DoctorCheck("fleets", fleets, "whether another fleet of the account and region has the same clusters"),
    DoctorCheck("policy", policy, "which policy is in force"),
    DoctorCheck("versions", versions, "versions of the command, the functions, their layer and the API servers"),
)


def run(
    site: Any,
    now: datetime,
    skipped_names: Collection[str] = (),
    table: Iterable[DoctorCheck] = CHECKS,
    seconds: float = CHECK_SECONDS,
) -> list[DoctorFinding]:
    """Run the checks in parallel and return their findings in the order of the table.

    A check that fails, cannot read its facts or takes longer than `seconds` gives one finding. Other checks continue.
    """
    chosen_checks = [check for check in table if check.name not in skipped_names]
    # All in parallel: most checks wait for the network, and a slow service delays only the checks that use it.
    answers = answers_within(
        seconds, [partial(_run_check, check, site, now) for check in chosen_checks], len(chosen_checks)
    )
    findings_by_check = [
        (check, answer or [_timeout_finding(check, seconds)])
        for check, answer in zip(chosen_checks, answers, strict=True)
    ]
    return [replace(finding, check=check.name) for check, findings in findings_by_check for finding in findings]


def _timeout_finding(check: DoctorCheck, seconds: float) -> DoctorFinding:
    return DoctorFinding(check.if_unanswered, f"No answer in {seconds:g} s.", "docs/operate/doctor.md#no-answer")


def _run_check(check: DoctorCheck, site: Any, now: datetime) -> list[DoctorFinding]:
    try:
        return check.run(site, now) or [unknown("The check found nothing to judge.", "docs/operate/doctor.md")]
    except CouldNotCheck as error:
        return [unknown(error.reason, error.fix)]
    except ResourceNotFound as error:
        return [unknown(str(error), "Deploy the stack again: make deploy")]
    except CommandFailed as error:
        return [unknown(error.text, error.hint)]
    except Exception as error:  # noqa: BLE001 - a broken check is reported; other checks continue
        return [unknown(f"The check itself failed: {type(error).__name__}: {error}", "docs/operate/doctor.md")]
