"""Each check of `evenkeel doctor` runs on a healthy stack, and with each fault that it must report."""

import functools
import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
from botocore.exceptions import EndpointConnectionError, HTTPClientError, ReadTimeoutError, SSLError

import evenkeel
from evenkeel_cli.commands.doctor import print_findings
from evenkeel_cli.doctor import checks, findings
from evenkeel_cli.doctor import site as site_module
from evenkeel_cli.doctor.checks import CHECKS
from evenkeel_cli.doctor.evaluate import DEAD_LETTERS
from evenkeel_cli.doctor.findings import CouldNotCheck, DoctorFinding, Status
from evenkeel_cli.doctor.predeployment import CHECKS_BEFORE_DEPLOYMENT
from evenkeel_cli.doctor.site import BadCredentials, BotocoreAws, InspectedSite, ResourceNotFound
from evenkeel_cli.offline import access
from evenkeel_cli.render import Printer
from evenkeel_client.context import ApiContext
from evenkeel_client.errors import CommandFailed, Exit
from tests import aws_shapes
from tests.fakes.system import A_MOMENT
from tests.template.statements import of_on_call

ROOT = Path(__file__).parents[3]
Json = dict[str, Any]

CLUSTER = "research-eks"
HYPERPOD = "arn:aws:sagemaker:us-west-2:111122223333:cluster/k3v9x2m7q1ab"
URL = "https://a1b2c3.execute-api.us-west-2.amazonaws.com/api/v1"
DENIED = CouldNotCheck("Your identity may not call it.", "Use another identity.")


def self_test_answer(function: str, **changes: Any) -> Json:
    """Return the answer of a healthy function to its self test."""
    reads = function == "schedule_jobs"
    cluster: Json = {
        "cluster": CLUSTER,
        "serverVersion": "v1.33.1-eks-595af52",
        "missing": [],
        "error": "",
        "kueueNamespaces": {} if reads else None,
        "kueueError": "",
    }
    document = {
        "version": evenkeel.__version__,
        "mode": "act",
        "admission": "evenkeel",
        "policy": {"name": "production", "hash": "a1b2c3d4", "refused": "", "inForce": 0} if reads else None,
        "clusters": [cluster],
    }
    for name, value in changes.items():
        (cluster if name in cluster else document)[name] = value
    return document


@dataclass
class FakeAws:
    """A healthy account. A test plants faults: another answer to one call, or an error."""

    planted: dict[str, Any] = field(default_factory=dict)
    """Faults by `service:operation`, or by `service:operation:ARGUMENT` for one value of any argument."""
    tests: dict[str, Any] = field(default_factory=dict)
    """Answers of functions to a self test that differ from a healthy answer."""
    calls: list[tuple[str, Json]] = field(default_factory=list)

    def call(self, service: str, operation: str, **parameters: Any) -> Json:
        name = f"{service}:{operation}"
        self.calls.append((name, parameters))
        answer = self._answer_or_fault(name, parameters)
        document = {} if isinstance(answer, Exception) else answer
        aws_shapes.check_exchange(service, operation, parameters, document, newer="Sometimes")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _answer_or_fault(self, name: str, parameters: Json) -> Json | Exception:
        strings = (value.removesuffix(":live") for value in parameters.values() if isinstance(value, str))
        call_names = [f"{name}:{value}" for value in strings]
        for planted_name in (*call_names, name):
            if planted_name in self.planted:
                planted_answer = self.planted[planted_name]
                return planted_answer if isinstance(planted_answer, Exception) else dict(planted_answer)
        return self._answer(name, parameters)

    def _answer(self, name: str, parameters: Json) -> Json | Exception:
        if name == "lambda:invoke":
            return self._self_test(str(parameters["FunctionName"]).removeprefix("evenkeel-").removesuffix(":live"))
        if name == "cloudwatch:get_metric_statistics":
            count = 0.0 if "Failed" in parameters["MetricName"] else 3.0
            return {"Datapoints": [{parameters["Statistics"][0]: count}]}
        answers = _healthy_answers()
        assert name in answers, name
        return answers[name]

    def _self_test(self, function: str) -> Json | Exception:
        answer = self.tests.get(function, self_test_answer(function))
        return answer if isinstance(answer, Exception) else {"Payload": json.dumps(answer).encode()}


def _healthy_answers() -> dict[str, Json]:
    """Return the answers to the calls that depend on no argument."""
    ids = [{"LogicalResourceId": rule, "PhysicalResourceId": f"evenkeel-{rule}-1X"} for rule in checks.RULES]
    return {
        "sts:get_caller_identity": {"Arn": "arn:aws:sts::111122223333:assumed-role/OnCall/ana"},
        "cloudformation:describe_stacks": {"Stacks": [a_stack()]},
        "cloudformation:list_stack_resources": {"StackResourceSummaries": ids},
        "apigateway:get_account": {"cloudwatchRoleArn": "arn:aws:iam::111122223333:role/api-logs"},
        "sagemaker:describe_cluster": a_hyperpod(),
        "eks:describe_cluster": {"cluster": {"status": "ACTIVE"}},
        "lambda:get_account_settings": {
            "AccountLimit": {"ConcurrentExecutions": 1000, "UnreservedConcurrentExecutions": 1000}
        },
        "sqs:get_queue_attributes": queue_with_messages(0),
        "scheduler:get_schedule": {"State": "ENABLED"},
        "events:describe_rule": {"State": "ENABLED"},
        "ssm:get_parameters_by_path": {"Parameters": []},
        "sns:list_subscriptions_by_topic": {
            "Subscriptions": [{"SubscriptionArn": "arn:aws:sns:us-west-2:111122223333:pages:1"}]
        },
    }


