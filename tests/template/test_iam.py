"""Least privilege, as far as the template shows it."""

import json
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.template import iam_reference, policy_sizes, statements
from tests.template.documents import ROOT, Json, resources, template
from tests.template.statements import Permission, Statement
from tests.template.waivers import WAIVERS

ROLES = statements.of_roles()
CALLERS = statements.of_callers() + statements.of_on_call()
FUNCTIONS = resources("AWS::Serverless::Function")
MACHINES = resources("AWS::Serverless::StateMachine")
WORKFLOW_ARNS = {"RECOVER_NODE_ARN", "RUN_JOB_ARN", "BURST_CAPACITY_ARN"}
ENVIRONMENT_OF_TABLE = {f"{table}Table": f"{table.upper()}_TABLE" for table in ("Jobs", "Incidents", "Fleet", "Quotas")}


def has_wildcard(statement: Statement) -> bool:
    # The ARN of a log group ends in `:*`. The template never writes such an ARN.
    return any("*" in json.dumps(resource) for resource in statement.resources)


@pytest.mark.parametrize("statement", ROLES + CALLERS, ids=str)
def test_statement_names_its_actions_and_its_resource(statement: Statement) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z]+", statement.sid), (
        "name the purpose of the statement in its Sid, for example ReadJobs"
    )
    assert all(re.fullmatch(r"[a-z0-9-]+:[A-Z][A-Za-z]+", action) for action in statement.actions), (
        "name each action whole, without a wildcard"
    )
    assert has_wildcard(statement) == (statement.sid in WAIVERS), (
        "name the resource; if AWS has none for the action, add the Sid with its reason to waivers.py"
    )


def test_every_waiver_for_a_wildcard_is_used() -> None:
    assert set(WAIVERS) == {statement.sid for statement in ROLES + CALLERS if has_wildcard(statement)}, (
        "delete the waivers in waivers.py that no statement needs"
    )


def test_sids_are_unique_within_a_policy() -> None:
    counts = Counter((statement.owner, statement.sid) for statement in ROLES + CALLERS)
    assert [key for key, count in counts.items() if count > 1] == [], "rename one of the statements with the same Sid"


def test_no_action_is_granted_twice_on_one_resource() -> None:
    counts = Counter(
        (statement.owner, action, json.dumps(resource, sort_keys=True))
        for statement in ROLES
        for action in statement.actions
        for resource in statement.resources
    )
    assert [key for key, count in counts.items() if count > 1] == [], "remove the action from one of the statements"


def test_only_roles_of_functions_in_a_vpc_attach_managed_policies() -> None:
    in_vpc = [f"{name}Role" for name, function in FUNCTIONS.items() if "VpcConfig" in function]
    assert sorted(statements.attachments()) == sorted((role, "VpcAccess", "HasVpc") for role in in_vpc)
    assert {
        json.dumps(function["VpcConfig"]["Fn::If"][0]) for function in FUNCTIONS.values() if "VpcConfig" in function
    } == {'"HasVpc"'}


def test_vpc_policy_allows_only_network_interfaces() -> None:
    assert template()["Resources"]["VpcAccess"]["Condition"] == "HasVpc"
    (statement,) = statements.of_document(
        "VpcAccess", resources("AWS::IAM::ManagedPolicy")["VpcAccess"]["PolicyDocument"]
    )
    assert set(statement.actions) == {
        "ec2:CreateNetworkInterface",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DeleteNetworkInterface",
        "ec2:DescribeSubnets",
        "ec2:AssignPrivateIpAddresses",
        "ec2:UnassignPrivateIpAddresses",
    }


def test_no_role_has_a_fixed_name() -> None:
    named = [name for name, role in resources("AWS::IAM::Role").items() if "RoleName" in role]
    assert named == [], "remove RoleName: with it, a deployment needs CAPABILITY_NAMED_IAM"


