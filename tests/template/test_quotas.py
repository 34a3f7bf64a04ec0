"""The stack stays within the quotas of AWS that no account can raise, also with the longest names."""

import json
from collections import Counter

import pytest

from tests.template import policy_sizes
from tests.template.documents import WORKFLOWS, Json, resources, translated, workflow_text
from tests.template.test_first_deployment import MAX_STACK_NAME


def translated_resources(kind: str) -> dict[str, Json]:
    return resources(kind, translated())


def test_translated_template_is_within_the_limits_of_cloudformation() -> None:
    document = translated()

    # https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html
    assert len(document["Resources"]) <= 500
    assert len(document["Parameters"]) <= 200
    assert len(document["Outputs"]) <= 200
    assert len(json.dumps(document)) <= 1_000_000


def test_environment_variables_of_each_function_fit() -> None:
    for name, function in translated_resources("AWS::Lambda::Function").items():
        variables = policy_sizes.resolved(function["Environment"]["Variables"])

        # https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
        assert sum(len(key) + len(str(value)) for key, value in variables.items()) <= 4096, name


def test_resource_policy_of_each_function_fits_with_the_longest_names() -> None:
    """Lambda writes one statement for each route that may call the alias of a function."""
    sizes: Counter[str] = Counter()
    for name, permission in translated_resources("AWS::Lambda::Permission").items():
        text, names = permission["SourceArn"]["Fn::Sub"]
        source = policy_sizes.resolved({"Fn::Sub": [text.replace("arn:aws:", "arn:${AWS::Partition}:"), names]})
        alias = permission["FunctionName"]["Ref"]
        statement = {
            "Sid": f"{'s' * MAX_STACK_NAME}-{name}-{'r' * 13}",
            "Effect": "Allow",
            "Principal": {"Service": permission["Principal"]},
            "Action": permission["Action"],
            "Resource": f"{policy_sizes.arn_of(alias.partition('Alias')[0])}:live",
            "Condition": {"ArnLike": {"AWS:SourceArn": source}},
        }
        sizes[alias] += len(json.dumps(statement))

    # https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
    assert set(sizes) == {f"{name}Aliaslive" for name in ("ApiRead", "ApiSubmit", "ApiOperate", "ApiAdmin")}
    assert max(sizes.values()) <= 20_480, sizes


def test_paths_of_the_api_fit_api_gateway() -> None:
    paths = translated()["Resources"]["Api"]["Properties"]["Body"]["paths"]
    nodes = {
        "/".join(parts[:count]) for path in paths if (parts := path.split("/")) for count in range(1, len(parts) + 1)
    }
    variables = Counter(node.rpartition("/")[0] for node in nodes if node.endswith("}"))

    # https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-execution-service-limits-table.html
    assert len(nodes) <= 300
    # API Gateway refuses two names of one variable: https://github.com/amazon-archives/aws-apigateway-importer/issues/202
    assert [parent for parent, count in variables.items() if count > 1] == []


def test_alarms_and_dashboard_fit_cloudwatch() -> None:
    alarms = translated_resources("AWS::CloudWatch::Alarm")
    (dashboard,) = translated_resources("AWS::CloudWatch::Dashboard").values()
    widgets = json.loads(dashboard["DashboardBody"]["Fn::Sub"])["widgets"]
    plotted = [len(widget["properties"].get("metrics", ())) for widget in widgets]

    # https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricAlarm.html
    assert all(len(alarm["AlarmDescription"]) <= 1024 for alarm in alarms.values())
    assert all(len(alarm.get("Metrics", ())) <= 20 for alarm in alarms.values())
    # https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html
    assert (max(plotted) <= 500, sum(plotted) <= 2500) == (True, True)
    # https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
    assert max(len(widget["properties"].get("alarms", ())) for widget in widgets) <= 100


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_definition_fits_step_functions(name: str) -> None:
    # https://docs.aws.amazon.com/step-functions/latest/apireference/API_CreateStateMachine.html
    assert len(workflow_text(name)) <= 1_048_576