def a_stack(status: str = "CREATE_COMPLETE", **parameters: str) -> Json:
    stack_parameters = {
        "FleetName": "research",
        "HyperPodClusterArn": HYPERPOD,
        "KubernetesClusters": CLUSTER,
        "JobNamespace": "evenkeel-jobs",
        "LocalEngine": "false",
        **parameters,
    }
    queues = ("EventsQueue", "CyclesQueue", *DEAD_LETTERS)
    outputs = {f"{name}Url": f"https://sqs/{name}" for name in queues} | {
        "ApiId": "a1b2c3",
        "ApiUrl": URL,
        "PageTopicArn": "arn:aws:sns:us-west-2:111122223333:pages",
        "KubernetesRoleArns": ",".join(
            f"{name}=arn:aws:iam::111122223333:role/{name}" for name in access.functions_with_access()
        ),
    }
    return {
        "StackStatus": status,
        "CreationTime": A_MOMENT - timedelta(days=1),
        "Parameters": [{"ParameterKey": key, "ParameterValue": value} for key, value in stack_parameters.items()],
        "Outputs": [{"OutputKey": key, "OutputValue": value} for key, value in outputs.items()],
    }


def stack_with(status: str = "CREATE_COMPLETE", **parameters: str) -> Json:
    return {"Stacks": [a_stack(status, **parameters)]}


def a_hyperpod(level: str | None = "UpToDate", **changes: Any) -> Json:
    group = {"InstanceGroupName": "p5-workers", **({"ImageVersionStatus": level} if level else {})}
    cluster = {
        "ClusterName": "research",
        "ClusterStatus": "InService",
        "NodeRecovery": "None",
        "InstanceGroups": [group],
    }
    return cluster | changes


def queue_with_messages(count: int) -> Json:
    return {"Attributes": {"ApproximateNumberOfMessages": str(count), "ApproximateNumberOfMessagesNotVisible": "0"}}


def a_source(state: str, name: str = "hyperpod") -> Json:
    return {"name": name, "state": state, "reason": f"{name} is {state.lower()}."}


def with_source_ages(*states: str) -> Callable[["FakeSite"], None]:
    return lambda fake_site: fake_site.api.overview.update(
        sourceAges=[a_source(state, f"source-{state}") for state in states]
    )


class FakeApi:
    """A healthy API."""

    def __init__(self) -> None:
        self.problem: CommandFailed | None = None
        self.overview: Json = {
            "fleet": "research",
            "automation": {"mode": "act", "isHeld": False},
            "sourceAges": [a_source("CURRENT")],
            "heartbeats": [
                {"function": name, "at": (A_MOMENT - timedelta(seconds=40)).isoformat()} for name in checks.SCHEDULED
            ],
        }
        self.teams: list[Json] = []

    def get(self, path: str, **_query: Any) -> Json:
        if self.problem:
            raise self.problem
        match path:
            case "/overview":
                return self.overview
            case "/teams":
                return {"items": self.teams}
            case _:
                return {"team": {"namespace": f"ns-{path.split('/')[2]}"}}


@dataclass
class FakeSite:
    """The AWS account and the API in which a test plants a fault."""

    aws: FakeAws = field(default_factory=FakeAws)
    api: FakeApi = field(default_factory=FakeApi)
    context: ApiContext = field(default_factory=lambda: ApiContext("research", URL, "us-west-2"))

    def run(self, *skipped: str) -> list[DoctorFinding]:
        return checks.run(self.site(), A_MOMENT, skipped)

    def site(self) -> InspectedSite:
        client: Any = self.api
        return InspectedSite(self.aws, client, self.context, "evenkeel", access)

    def findings_of(self, check: str) -> list[DoctorFinding]:
        others_checked = {doctor_check.name for doctor_check in CHECKS} - {check}
        return self.run(*others_checked)


def plant(call: str, answer: Any) -> Callable[[FakeSite], None]:
    return lambda fake_site: fake_site.aws.planted.__setitem__(call, answer)


def plant_answer(function: str, **changes: Any) -> Callable[[FakeSite], None]:
    return lambda fake_site: fake_site.aws.tests.__setitem__(function, self_test_answer(function, **changes))


def plant_in_every_function(**changes: Any) -> Callable[[FakeSite], None]:
    return lambda fake_site: fake_site.aws.tests.update(
        {name: self_test_answer(name, **changes) for name in access.functions_with_access()}
    )


def fleet_parameter(name: str, **record: str) -> Json:
    return {"Name": f"/evenkeel/fleets/{name}", "Value": json.dumps({"stack": "evenkeel-2", **record})}