def test_each_function_and_machine_has_its_own_role() -> None:
    users = [
        (name, spec["Role"]["Fn::GetAtt"][0] if isinstance(spec["Role"]["Fn::GetAtt"], list) else spec["Role"])
        for name, spec in (FUNCTIONS | MACHINES).items()
    ]
    assert [(name, f"{name}Role") for name, _ in users] == users


@pytest.mark.parametrize("name", sorted(resources("AWS::IAM::Role")))
def test_only_its_service_can_assume_a_role(name: str) -> None:
    (trust,) = resources("AWS::IAM::Role")[name]["AssumeRolePolicyDocument"]["Statement"]
    expected = "lambda"
    if name.endswith("MachineRole"):
        expected = "states"
    elif name == "SchedulerRole":
        expected = "scheduler"
    elif name == "ApiLogAccountRole":
        expected = "apigateway"
    assert trust["Principal"] == {"Service": f"{expected}.amazonaws.com"}
    assert trust["Action"] == "sts:AssumeRole"
    if expected in ("states", "scheduler"):
        assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}


def test_tables_of_a_role_match_the_function_environment() -> None:
    for name, function in FUNCTIONS.items():
        granted = {
            table
            for statement in ROLES
            if statement.owner == f"{name}Role"
            for table in ENVIRONMENT_OF_TABLE
            if table in json.dumps(statement.resources)
        }
        variables = function.get("Environment", {}).get("Variables", {})
        read_tables = {table for table, variable in ENVIRONMENT_OF_TABLE.items() if variable in variables}
        assert read_tables == granted, f"{name}: set the variable of exactly the tables that its role may access"


def owners(action: str) -> set[str]:
    return {statement.owner for statement in ROLES if action in statement.actions}


def test_only_repair_node_may_repair_and_only_on_cluster() -> None:
    destructive = [
        statement for statement in ROLES if any(action.startswith("sagemaker:Batch") for action in statement.actions)
    ]
    (statement,) = destructive
    assert statement.owner == "RepairNodeRole"
    assert set(statement.actions) == {"sagemaker:BatchRebootClusterNodes", "sagemaker:BatchReplaceClusterNodes"}
    assert statement.resources == ({"Ref": "HyperPodClusterArn"},)
    assert statement.condition == "HasHyperPod"


def test_every_sagemaker_grant_but_reading_plans_names_the_cluster() -> None:
    of_sagemaker = [s for s in ROLES if any(action.startswith("sagemaker:") for action in s.actions)]
    (reads_plans,) = [s for s in of_sagemaker if s.sid == "ReadTrainingPlans"]
    cluster_grants = [s for s in of_sagemaker if s is not reads_plans]
    assert {statement.condition for statement in of_sagemaker} == {"HasHyperPod"}
    assert {json.dumps(statement.resources) for statement in cluster_grants} == {'[{"Ref": "HyperPodClusterArn"}]'}
    assert (reads_plans.owner, reads_plans.actions) == ("SweepFleetRole", ("sagemaker:DescribeTrainingPlan",))


def test_only_resolve_wait_answers_tokens_of_our_machines() -> None:
    assert owners("states:SendTaskSuccess") == {"ResolveWaitRole"}
    assert owners("states:SendTaskFailure") == {"OpenWaitRole"}
    names = {spec["Name"]["Fn::Sub"].replace("${AWS::StackName}", "") for spec in MACHINES.values()}
    for statement in ROLES:
        if not {"states:SendTaskSuccess", "states:SendTaskFailure"} & set(statement.actions):
            continue
        if statement.condition == "IsLocalEngine":
            assert statement.resources == ("*",)
            continue
        assert statement.condition == ""
        arns = {resource["Fn::Sub"].split(":stateMachine:${AWS::StackName}")[1] for resource in statement.resources}
        assert arns == names


def test_only_schedule_jobs_and_the_sweeper_start_attempts() -> None:
    starters = {
        statement.owner
        for statement in ROLES
        if "states:StartExecution" in statement.actions and {"Ref": "RunJobMachine"} in statement.resources
    }
    assert starters == {"ScheduleJobsRole", "SweepFleetRole"}


