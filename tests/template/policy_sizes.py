"""The size of policies as IAM counts it, with the longest names that a deployment may have."""

import json
import re
from typing import Any

from tests.template.documents import Json, template, translated
from tests.template.test_first_deployment import LONGEST_NAMES, MAX_STACK_NAME

RESOURCES = translated()["Resources"]
PARAMETERS = template()["Parameters"]
_ACCOUNT, _RANDOM = "1" * 12, 14
"""Names that CloudFormation makes end with a hyphen and up to 13 characters."""
LONGEST: dict[str, Any] = {
    "AWS::Partition": "aws-us-gov",
    "AWS::Region": "ap-southeast-1",
    "AWS::AccountId": _ACCOUNT,
    "AWS::URLSuffix": "amazonaws.com.cn",
    "AWS::StackName": "s" * MAX_STACK_NAME,
    "FleetName": "f" * PARAMETERS["FleetName"]["MaxLength"],
    "HyperPodClusterArn": f"arn:aws-us-gov:sagemaker:ap-southeast-1:{_ACCOUNT}:cluster/{'c' * 12}",
    # The site chooses their number and length: four clusters with names of 40 characters.
    "KubernetesClusters": ["k" * 40] * 4,
    "CheckpointBuckets": [f"arn:aws-us-gov:s3:::{'b' * 63}"] * 4,
    "CheckpointEncryption": [f"arn:aws-us-gov:kms:ap-southeast-1:{_ACCOUNT}:key/{'k' * 36}"] * 2,
}
KINDS = {
    "AWS::SQS::Queue": ("sqs", "", 80),
    "AWS::DynamoDB::Table": ("dynamodb", "table/", 255),
    "AWS::Lambda::Function": ("lambda", "function:", 64),
    "AWS::StepFunctions::StateMachine": ("states", "stateMachine:", 80),
    "AWS::SNS::Topic": ("sns", "", 256),
    "AWS::Events::EventBus": ("events", "event-bus/", 256),
    "AWS::Events::Rule": ("events", "rule/", 64),
    "AWS::Logs::LogGroup": ("logs", "log-group:", 512),
    "AWS::KMS::Key": ("kms", "key/", 36),
    "AWS::ApiGateway::RestApi": ("", "", 10),
}
"""Type → service and prefix in its ARN, and its longest name."""


def name_of(logical: str) -> str:
    """Return a name with the maximum length for a resource."""
    kind = RESOURCES[logical]["Type"]
    declared_name = next(
        (
            value
            for (named_type, field), _ in LONGEST_NAMES.items()
            if named_type == kind and (value := RESOURCES[logical].get("Properties", {}).get(field))
        ),
        None,
    )
    generated_name = "s" * MAX_STACK_NAME + "-" + logical + "r" * _RANDOM
    return str(resolved(declared_name)) if declared_name else generated_name[: KINDS.get(kind, ("", "", 63))[2]]


def arn_of(logical: str) -> str:
    """Return an ARN with the maximum length for a resource."""
    kind = RESOURCES[logical]["Type"]
    if kind == "AWS::S3::Bucket":
        return f"arn:aws-us-gov:s3:::{name_of(logical)}"
    service, prefix, _ = KINDS.get(kind, ("iam", "role/", 64))
    return f"arn:aws-us-gov:{service}:ap-southeast-1:{_ACCOUNT}:{prefix}{name_of(logical)}"


_REFERS_TO_ARN = ("AWS::StepFunctions::StateMachine", "AWS::SNS::Topic")


def resolved(value: Any, extra: Json | None = None) -> Any:
    """Return a value as CloudFormation resolves it, with every condition true."""
    match value:
        case {"Ref": str(name)}:
            return reference_value(name)
        case {"Fn::GetAtt": [name, "Arn"]}:
            return arn_of(name)
        case {"Fn::Sub": [text, names]}:
            return resolved({"Fn::Sub": text}, names)
        case {"Fn::Sub": str(text)}:
            return re.sub(r"\$\{([^}]+)\}", lambda match: substituted_text(match[1], extra or {}), text)
        case {"Fn::If": [_, chosen, _]}:
            return resolved(chosen)
        case {"Fn::Join": [separator, parts]}:
            return separator.join(resolved(parts))
        case {"Fn::Split": [separator, text]}:
            return resolved(text).split(separator)
        case dict():
            return {key: result for key, inner in value.items() if (result := resolved(inner)) is not None}
        case list():
            return [result for inner in value if (result := resolved(inner)) is not None]
    return value


def reference_value(name: str) -> Any:
    if name == "AWS::NoValue":
        return None
    if name in LONGEST:
        return LONGEST[name]
    if name in PARAMETERS:
        return str(PARAMETERS[name]["Default"])
    function, _, suffix = name.partition(".")
    if suffix == "Alias":  # sam replaces it by the alias of the function
        return f"{arn_of(function)}:{template()['Globals']['Function']['AutoPublishAlias']}"
    return arn_of(name) if RESOURCES[name]["Type"] in _REFERS_TO_ARN else name_of(name)


def substituted_text(name: str, extra: Json) -> str:
    if name in extra:
        return str(resolved(extra[name]))
    logical, _, attribute = name.partition(".")
    if attribute == "Name":
        return name_of(logical)
    return str(resolved({"Fn::GetAtt": [logical, "Arn"]} if attribute == "Arn" else {"Ref": logical}))


def size_of(document: Json) -> int:
    """Return the number of characters that IAM counts: white space is free."""
    return len(re.sub(r"\s", "", json.dumps(resolved(document))))