def plant_other_fleet(**record: str) -> Callable[[FakeSite], None]:
    """Return a change of the account: AWS records this fleet, and a second fleet with these facts."""
    document = fleet_parameter("research", clusters=CLUSTER, hyperPod=HYPERPOD)
    return plant("ssm:get_parameters_by_path", {"Parameters": [document, fleet_parameter("other", **record)]})


def plant_heartbeat(seconds: float | None) -> Callable[[FakeSite], None]:
    at = None if seconds is None else (A_MOMENT - timedelta(seconds=seconds)).isoformat()
    return lambda fake_site: fake_site.api.overview.update(heartbeats=[{"function": "sweep_fleet", "at": at}])


def plant_api_problem(problem: CommandFailed) -> Callable[[FakeSite], None]:
    return lambda fake_site: setattr(fake_site.api, "problem", problem)


def plant_both(first: Callable[[FakeSite], None], second: Callable[[FakeSite], None]) -> Callable[[FakeSite], None]:
    def plants(fake_site: FakeSite) -> None:
        first(fake_site)
        second(fake_site)

    return plants


class DoctorCase(NamedTuple):
    """A planted fault, the check that must report it, and the status, text and fix that the check reports."""

    check: str
    plant: Callable[[FakeSite], None]
    status: str
    expected_text: str
    fix: str


STATUS_REFUSED = CommandFailed(Exit.NOT_ALLOWED, "You may not read the status.", hint="Ask for EvenkeelViewerPolicy.")
NO_ENTRY = "NotAllowed: GET /version of research-eks: 401 Unauthorized"
NO_REACH = "Unreachable: GET /version of research-eks: no answer"
NO_STORE = "Unreachable: GET /api/v1/nodes/evenkeel-self-test of research-eks: 503 ServiceUnavailable: try later"
NO_DISCOVERY = "NotAllowed: GET /apis/kueue.x-k8s.io of research-eks: 403 Forbidden"
MISSING_NODE_RIGHT = [{"verb": "patch", "group": "", "resource": "nodes", "namespace": ""}]
MISSING_JOB_RIGHT = [{"verb": "create", "group": "batch", "resource": "jobs", "namespace": "ns-nlp"}]