def test_state_machine_calls_exactly_its_own_functions() -> None:
    for name, machine in MACHINES.items():
        named = {value["Ref"] for value in machine["DefinitionSubstitutions"].values()} - {"AWS::Partition"}
        (statement,) = [s for s in ROLES if s.owner == f"{name}Role" and s.sid == "CallItsFunctions"]
        # An execution calls the versions of the release that it began on, so the role allows every version.
        allowed = {resource["Fn::Sub"].removeprefix("${").removesuffix(".Arn}:*") for resource in statement.resources}
        assert {f"{function}.Version" for function in allowed} == named, (
            "run `make generate`: it writes which functions each workflow may call"
        )


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_function_has_a_version_of_each_deployment(name: str) -> None:
    assert FUNCTIONS[name]["AutoPublishCodeSha256"] == {"Ref": "DeploymentId"}


def test_functions_and_workflows_are_invoked_through_their_live_alias() -> None:
    common = template()["Globals"]["Function"]
    assert common["AutoPublishAlias"] == "live"
    assert common["Environment"]["Variables"]["EVENKEEL_DEPLOYMENT"] == {"Ref": "DeploymentId"}
    assert {machine["AutoPublishAlias"] for machine in MACHINES.values()} == {"live"}
    variables = [spec.get("Environment", {}).get("Variables", {}) for spec in FUNCTIONS.values()]
    started = {name: value for environment in variables for name, value in environment.items() if name in WORKFLOW_ARNS}
    assert started == {
        "RECOVER_NODE_ARN": {"Ref": "RecoverNodeMachineAliaslive"},
        "RUN_JOB_ARN": {"Ref": "RunJobMachineAliaslive"},
        "BURST_CAPACITY_ARN": {"Ref": "BurstCapacityMachineAliaslive"},
    }
    assert resources("AWS::Serverless::LayerVersion")["EvenkeelLayer"]["RetentionPolicy"] == "Retain"


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_function_writes_only_its_own_log(name: str) -> None:
    (statement,) = [
        statement for statement in ROLES if statement.owner == f"{name}Role" and statement.sid == "WriteOwnLogs"
    ]
    assert statement.resources == ({"Fn::Sub": f"${{{name}Logs.Arn}}"},)


ON_MACHINES = {"states:SendTaskSuccess", "states:SendTaskFailure"}
"""Actions without a resource in the reference, for which AWS checks the ARN of the state machine.

The error of AWS names it: https://github.com/NOAA-OWP/hydrovis/issues/837. The AWS CDK grants them on it, after a test:
https://github.com/aws/aws-cdk/pull/8486
"""


WITHOUT_RESOURCE = ON_MACHINES | {"dynamodb:ListStreams"}
"""The policy of AWS for a function that reads a stream allows `ListStreams` on the stream:
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/iam-policy-example-lamda-process-dynamodb-streams.html
"""


def test_every_action_is_in_the_reference_with_its_link() -> None:
    recorded = json.loads(iam_reference.FILE.read_text(encoding="utf-8"))

    assert iam_reference.actions() == recorded, "check the change, then run `python -m tests.template.iam_reference`"


@pytest.mark.parametrize("statement", iam_reference.all_statements(), ids=str)
def test_every_action_supports_the_resource_on_which_it_is_granted(statement: Statement) -> None:
    for action in statement.actions:
        patterns = iam_reference.arn_patterns(action)
        for arn in iam_reference.arns(statement):
            if arn != "*" and action not in WITHOUT_RESOURCE:
                assert any(re.fullmatch(pattern, arn) for pattern in patterns), f"{action} cannot be granted on {arn}"


NEEDED_BY_SOURCES = {
    # https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
    "SQS": ("Queue", {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}),
    # https://docs.aws.amazon.com/lambda/latest/dg/services-dynamodb-eventsourcemapping.html
    "DynamoDB": (
        "Stream",
        {"dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator", "dynamodb:ListStreams"},
    ),
}
"""For each kind of event source, the property with its ARN, and the actions that the function's role must allow."""


