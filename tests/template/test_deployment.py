"""The resources of the stack: no message is lost silently, no access is open, and every failure has an alarm."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenkeel.domain.policy import Policy
from evenkeel.runtime.settings import Settings
from tests.template import statements
from tests.template.documents import ROOT, Json, resources, strings, template, translated

FUNCTIONS = resources("AWS::Serverless::Function")
MACHINES = resources("AWS::Serverless::StateMachine")
QUEUES = resources("AWS::SQS::Queue")
RULES = resources("AWS::Events::Rule")
ALARMS = resources("AWS::CloudWatch::Alarm")
SCHEDULES = resources("AWS::Scheduler::Schedule", translated())
DEAD_LETTERS = {name for name, queue in QUEUES.items() if "RedrivePolicy" not in queue}
RUNBOOKS = ROOT / "docs" / "runbooks"
A_DAY = 86_400
ENDPOINTS = {
    "AWS_ENDPOINT_URL_SAGEMAKER": "SageMakerEndpoint",
    "AWS_ENDPOINT_URL_EKS": "EksEndpoint",
    "AWS_ENDPOINT_URL_AUTO_SCALING": "AutoScalingEndpoint",
}
"""Variable with the endpoint of an emulator → its parameter."""


def arn_of(value: Any) -> str:
    """Return the logical id behind a GetAtt of an ARN, or a Ref, also of an alias."""
    if "Ref" in value:
        return str(value["Ref"]).removesuffix(".Alias").removesuffix("Aliaslive")
    target = value["Fn::GetAtt"]
    return str(target[0] if isinstance(target, list) else target.split(".")[0])


def alarms_by_resource(namespace: str, metric: str, dimension_name: str) -> dict[str, Json]:
    """Return the alarms of one metric, by logical id of the watched resource."""
    alarms = {}
    for alarm in ALARMS.values():
        if (alarm.get("Namespace"), alarm.get("MetricName")) == (namespace, metric):
            for dimension in alarm["Dimensions"]:
                if dimension["Name"] == dimension_name:
                    watched = dimension["Value"]
                    alarms[arn_of(watched) if isinstance(watched, dict) else str(watched)] = alarm
    return alarms


# ---------------------------------------------------------------- code and settings


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_each_function_has_a_handler_module(name: str) -> None:
    source = (ROOT / FUNCTIONS[name]["CodeUri"] / "handler.py").read_text(encoding="utf-8")
    assert "handler" in {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}, (
        "define `handler` in handler.py of this folder"
    )


def test_every_folder_of_functions_is_deployed() -> None:
    folders = {f"functions/{path.parent.name}/" for path in (ROOT / "functions").glob("*/handler.py")}
    assert {function["CodeUri"] for function in FUNCTIONS.values()} == folders, (
        "declare each folder of functions/ in template.yaml, and delete the other folders"
    )


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_function_environment_has_only_existing_settings(name: str) -> None:
    common = template()["Globals"]["Function"]["Environment"]["Variables"]
    own = FUNCTIONS[name].get("Environment", {}).get("Variables", {})
    known = {field.alias for field in Settings.model_fields.values()}
    of_libraries = {"PYDANTIC_DISABLE_PLUGINS"}
    assert set(common) - set(ENDPOINTS) - {"EVENKEEL_DEPLOYMENT"} - of_libraries <= known
    assert set(own) <= known
    assert not set(own) & set(common)


@pytest.mark.parametrize(("variable", "parameter"), ENDPOINTS.items())
def test_emulator_endpoint_is_unset_unless_its_parameter_is_given(variable: str, parameter: str) -> None:
    document = template()
    value = document["Globals"]["Function"]["Environment"]["Variables"][variable]
    assert value == {"Fn::If": [f"Has{parameter}", {"Ref": parameter}, {"Ref": "AWS::NoValue"}]}
    assert document["Conditions"][f"Has{parameter}"] == {"Fn::Not": [{"Fn::Equals": [{"Ref": parameter}, ""]}]}
    assert document["Parameters"][parameter]["Default"] == ""


def test_stack_with_default_parameters_only_observes() -> None:
    parameters = template()["Parameters"]
    assert parameters["Mode"]["Default"] == "observe"
    assert parameters["Admission"]["Default"] == "evenkeel"
    assert parameters["DrillsMayAct"]["Default"] == "false"
    assert parameters["Policy"]["Default"] == "production"
    assert parameters["LocalEngine"]["Default"] == "false"


def test_layer_installs_the_locked_versions() -> None:
    def pinned_versions(path: Path) -> list[str]:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]

    assert pinned_versions(ROOT / "shared" / "requirements.txt") == pinned_versions(
        ROOT / "requirements" / "layer.txt"
    ), "run `make lock`: shared/requirements.txt follows requirements/layer.txt"


def test_watch_ends_before_its_function() -> None:
    watch = Policy().watch
    assert FUNCTIONS["WatchCluster"]["Timeout"] > watch.watch_seconds + watch.tick_seconds


# ---------------------------------------------------------------- nothing is lost


@pytest.mark.parametrize("name", sorted(RULES))
def test_rule_sends_undelivered_events_to_a_dead_letter_queue(name: str) -> None:
    (target,) = RULES[name]["Targets"]
    assert arn_of(target["Arn"]) == "EventsQueue"
    assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": A_DAY, "MaximumRetryAttempts": 185}
    assert arn_of(target["DeadLetterConfig"]["Arn"]) in DEAD_LETTERS
    assert name in alarms_by_resource("AWS/Events", "InvocationsFailedToBeSentToDlq", "RuleName")


def matches(pattern: Json, event: Json) -> bool:
    """Return whether a pattern matches an event, for the EventBridge operators in the rules."""
    for field, wanted in pattern.items():
        value = event.get(field)
        exact = value in [pattern for pattern in wanted if isinstance(pattern, str)]
        prefixed = any(str(value).startswith(pattern["prefix"]) for pattern in wanted if isinstance(pattern, dict))
        if not exact and not prefixed:
            return False
    return True


@pytest.mark.parametrize("source", ["aws.sagemaker", "evenkeel.drill"])
@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "fixtures" / "events").rglob("*.json")), ids=lambda p: p.stem)
def test_each_event_matches_at_most_one_rule(path: Path, source: str) -> None:
    event = {**json.loads(path.read_text(encoding="utf-8", errors="replace")), "source": source}
    is_ours = source == "evenkeel.drill" or event["detail-type"].startswith("SageMaker HyperPod ")

    assert sum(matches(rule["EventPattern"], event) for rule in RULES.values()) == int(is_ours)


@pytest.mark.parametrize("name", sorted(set(QUEUES) - DEAD_LETTERS))
def test_queue_has_a_dead_letter_queue_of_its_kind(name: str) -> None:
    queue = QUEUES[name]
    keeper = arn_of(queue["RedrivePolicy"]["deadLetterTargetArn"])
    assert keeper in DEAD_LETTERS
    assert QUEUES[keeper].get("FifoQueue") == queue.get("FifoQueue")
    assert 3 <= queue["RedrivePolicy"]["maxReceiveCount"] <= 10
    assert name in alarms_by_resource("AWS/SQS", "ApproximateAgeOfOldestMessage", "QueueName")


@pytest.mark.parametrize("name", sorted(DEAD_LETTERS))
def test_dead_letter_queue_has_retention_and_an_alarm(name: str) -> None:
    # The next cycle repeats a failed cycle's work, so its request is kept only as long as the alarm needs.
    assert QUEUES[name]["MessageRetentionPeriod"] == (900 if name == "FailedCyclesQueue" else 14 * A_DAY)
    assert alarms_by_resource("AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName")[name]["Threshold"] == 0


def sources_of_functions() -> Iterator[tuple[str, Json]]:
    for name, function in FUNCTIONS.items():
        for event in function.get("Events", {}).values():
            if event["Type"] == "SQS":
                yield name, event["Properties"]


def test_queue_consumers_report_failed_items_and_end_before_redelivery() -> None:
    for name, source in sources_of_functions():
        queue = QUEUES[arn_of(source["Queue"])]
        timeout = FUNCTIONS[name].get("Timeout", template()["Globals"]["Function"]["Timeout"])
        assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"], name
        assert queue["VisibilityTimeout"] >= 2 * timeout, name
    assert {name for name, _ in sources_of_functions()} == {"ReceiveEvent", "ScheduleJobs"}


def test_only_functions_before_a_cordon_may_reserve_concurrency() -> None:
    reserving = {
        name: function["ReservedConcurrentExecutions"]
        for name, function in FUNCTIONS.items()
        if "ReservedConcurrentExecutions" in function
    }
    parameter = template()["Parameters"]["CordonConcurrency"]
    allowed = [number for number in range(1001) if re.fullmatch(parameter["AllowedPattern"], str(number))]
    scaling = dict(sources_of_functions())["ReceiveEvent"]["ScalingConfig"]

    assert set(reserving) == {"ReceiveEvent", "PlanRecovery", "CordonNode"}
    for value in reserving.values():
        assert value == {"Fn::If": ["ReservesConcurrency", {"Ref": "CordonConcurrency"}, {"Ref": "AWS::NoValue"}]}
    assert parameter["Default"] == "0"
    assert allowed[:2] == [0, scaling["MaximumConcurrency"]], (
        "reserve at least MaximumConcurrency: with less, Lambda would throttle the events queue"
    )


def test_only_functions_before_a_cordon_may_start_from_snapshots() -> None:
    value = {"Fn::If": ["UsesSnapshots", {"ApplyOn": "PublishedVersions"}, {"Ref": "AWS::NoValue"}]}
    document = template()
    (rule,) = document["Rules"]["SnapshotsNeedTheirRuntime"]["Assertions"]

    assert document["Parameters"]["SnapStart"]["Default"] == "off"
    assert document["Parameters"]["PythonRuntime"]["Default"] != "python3.11", (
        "choose a newer runtime: Lambda has no snapshots for this one"
    )
    assert rule["Assert"] == {"Fn::Not": [{"Fn::Equals": [{"Ref": "PythonRuntime"}, "python3.11"]}]}
    assert {
        name: function["SnapStart"] for name, function in FUNCTIONS.items() if "SnapStart" in function
    } == dict.fromkeys(("ReceiveEvent", "PlanRecovery", "CordonNode"), value)
    # A snapshot excludes provisioned concurrency, file systems and more than 512 MB of temporary files.
    assert not any(
        {"ProvisionedConcurrencyConfig", "FileSystemConfigs", "EphemeralStorage"} & set(function)
        for function in FUNCTIONS.values()
    )


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_schedule_is_disabled_by_default(name: str) -> None:
    assert template()["Parameters"]["Schedules"]["Default"] == "off"
    assert SCHEDULES[name]["State"] == {"Fn::If": ["SchedulesAreOn", "ENABLED", "DISABLED"]}


@pytest.mark.parametrize("environment", ["local", "dev", "prod"])
def test_only_the_local_data_centre_enables_schedules(environment: str) -> None:
    settings = tomllib.loads((ROOT / "samconfig.toml").read_text(encoding="utf-8"))
    overrides = settings[environment]["deploy"]["parameters"]["parameter_overrides"]
    assert [override for override in overrides if override.startswith("Schedules=")] == [
        "Schedules=on" if environment == "local" else "Schedules=off"
    ]


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_failed_scheduled_run_leaves_no_message(name: str) -> None:
    target = SCHEDULES[name]["Target"]
    function = FUNCTIONS[arn_of(target["Arn"])]
    assert "DeadLetterConfig" not in target, "remove the queue: its alarm would stay until an operator purges it"
    assert "DestinationConfig" not in function["EventInvokeConfig"]
    assert function["EventInvokeConfig"]["MaximumRetryAttempts"] == 0
    assert target["RetryPolicy"]["MaximumEventAgeInSeconds"] <= 60, (
        "drop late runs: the run of the next minute does the same work"
    )
    assert arn_of(target["RoleArn"]) == "SchedulerRole"


def scheduled_functions() -> set[str]:
    """Return the functions that a schedule invokes."""
    return {arn_of(schedule["Target"]["Arn"]) for schedule in SCHEDULES.values()}


def asynchronous_functions() -> set[str]:
    """Return the functions that are invoked asynchronously."""
    scheduled = scheduled_functions()
    invoked = {
        arn_of(resource)
        for statement in statements.of_roles()
        if statement.sid == "InvokeResolveWait"
        for resource in statement.resources
    }
    return scheduled | invoked


def test_exactly_four_functions_are_invoked_asynchronously() -> None:
    assert asynchronous_functions() == {"ScheduleJobs", "WatchCluster", "SweepFleet", "ResolveWait"}


@pytest.mark.parametrize("name", sorted(asynchronous_functions() - scheduled_functions()))
def test_asynchronous_function_sends_failed_events_to_a_dead_letter_queue(name: str) -> None:
    config = FUNCTIONS[name]["EventInvokeConfig"]
    assert config["MaximumEventAgeInSeconds"] <= 3600
    assert config["MaximumRetryAttempts"] <= 2
    failure = config["DestinationConfig"]["OnFailure"]
    assert failure["Type"] == "SQS"
    assert arn_of(failure["Destination"]) in DEAD_LETTERS
    allowed = [s for s in statements.of_roles() if s.owner == f"{name}Role" and "sqs:SendMessage" in s.actions]
    assert failure["Destination"] in [resource for statement in allowed for resource in statement.resources]


# ---------------------------------------------------------------- everything that may fail has an alarm, and a page


@pytest.mark.parametrize("name", sorted(MACHINES))
@pytest.mark.parametrize("metric", ["ExecutionsFailed", "ExecutionsTimedOut", "ExecutionsAborted"])
def test_failed_execution_of_each_workflow_raises_an_alarm(name: str, metric: str) -> None:
    assert alarms_by_resource("AWS/States", metric, "StateMachineArn")[name]["Threshold"] == 0


def test_every_function_has_an_alarm_on_its_errors() -> None:
    behind_the_api = {name for name in FUNCTIONS if name.startswith("Api")}
    assert set(alarms_by_resource("AWS/Lambda", "Errors", "FunctionName")) == set(FUNCTIONS) - behind_the_api, (
        "add an alarm FUNCTIONErrorsAlarm to template.yaml, or remove it with its function"
    )
    assert alarms_by_resource("AWS/ApiGateway", "5XXError", "ApiName")


def test_silent_scheduled_function_raises_an_alarm() -> None:
    beats = alarms_by_resource("Evenkeel", "Heartbeat", "Function")
    scheduled = {arn_of(schedule["Target"]["Arn"]) for schedule in SCHEDULES.values()}
    assert {"".join(word.capitalize() for word in name.split("_")) for name in beats} == scheduled
    for alarm in beats.values():
        assert alarm["TreatMissingData"] == "breaching"
        assert {"Name": "Fleet", "Value": {"Ref": "FleetName"}} in alarm["Dimensions"]
        assert alarm["Period"] * alarm["EvaluationPeriods"] == 600
        assert alarm["ActionsEnabled"] == {"Fn::If": ["SchedulesAreOn", True, False]}


def runbook_of(alarm: Json) -> str:
    match = re.search(r"Runbook: docs/runbooks/([a-z-]+)\.md$", alarm["AlarmDescription"])
    assert match, alarm["AlarmDescription"]
    return match[1]


@pytest.mark.parametrize("name", sorted(ALARMS))
def test_alarm_has_a_severity_and_a_runbook(name: str) -> None:
    pages = {"Alarm": [{"Ref": "PageTopic"}], "Ticket": []}
    assert ALARMS[name].get("AlarmActions", []) == pages["Ticket" if name.endswith("Ticket") else "Alarm"], (
        "let an alarm page, and a ticket send no page"
    )
    assert name.endswith(tuple(pages)), "end the name of an alarm with Alarm (it pages) or Ticket"
    assert (RUNBOOKS / f"{runbook_of(ALARMS[name])}.md").exists(), "write the page of this alarm in docs/runbooks/"


def runbooks_named_in_code() -> set[str]:
    """Return the runbooks in calls of the logger, as literals or constants of the module."""
    names: set[str] = set()
    for path in (ROOT / "shared" / "evenkeel").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        names |= set(re.findall(r"(?:runbook=|RUNBOOK = )\"([a-z-]+)\"", text))
    return names


def test_runbooks_match_alarms_and_log_lines() -> None:
    written = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert written == {runbook_of(alarm) for alarm in ALARMS.values()} | runbooks_named_in_code(), (
        "write a page in docs/runbooks/ for each alarm, and delete pages that no alarm and no log line names"
    )


def log_filters() -> list[tuple[str, str]]:
    """Return the page and each word that a runbook searches for in the logs of a function."""
    return [
        (path.stem, word)
        for path in sorted(RUNBOOKS.glob("*.md"))
        for pattern in re.findall(r"/aws/lambda/.*--filter-pattern (.+)$", path.read_text("utf-8"), re.MULTILINE)
        for word in re.findall(r"\w+", pattern.partition(" --")[0])
    ]


def test_runbooks_search_logs_for_words_that_evenkeel_writes() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "shared" / "evenkeel").rglob("*.py"))
    unknown = [name for name in log_filters() if not re.search(rf'"{name[1]}"|class {name[1]}\(', code)]
    assert unknown == [], "search for a message, a level, a code or the class of an error"
    assert ("writes-rejected", "WriteRefused") in log_filters()


@pytest.mark.parametrize("path", sorted(RUNBOOKS.glob("[a-z]*.md")), ids=lambda path: path.stem)
def test_runbook_has_the_sections_for_a_person_on_call(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Run this first", "What Evenkeel has done already", "How to tell it went well", "Stop or undo"]
    assert "```" in text.split("## What")[0], (
        "write a command to run before the heading `What Evenkeel has done already`"
    )


# ---------------------------------------------------------------- nothing is open, nothing is kept for ever


@pytest.mark.parametrize("name", ["JobsTable", "IncidentsTable", "FleetTable", "QuotasTable"])
def test_tables_are_protected_and_share_one_schema(name: str) -> None:
    whole = template()["Resources"][name]
    table = whole["Properties"]
    assert table == resources("AWS::DynamoDB::Table")["JobsTable"]
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert table["DeletionProtectionEnabled"] == {"Fn::If": ["ProtectsTables", True, False]}
    assert table["SSESpecification"] == {"SSEEnabled": True}
    assert table["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}
    (index,) = table["GlobalSecondaryIndexes"]
    assert index["IndexName"] == "byState"
    assert [key["AttributeName"] for key in index["KeySchema"]] == ["stateKey", "stateSort"]
    assert whole["DeletionPolicy"] == "RetainExceptOnCreate"
    assert whole["UpdateReplacePolicy"] == "Retain"


def test_tables_are_protected_by_default_once_the_schedules_run() -> None:
    document = template()

    assert document["Parameters"]["TableProtection"]["Default"] == "on"
    # A failed first deployment deletes its tables. They are empty, because the schedules are off.
    assert document["Conditions"]["ProtectsTables"] == {
        "Fn::And": [{"Fn::Equals": [{"Ref": name}, "on"]} for name in ("TableProtection", "Schedules")]
    }


def test_stack_has_the_four_expected_tables() -> None:
    assert set(resources("AWS::DynamoDB::Table")) == {"JobsTable", "IncidentsTable", "FleetTable", "QuotasTable"}, (
        "a new table needs a decision record, backups and a row in docs/ownership.md; then name it here"
    )


def test_archive_is_private_encrypted_and_expires() -> None:
    bucket = resources("AWS::S3::Bucket")["RawEventsBucket"]
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    (life,) = bucket["LifecycleConfiguration"]["Rules"]
    assert life["ExpirationInDays"] == 30
    (statement,) = resources("AWS::S3::BucketPolicy")["RawEventsBucketPolicy"]["PolicyDocument"]["Statement"]
    assert statement["Effect"] == "Deny"
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_queues_and_topic_are_encrypted() -> None:
    assert all(queue["SqsManagedSseEnabled"] is True for queue in QUEUES.values())
    for topic in resources("AWS::SNS::Topic").values():
        # Under AWS's own key for SNS, CloudWatch may not publish.
        assert topic["KmsMasterKeyId"] == {"Ref": "PageKey"}
    key = resources("AWS::KMS::Key")["PageKey"]
    assert key["EnableKeyRotation"] is True
    principals = [statement["Principal"] for statement in key["KeyPolicy"]["Statement"]]
    assert {"Service": "cloudwatch.amazonaws.com"} in principals


def test_only_alarms_and_declared_roles_publish_to_the_topic() -> None:
    policy = resources("AWS::SNS::TopicPolicy")["PageTopicPolicy"]
    assert policy["Topics"] == [{"Ref": "PageTopic"}]
    statement = policy["PolicyDocument"]["Statement"][0]
    assert statement["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}
    to_pages = [s for s in statements.of_roles() if {"Ref": "PageTopic"} in s.resources]
    publishers = {s.owner for s in to_pages if "sns:Publish" in s.actions}
    assert publishers == {"SettleIncidentRole", "RepairNodeRole"}
    assert publishers == {s.owner for s in statements.of_roles() if s.sid == "EncryptPages"}


def test_streams_keep_each_change_until_it_is_published() -> None:
    sources = FUNCTIONS["PublishEvents"]["Events"].values()
    streams = {
        source["Properties"]["Stream"]["Fn::GetAtt"].split(".")[0]
        if isinstance(source["Properties"]["Stream"]["Fn::GetAtt"], str)
        else source["Properties"]["Stream"]["Fn::GetAtt"][0]
        for source in sources
    }
    assert streams == set(resources("AWS::DynamoDB::Table"))
    for source in sources:
        # Without a limit, Lambda repeats a failed batch as long as the stream keeps it.
        assert not {"MaximumRetryAttempts", "MaximumRecordAgeInSeconds"} & source["Properties"].keys()
        for filter_document in source["Properties"]["FilterCriteria"]["Filters"]:
            pattern = json.loads(filter_document["Pattern"])
            assert "REMOVE" not in pattern["eventName"]
            # The lists of events and of decisions are in a streamed table, too. They must not publish themselves.
            assert not any(prefix in filter_document["Pattern"] for prefix in ("EVT#", "DECIDED#"))
            assert pattern["dynamodb"]["Keys"]["pk"]


def test_every_log_source_has_a_group_with_retention() -> None:
    groups = resources("AWS::Logs::LogGroup")
    assert all(group["RetentionInDays"] == {"Ref": "LogRetentionDays"} for group in groups.values())
    for name, function in FUNCTIONS.items():
        assert function["LoggingConfig"]["LogGroup"] == {"Ref": f"{name}Logs"}
    for name, machine in MACHINES.items():
        (destination,) = machine["Logging"]["Destinations"]
        assert arn_of(destination["CloudWatchLogsLogGroup"]["LogGroupArn"]) == f"{name}Logs"
    condition, access_log, without = resources("AWS::Serverless::Api")["Api"]["AccessLogSetting"]["Fn::If"]
    assert arn_of(access_log["DestinationArn"]) == "ApiLogs"
    assert template()["Resources"]["ApiLogs"]["Condition"] == condition
    assert without == {"Ref": "AWS::NoValue"}
    owners = {f"{name}Logs" for name in (*FUNCTIONS, *MACHINES, "Api")}
    assert set(groups) == owners


def test_task_tokens_stay_out_of_the_logs() -> None:
    for machine in MACHINES.values():
        assert machine["Logging"]["IncludeExecutionData"] is False


def test_functions_and_machines_are_traced() -> None:
    assert template()["Globals"]["Function"]["Tracing"] == "Active"
    assert all(machine["Tracing"] == {"Enabled": True} for machine in MACHINES.values())
    assert resources("AWS::Serverless::Api")["Api"]["TracingEnabled"] is True


def test_api_is_throttled() -> None:
    (settings,) = resources("AWS::Serverless::Api")["Api"]["MethodSettings"]
    assert (settings["ResourcePath"], settings["HttpMethod"]) == ("/*", "*")
    assert 0 < settings["ThrottlingRateLimit"] <= settings["ThrottlingBurstLimit"]
    assert settings["DataTraceEnabled"] is False


def test_template_names_no_account_region_or_local_path() -> None:
    for path, text in strings(template()["Resources"]):
        assert not re.search(r"\b\d{12}\b|us-(east|west)-\d|localhost|127\.0\.0\.1", text), path


def test_no_parameter_holds_a_secret() -> None:
    assert not [
        name for name in template()["Parameters"] if re.search("secret|password|key|token", name, re.IGNORECASE)
    ]


def test_fleet_name_is_unique_in_account_and_region() -> None:
    record = resources("AWS::SSM::Parameter")["FleetRecord"]
    text, names = record["Value"]["Fn::Sub"]

    assert record["Name"] == {"Fn::Sub": "/evenkeel/fleets/${FleetName}"}
    assert set(json.loads(text)) == {"stack", "hyperPod", "clusters"}
    assert names == {"Clusters": {"Fn::Join": [",", {"Ref": "KubernetesClusters"}]}}


def test_outputs_hold_the_values_that_operators_need() -> None:
    outputs = set(template()["Outputs"])
    assert {"ApiId", "ApiStage", "ApiUrl", "PageTopicArn", "KubernetesRoleArns", "RawEventsBucketName"} <= outputs
    assert {f"{name}Url" for name in QUEUES} <= outputs
    assert {f"{policy}Policy" for policy in statements.people_policies()} <= outputs
    written = template()["Outputs"]["KubernetesRoleArns"]["Value"]["Fn::Join"][1]
    named = {re.sub(r"=.*", "", row["Fn::Sub"]) for row in written}
    calls_kubernetes = {
        function["CodeUri"].split("/")[1]
        for name, function in FUNCTIONS.items()
        if any(s.sid == "FindKubernetes" and s.owner == f"{name}Role" for s in statements.of_roles())
    }
    assert named == calls_kubernetes
    entries = json.loads((ROOT / "charts" / "access-entries.json").read_text(encoding="utf-8"))
    assert set(entries) == calls_kubernetes