FAULTS = [
    DoctorCase(
        "credentials",
        plant("sts:get_caller_identity", BadCredentials("They have expired.", "aws sso login")),
        "failed",
        "expired",
        "aws sso login",
    ),
    DoctorCase(
        "credentials",
        plant("sts:get_caller_identity", {"Arn": "arn:aws:iam::111122223333:root"}),
        "warning",
        "root user",
        "Use a role",
    ),
    DoctorCase(
        "credentials",
        plant("sts:get_caller_identity", CouldNotCheck("No answer.", "proxy")),
        "unknown",
        "No answer",
        "proxy",
    ),
    DoctorCase(
        "stack",
        plant("cloudformation:describe_stacks", ResourceNotFound("no")),
        "unknown",
        "no stack evenkeel in us-west-2",
        "--stack",
    ),
    DoctorCase(
        "stack",
        plant("cloudformation:describe_stacks", stack_with("ROLLBACK_COMPLETE")),
        "failed",
        "ROLLBACK_COMPLETE",
        "make deploy",
    ),
    DoctorCase(
        "stack",
        plant("cloudformation:describe_stacks", stack_with("UPDATE_ROLLBACK_COMPLETE")),
        "warning",
        "rolled back",
        "make deploy",
    ),
    DoctorCase(
        "stack",
        plant("cloudformation:describe_stacks", stack_with("UPDATE_IN_PROGRESS")),
        "warning",
        "is running",
        "again",
    ),
    DoctorCase(
        "stack",
        lambda fake_site: setattr(fake_site, "context", ApiContext("x", "https://other.example/v1", "us-west-2")),
        "failed",
        "not this stack's API",
        "EVENKEEL_URL",
    ),
    DoctorCase("api", plant_api_problem(STATUS_REFUSED), "failed", "may not read", "EvenkeelViewerPolicy"),
    DoctorCase(
        "api",
        lambda fake_site: fake_site.api.overview["automation"].update(isHeld=True),
        "warning",
        "held",
        "evenkeel automation show",
    ),
    DoctorCase("api-logs", plant("apigateway:get_account", {}), "failed", "no role", "ApiLogRole=off"),
    DoctorCase("api-logs", plant("apigateway:get_account", DENIED), "unknown", "may not", "identity"),
    DoctorCase(
        "hyperpod",
        plant("sagemaker:describe_cluster", ResourceNotFound("no")),
        "failed",
        "no HyperPod cluster",
        "HyperPodClusterArn",
    ),
    DoctorCase(
        "hyperpod",
        plant("sagemaker:describe_cluster", a_hyperpod(ClusterStatus="Failed", FailureMessage="no quota")),
        "failed",
        "no quota",
        "describe-cluster",
    ),
    DoctorCase(
        "hyperpod",
        plant("sagemaker:describe_cluster", a_hyperpod(ClusterStatus="Updating")),
        "warning",
        "Updating",
        "describe-cluster",
    ),
    DoctorCase(
        "hyperpod",
        plant("sagemaker:describe_cluster", a_hyperpod("SecurityUpdateRequired")),
        "failed",
        "need a patch",
        "update-cluster-software",
    ),
    DoctorCase(
        "hyperpod",
        plant("sagemaker:describe_cluster", a_hyperpod("UpdateAvailable")),
        "warning",
        "Newer images",
        "update-cluster-software",
    ),
    DoctorCase(
        "hyperpod",
        plant("sagemaker:describe_cluster", a_hyperpod(None)),
        "unknown",
        "no patch level",
        "update-cluster-software",
    ),
    DoctorCase(
        "hyperpod",
        plant("sagemaker:describe_cluster", a_hyperpod(NodeRecovery="Sometimes")),
        "unknown",
        "Sometimes",
        "ownership",
    ),
    DoctorCase(
        "kubernetes",
        plant("eks:describe_cluster", ResourceNotFound("no")),
        "failed",
        "no cluster research-eks",
        "KubernetesClusters",
    ),
    DoctorCase(
        "kubernetes",
        plant("eks:describe_cluster", {"cluster": {"status": "UPDATING"}}),
        "warning",
        "UPDATING",
        "describe-cluster",
    ),
    DoctorCase(
        "kubernetes",
        plant_in_every_function(error=NO_REACH, serverVersion=""),
        "failed",
        "does not answer 17 of 17",
        "SubnetIds",
    ),
    DoctorCase(
        "kubernetes",
        plant_answer("launch_job", error=NO_REACH, serverVersion=""),
        "failed",
        "does not answer 1 of 17",
        "SubnetIds",
    ),
    DoctorCase(
        "kubernetes",
        plant_in_every_function(error=NO_STORE),
        "failed",
        "17 of 17 functions may not read anything",
        "readyz",
    ),
    DoctorCase(
        "kubernetes",
        plant("lambda:invoke", DENIED),
        "unknown",
        "No function tested research-eks. Your identity may not",
        "another identity",
    ),
    DoctorCase(
        "kubernetes",
        plant("cloudformation:describe_stacks", stack_with(KubernetesClusters="none")),
        "failed",
        "No Kubernetes cluster",
        "KubernetesClusters",
    ),
    DoctorCase(
        "access",
        plant_answer("cordon_node", missing=MISSING_NODE_RIGHT),
        "failed",
        "lacks: patch nodes.",
        "--principal-arn arn:aws:iam::111122223333:role/cordon_node --kubernetes-groups evenkeel:cordoners",
    ),
    DoctorCase(
        "access",
        plant_answer("launch_job", missing=MISSING_JOB_RIGHT),
        "failed",
        "create jobs.batch in ns-nlp",
        "kubernetes-access.yaml",
    ),
    DoctorCase(
        "access", plant_answer("api_read", error=NO_ENTRY), "failed", "denies access to api_read", "create-access-entry"
    ),
    DoctorCase("access", plant("lambda:invoke:evenkeel-repair_node", DENIED), "unknown", "may not call", "identity"),
    DoctorCase(
        "access",
        plant("lambda:invoke:evenkeel-repair_node", ResourceNotFound("no")),
        "unknown",
        "no function evenkeel-repair_node",
        "make deploy",
    ),
    DoctorCase(
        "access",
        plant(
            "lambda:invoke:evenkeel-repair_node", {"Payload": b'{"errorMessage": "boom"}', "FunctionError": "Unhandled"}
        ),
        "unknown",
        "boom",
        "function-errors",
    ),
    DoctorCase("access", plant_api_problem(STATUS_REFUSED), "unknown", "Namespaces of teams", "evenkeel teams ls"),
    DoctorCase(
        "kueue",
        plant_answer("schedule_jobs", kueueNamespaces={"evenkeel-jobs": "its label"}),
        "failed",
        "Kueue admits in evenkeel-jobs",
        "Admission=kueue",
    ),
    DoctorCase(
        "kueue", plant_answer("schedule_jobs", admission="kueue"), "failed", "jobs there never start", "LocalQueue"
    ),
    DoctorCase(
        "kueue",
        plant_answer("schedule_jobs", kueueError=NO_DISCOVERY, kueueNamespaces=None),
        "failed",
        "cannot read whether",
        "system:discovery",
    ),
    DoctorCase(
        "kueue",
        plant_answer("schedule_jobs", error=NO_REACH, kueueNamespaces=None),
        "unknown",
        "was not checked",
        "invoke",
    ),
    DoctorCase("kueue", plant("lambda:invoke:evenkeel-schedule_jobs", DENIED), "unknown", "may not", "identity"),
    DoctorCase(
        "queues",
        plant("sqs:get_queue_attributes:https://sqs/EventsQueue", queue_with_messages(1001)),
        "failed",
        "1001 events wait",
        "events-delayed",
    ),
    DoctorCase(
        "queues",
        plant("sqs:get_queue_attributes:https://sqs/CyclesQueue", queue_with_messages(51)),
        "failed",
        "51 scheduling requests wait",
        "cycles-delayed",
    ),
    DoctorCase("queues", plant("sqs:get_queue_attributes", DENIED), "unknown", "may not", "identity"),
    DoctorCase(
        "dead-letters",
        plant("sqs:get_queue_attributes:https://sqs/DeadLetterQueue", queue_with_messages(2)),
        "failed",
        "holds 2 messages",
        "malformed-events",
    ),
    DoctorCase(
        "dead-letters",
        plant("sqs:get_queue_attributes:https://sqs/UndeliveredPagesQueue", queue_with_messages(1)),
        "failed",
        "holds 1 message",
        "undelivered-pages",
    ),
    DoctorCase(
        "dead-letters",
        plant("sqs:get_queue_attributes:https://sqs/FailedCyclesQueue", DENIED),
        "unknown",
        "may not",
        "identity",
    ),
    DoctorCase(
        "schedules",
        plant("scheduler:get_schedule:evenkeel-sweep_fleet", {"State": "DISABLED"}),
        "warning",
        "sweep_fleet are off",
        "Schedules=on",
    ),
    DoctorCase(
        "schedules",
        plant("scheduler:get_schedule:evenkeel-sweep_fleet", ResourceNotFound("no")),
        "failed",
        "no schedule for sweep_fleet",
        "make deploy",
    ),
    DoctorCase("schedules", plant("scheduler:get_schedule", DENIED), "unknown", "may not", "identity"),
    DoctorCase("ages", plant_heartbeat(601), "failed", "10min ago", "sweep-silent"),
    DoctorCase("ages", plant_heartbeat(None), "failed", "never run", "sweep-silent"),
    DoctorCase("ages", plant_heartbeat(240), "warning", "4min ago", "sweep-silent"),
    DoctorCase(
        "ages",
        plant_both(plant_heartbeat(None), plant("scheduler:get_schedule", {"State": "DISABLED"})),
        "warning",
        "The schedule of the function is off",
        "Turn",
    ),
    DoctorCase(
        "ages",
        plant_both(
            plant_heartbeat(None),
            plant(
                "cloudformation:describe_stacks",
                {"Stacks": [a_stack() | {"LastUpdatedTime": A_MOMENT - timedelta(seconds=60)}]},
            ),
        ),
        "warning",
        "not finished a run yet",
        "again",
    ),
    DoctorCase("ages", plant_api_problem(STATUS_REFUSED), "unknown", "API call failed", "EvenkeelViewerPolicy"),
    DoctorCase("sources", with_source_ages("CURRENT", "STALE"), "failed", "source-STALE is stale", "source-stale.md"),
    DoctorCase(
        "sources", with_source_ages("CURRENT", "FAILING"), "warning", "source-FAILING is failing", "source-stale.md"
    ),
    DoctorCase("sources", with_source_ages("OFF"), "warning", "schedules are off", "Turn"),
    DoctorCase("sources", with_source_ages("UNKNOWN"), "unknown", "source-UNKNOWN is unknown", "source-stale.md"),
    DoctorCase("sources", with_source_ages(), "unknown", "does not report the ages", "make deploy"),
    DoctorCase("sources", plant_api_problem(STATUS_REFUSED), "unknown", "API call failed", "EvenkeelViewerPolicy"),
    DoctorCase(
        "concurrency",
        plant(
            "lambda:get_account_settings",
            {"AccountLimit": {"ConcurrentExecutions": 10, "UnreservedConcurrentExecutions": 10}},
        ),
        "failed",
        "7 of 10",
        "service-quotas",
    ),
    DoctorCase(
        "concurrency",
        plant(
            "lambda:get_account_settings",
            {"AccountLimit": {"ConcurrentExecutions": 100, "UnreservedConcurrentExecutions": 100}},
        ),
        "warning",
        "97 of 100",
        "service-quotas",
    ),
    DoctorCase(
        "concurrency",
        plant("cloudwatch:get_metric_statistics", {"Datapoints": [{"Maximum": 990.0}]}),
        "failed",
        "10 of 1000",
        "service-quotas",
    ),
    DoctorCase("concurrency", plant("lambda:get_account_settings", DENIED), "unknown", "may not", "identity"),
    DoctorCase(
        "events",
        plant("events:describe_rule:evenkeel-HyperPodEvents-1X", {"State": "DISABLED"}),
        "failed",
        "HyperPodEvents is DISABLED",
        "enable-rule",
    ),
    DoctorCase(
        "events",
        plant("events:describe_rule:evenkeel-HealthEvents-1X", ResourceNotFound("no")),
        "failed",
        "is missing",
        "Deploy",
    ),
    DoctorCase(
        "events",
        plant("cloudwatch:get_metric_statistics:FailedInvocations", {"Datapoints": [{"Sum": 2.0}]}),
        "failed",
        "could not deliver 2",
        "undelivered-events",
    ),
    DoctorCase(
        "events",
        plant("cloudwatch:get_metric_statistics", {"Datapoints": []}),
        "warning",
        "no event matched",
        "drill event",
    ),
    DoctorCase(
        "events",
        plant("cloudformation:describe_stacks", stack_with(LocalEngine="true")),
        "unknown",
        "no such metrics",
        "doctor.md",
    ),
    DoctorCase("events", plant("cloudwatch:get_metric_statistics", DENIED), "unknown", "may not", "identity"),
    DoctorCase(
        "pages",
        plant("sns:list_subscriptions_by_topic", {"Subscriptions": []}),
        "failed",
        "no person",
        "aws sns subscribe",
    ),
    DoctorCase(
        "pages",
        plant("sns:list_subscriptions_by_topic", {"Subscriptions": [{"SubscriptionArn": "PendingConfirmation"}]}),
        "failed",
        "No subscription",
        "Confirm",
    ),
    DoctorCase("pages", plant("sns:list_subscriptions_by_topic", DENIED), "unknown", "may not", "identity"),
    DoctorCase("fleets", plant_other_fleet(clusters=f"burst-eks,{CLUSTER}"), "failed", "fleet other", "one stack"),
    DoctorCase("fleets", plant_other_fleet(hyperPod=HYPERPOD), "failed", "stack evenkeel-2", "one stack"),
    DoctorCase("fleets", plant("ssm:get_parameters_by_path", DENIED), "unknown", "may not", "identity"),
    DoctorCase(
        "fleets",
        plant("ssm:get_parameters_by_path", {"Parameters": [{"Name": "/evenkeel/fleets/other", "Value": "{"}]}),
        "unknown",
        "not JSON",
        "Deploy",
    ),
    DoctorCase(
        "policy",
        plant_answer(
            "schedule_jobs", policy={"name": "production", "hash": "x", "refused": "It is old.", "inForce": 1}
        ),
        "failed",
        "It is old.",
        "policy-refused",
    ),
    DoctorCase(
        "policy",
        plant_answer("schedule_jobs", policy={"name": "x", "hash": None, "refused": "It is new.", "inForce": None}),
        "failed",
        "No policy is active, so Evenkeel decides nothing: It is new.",
        "policy-refused",
    ),
    DoctorCase(
        "policy",
        plant_answer("schedule_jobs", policy={"error": "Unreachable: x"}),
        "failed",
        "cannot be read",
        "policy-refused",
    ),
    DoctorCase("policy", plant("lambda:invoke", DENIED), "unknown", "may not", "identity"),
    DoctorCase("versions", plant_answer("launch_job", version="0.0.1"), "failed", "different versions", "make deploy"),
    DoctorCase(
        "versions",
        plant_in_every_function(version="0.0.1"),
        "warning",
        "their layer have version 0.0.1",
        "same version",
    ),
    DoctorCase("versions", plant("lambda:invoke", DENIED), "unknown", "may not", "identity"),
]