def event_sources() -> Iterator[tuple[str, set[str], Json]]:
    """Yield each function with a polled source, the actions that Lambda needs, and the ARN of the source."""
    for name, function in FUNCTIONS.items():
        for source in function.get("Events", {}).values():
            if source["Type"] in NEEDED_BY_SOURCES:
                field, actions = NEEDED_BY_SOURCES[source["Type"]]
                yield name, actions, source["Properties"][field]


@pytest.mark.parametrize(("name", "actions", "arn"), [*event_sources()])
def test_role_may_read_each_event_source(name: str, actions: set[str], arn: Json) -> None:
    role = FUNCTIONS[name]["Role"]["Fn::GetAtt"][0]
    granted = {
        action
        for statement in statements.of_roles()
        if statement.owner == role and arn in statement.resources
        for action in statement.actions
    }

    assert actions - granted == set(), (
        "grant these actions: without them, Lambda refuses to create the event source mapping"
    )


POLICIES_OF_PEOPLE = sorted(resources("AWS::IAM::ManagedPolicy"))


@pytest.mark.parametrize("name", POLICIES_OF_PEOPLE)
def test_managed_policy_fits_with_the_longest_names(name: str) -> None:
    document = policy_sizes.RESOURCES[name]["Properties"]["PolicyDocument"]

    # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
    assert policy_sizes.size_of(document) <= 6144, "split the policy: IAM allows 6,144 characters"


@pytest.mark.parametrize("name", sorted(resources("AWS::IAM::Role")))
def test_inline_policies_of_a_role_fit_with_the_longest_names(name: str) -> None:
    policies = policy_sizes.RESOURCES[name]["Properties"]["Policies"]

    assert sum(policy_sizes.size_of(policy["PolicyDocument"]) for policy in policies) <= 10_240, (
        "shorten the policies of this role: IAM allows 10,240 characters in all"
    )


def test_policy_size_counts_the_resolved_document_without_white_space() -> None:
    arn = {"Fn::Sub": "arn:${AWS::Partition}:x:${AWS::Region}: ${AWS::StackName}"}

    size = policy_sizes.size_of({"Resource": [arn, {"Fn::GetAtt": ["EventsQueue", "Arn"]}, {"Ref": "AWS::NoValue"}]})

    queue = f"arn:aws-us-gov:sqs:ap-southeast-1:{'1' * 12}:{policy_sizes.name_of('EventsQueue')}"
    assert size == len(f'{{"Resource":["arn:aws-us-gov:x:ap-southeast-1:{"s" * 48}","{queue}"]}}')


def test_removing_one_permission_keeps_the_rest_of_a_policy() -> None:
    document = {
        "Version": "2012-10-17",
        "Statement": [
            {"Sid": "A", "Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": "x"},
            {"Sid": "B", "Effect": "Allow", "Action": "s3:GetObject", "Resource": "y"},
        ],
    }
    assert statements.without(document, Permission("R", "B", "s3:GetObject"))["Statement"] == document["Statement"][:1]
    less = statements.without(document, Permission("R", "A", "s3:GetObject"))["Statement"]
    assert [statement["Action"] for statement in less] == [["s3:PutObject"], ["s3:GetObject"]]
    assert len(statements.permissions(ROLES)) == len(set(statements.permissions(ROLES)))


def test_archive_is_reached_only_over_tls() -> None:
    assert template()["Resources"]["RawEventsBucketPolicy"]["Condition"] == "UsesTls"


def test_iam_page_lists_every_function() -> None:
    text = (ROOT / "docs" / "iam.md").read_text(encoding="utf-8")
    assert [name for name in FUNCTIONS if f"`{FUNCTIONS[name]['CodeUri'].split('/')[1]}`" not in text] == [], (
        "add the function to docs/iam.md"
    )