@pytest.mark.parametrize("check", [check.name for check in CHECKS])
def test_check_is_ok_on_a_healthy_stack(check: str) -> None:
    doctor_findings = FakeSite().findings_of(check)

    assert {finding.status for finding in doctor_findings} == {Status.OK}, doctor_findings
    assert {finding.check for finding in doctor_findings} == {check}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.check}-{fault.expected_text[:40]}")
def test_doctor_check_reports_its_planted_fault_and_the_fix(fault: DoctorCase) -> None:
    doctor_findings = [finding for finding in findings_after_planting(fault) if finding.status is not Status.OK]

    assert {finding.status.value for finding in doctor_findings} == {fault.status}, doctor_findings
    assert fault.expected_text in doctor_findings[0].text
    assert fault.fix in doctor_findings[0].fix


@pytest.mark.parametrize(("setting", "says"), [("off", "writes no access log"), ("set-up", "The deployment sets one")])
def test_missing_log_role_is_no_fault_unless_needed(setting: str, says: str) -> None:
    fake_site = FakeSite()
    plant("apigateway:get_account", {})(fake_site)
    plant("cloudformation:describe_stacks", stack_with(ApiLogRole=setting))(fake_site)

    (finding,) = fake_site.findings_of("api-logs")

    assert finding.status is Status.OK
    assert says in finding.text


def test_each_check_has_a_planted_fault() -> None:
    assert {fault.check for fault in FAULTS if fault.status != "unknown"} == {check.name for check in CHECKS}
    assert {fault.check for fault in FAULTS if fault.status == "unknown"} == {check.name for check in CHECKS} - {"api"}


def test_no_doctor_check_passes_if_nothing_can_be_read() -> None:
    fake_site = FakeSite()
    fake_site.api.problem = STATUS_REFUSED
    fake_site.aws.call = lambda *_a, **_k: (_ for _ in ()).throw(DENIED)  # type: ignore[method-assign]

    doctor_findings = fake_site.run()

    assert {finding.check for finding in doctor_findings} == {check.name for check in CHECKS}
    assert [finding for finding in doctor_findings if finding.status is Status.OK] == []
    assert all(finding.fix for finding in doctor_findings)


def test_failing_check_does_not_stop_other_checks() -> None:
    def raise_error(_site: InspectedSite, _now: Any) -> list[DoctorFinding]:
        raise ZeroDivisionError("bug")

    table = [checks.DoctorCheck("broken", raise_error, ""), CHECKS[0]]
    client: Any = FakeApi()
    site = InspectedSite(FakeAws(), client, ApiContext("x", URL, "us-west-2"), "evenkeel", access)

    first, second = checks.run(site, A_MOMENT, (), table)

    assert (first.status, first.text) == (Status.UNKNOWN, "The check itself failed: ZeroDivisionError: bug")
    assert second.status is Status.OK


class SilentDependency:
    """A dependency that does not answer until the test is over."""

    def __init__(self) -> None:
        self.has_begun, self.is_over = threading.Event(), threading.Event()

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.has_begun.set()
        self.is_over.wait(60)
        raise DENIED


@pytest.fixture
def silent_dependency() -> Iterator[SilentDependency]:
    dependency = SilentDependency()
    yield dependency
    dependency.is_over.set()


def test_check_that_hangs_is_unknown_and_stops_no_other_check(silent_dependency: SilentDependency) -> None:
    table = [checks.DoctorCheck("silent", silent_dependency, ""), CHECKS[0]]

    first, second = checks.run(FakeSite().site(), A_MOMENT, (), table, seconds=0.5)

    assert (first.status, first.text, first.check) == (Status.UNKNOWN, "No answer in 0.5 s.", "silent")
    assert second.status is Status.OK


def test_api_that_does_not_answer_fails_its_check(silent_dependency: SilentDependency) -> None:
    fake_site = FakeSite()
    fake_site.api.get = silent_dependency  # type: ignore[method-assign]

    (finding,) = checks.run(
        fake_site.site(), A_MOMENT, (), [check for check in CHECKS if check.name == "api"], seconds=0.5
    )

    assert finding.status is Status.FAILED
    assert finding.text.startswith("No answer in ")


def test_slow_read_delays_no_other_read(silent_dependency: SilentDependency) -> None:
    def read_slowly(_: InspectedSite) -> object:
        return silent_dependency()

    def read_quickly(_: InspectedSite) -> str:
        return "read"

    site = FakeSite().site()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(site_module.read_once(read_slowly), site)
        silent_dependency.has_begun.wait(60)
        assert not slow.done()

        assert site_module.read_once(read_quickly)(site) == "read"
        assert not slow.done()
        silent_dependency.is_over.set()


def test_silent_function_does_not_hide_answers_of_other_functions(
    silent_dependency: SilentDependency, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_module, "SELF_TEST_SECONDS", 1.0)
    fake_site = FakeSite()
    answer = fake_site.aws.call

    def call(service: str, operation: str, **parameters: Any) -> Json:
        if parameters.get("FunctionName") == "evenkeel-repair_node:live":
            silent_dependency()
        return answer(service, operation, **parameters)

    fake_site.aws.call = call  # type: ignore[method-assign]

    access_, kubernetes = fake_site.findings_of("access"), fake_site.findings_of("kubernetes")

    assert [
        (finding.status, finding.text, finding.subject) for finding in access_ if finding.status is not Status.OK
    ] == [(Status.UNKNOWN, "No answer in 1 s.", "repair_node")]
    assert "answers all 16 tested functions" in kubernetes[0].text


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ReadTimeoutError(endpoint_url="https://x"), "eks:DescribeCluster: no answer in time from https://x."),
        (EndpointConnectionError(endpoint_url="https://x"), 'Could not connect to the endpoint URL: "https://x".'),
        (HTTPClientError(error="HTTPSConnectionPool(host='x')"), "the connection failed (HTTPClientError)."),
        (
            SSLError(endpoint_url="https://x", error=OSError("HTTPSConnectionPool()")),
            "the TLS connection to https://x failed.",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unreachable_aws_is_reported(error: Exception, expected: str) -> None:
    class Client:
        def describe_cluster(self) -> Json:
            raise error

    aws = BotocoreAws(ApiContext("x", URL, "us-west-2"))
    aws._clients["eks"] = Client()

    with pytest.raises(CouldNotCheck) as error_info:
        aws.call("eks", "describe_cluster")

    assert expected in error_info.value.reason
    assert "ConnectionPool" not in error_info.value.reason


def test_every_call_except_the_self_test_only_reads() -> None:
    fake_site = FakeSite()
    fake_site.run()

    verbs = {name.split(":")[1].split("_")[0] for name, _ in fake_site.aws.calls}
    assert verbs == {"describe", "get", "list", "invoke"}
    invoked = [parameters for name, parameters in fake_site.aws.calls if name == "lambda:invoke"]
    assert all(json.loads(parameters["Payload"]).keys() == {"selfTest"} for parameters in invoked)
    assert all(str(parameters["FunctionName"]).endswith(":live") for parameters in invoked)


_ACTION_BY_CALL = {"apigateway:GetAccount": "apigateway:GET", "lambda:Invoke": "lambda:InvokeFunction"}
_NEEDS_NO_RIGHT = {"sts:GetCallerIdentity"}


def test_on_call_policy_allows_every_call() -> None:
    fake_site = FakeSite()
    fake_site.run()

    called = {
        f"{service}:{''.join(map(str.capitalize, words.split('_')))}" for service, words in called_operations(fake_site)
    }
    allowed = {action for statement in of_on_call() for action in statement.actions}
    assert {_ACTION_BY_CALL.get(call, call) for call in called - _NEEDS_NO_RIGHT} - allowed == set()


def called_operations(fake_site: FakeSite) -> set[tuple[str, str]]:
    return {(name.split(":")[0], name.split(":")[1]) for name, _ in fake_site.aws.calls}


def test_rights_are_checked_in_every_team_namespace() -> None:
    fake_site = FakeSite()
    fake_site.api.teams = [{"team": "nlp", "weight": 1.0}, {"team": "unset", "weight": None}]

    fake_site.findings_of("access")

    (request,) = [
        json.loads(parameters["Payload"])["selfTest"]
        for name, parameters in fake_site.aws.calls
        if name == "lambda:invoke" and parameters["FunctionName"] == "evenkeel-launch_job:live"
    ]
    namespaces = {right["namespace"] for right in request["rights"] if right["verb"] == "create"}
    assert namespaces == {"evenkeel-jobs", "ns-nlp"}


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [("ok", 0), ("ok warning", 0), ("ok unknown", 2), ("warning failed unknown", 1), ("failed", 1)],
)
def test_exit_code_is_1_for_failed_2_for_unknown(statuses: str, expected: int) -> None:
    assert findings.exit_code(DoctorFinding(Status(status), "") for status in statuses.split()) == expected


SCHEDULES_OFF = DoctorFinding(Status.WARNING, "off", "on", check="schedules")


@pytest.mark.parametrize(
    ("other_status", "expected"),
    [
        ("ok", "All other checks passed. Turn the schedules on: HOW"),
        ("failed", "Fix the failed checks, run evenkeel doctor again, then turn the schedules on."),
        ("unknown", "Investigate the unknown checks. If they show no problem, turn the schedules on: HOW"),
    ],
)
def test_next_step_enables_schedules_if_other_checks_pass(other_status: str, expected: str) -> None:
    assert findings.next_step([SCHEDULES_OFF, DoctorFinding(Status(other_status), "", check="api")], "HOW") == expected


def test_healthy_new_stack_suggests_enabling_schedules() -> None:
    fake_site = FakeSite()
    fake_site.aws.planted["scheduler:get_schedule"] = {"State": "DISABLED"}
    fake_site.api.overview |= {
        "sourceAges": [a_source("OFF")],
        "heartbeats": [{"function": name, "at": None} for name in checks.SCHEDULED],
    }

    doctor_findings = fake_site.run()

    assert findings.exit_code(doctor_findings) == 0
    assert findings.next_step(doctor_findings, checks.ENABLE).startswith(
        "All other checks passed. Turn the schedules on: "
    )


def test_enabled_schedules_need_no_next_step() -> None:
    assert findings.next_step([DoctorFinding(Status.OK, "", check="schedules")], "HOW") == ""


def test_doctor_output_as_json_follows_its_schema() -> None:
    schema = json.loads((ROOT / "docs" / "schemas" / "doctor.schema.json").read_text(encoding="utf-8"))
    fake_site = FakeSite()
    fake_site.aws.planted["scheduler:get_schedule"] = {"State": "DISABLED"}
    document = findings.to_json(
        fake_site.run(), fleet="research", stack="evenkeel", region="us-west-2", as_of=A_MOMENT.isoformat(), then="now"
    )

    jsonschema.validate(document, schema)
    assert schema["properties"]["findings"]["items"]["properties"]["check"]["enum"] == list(
        dict.fromkeys(doctor_check.name for doctor_check in (*CHECKS, *CHECKS_BEFORE_DEPLOYMENT))
    )
    assert document["summary"]["warning"] == 1


def test_doctor_page_describes_every_check() -> None:
    page = (ROOT / "docs" / "operate" / "doctor.md").read_text(encoding="utf-8")

    assert [doctor_check.name for doctor_check in CHECKS if f"| `{doctor_check.name}` |" not in page] == []


def test_rights_come_from_the_applied_manifests() -> None:
    rights = access.rights_of("cordon_node", ["evenkeel-jobs"])

    assert [str(right) for right in rights] == ["get nodes", "patch nodes"]
    assert {str(access_rule) for access_rule in access.rights_of("launch_job", ["a", "b"])} >= {
        "create jobs.batch in a",
        "create jobs.batch in b",
    }
    assert "list events in default" in map(str, access.rights_of("open_wait", ["a"]))


def test_doctor_command_loads_few_modules_on_import() -> None:
    code = "import sys; from evenkeel_cli.main import main; main(['doctor', '-h']); sys.exit('botocore' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_doctor_output_without_long_names_fits_80_columns() -> None:
    out = io.StringIO()
    doctor_findings = [finding for fault in FAULTS for finding in findings_after_planting(fault)]

    print_findings(
        Printer(out, {"NO_COLOR": "1"}, columns=80), "fleet research", doctor_findings, "Turn the schedules on."
    )

    long_lines = [line for line in out.getvalue().splitlines() if len(line) > 80]
    assert [line for line in long_lines if len(max(line.split(), key=len)) < 50] == []


@functools.cache
def findings_after_planting(fault: DoctorCase) -> Sequence[DoctorFinding]:
    fake_site = FakeSite()
    fault.plant(fake_site)
    return fake_site.findings_of(fault.check)
