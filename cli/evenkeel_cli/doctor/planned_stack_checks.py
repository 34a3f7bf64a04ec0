"""Judge the facts about a planned stack: pure functions that return findings."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from evenkeel_cli.doctor.evaluate import ENOUGH_CONCURRENCY, MIN_CONCURRENCY
from evenkeel_cli.doctor.findings import DoctorFinding, failed, ok, unknown, warning
from evenkeel_cli.state_signs import count_of

Json = dict[str, Any]

MAX_STACK_NAME = 48
"""The longest function is named after the stack and `-settle_incident`; Lambda allows 64 characters."""
MAX_FLEET_NAME = 63
RESERVING_FUNCTIONS = 3
KEPT_UNRESERVED = 100
"""Lambda keeps this number for functions without a reservation.

Source: https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html
"""
_SAMCONFIG = "samconfig.toml"


def missing_credentials(reason: str, fix: str) -> list[DoctorFinding]:
    return [failed(reason, fix)]


def judge_account(account: str, region: str, hyperpod_arn: str) -> list[DoctorFinding]:
    """Judge whether the HyperPod cluster is in the account and region of the deployment."""
    if not hyperpod_arn:
        return []
    _, _, _, cluster_region, cluster_account, *_ = hyperpod_arn.split(":")
    if (cluster_region, cluster_account) == (region, account):
        return [ok(f"The HyperPod cluster is in account {account} and region {region}.", "account")]
    text = f"The HyperPod cluster is in {cluster_account}, {cluster_region}. You deploy to {account}, {region}."
    return [failed(text, f"Sign in to the cluster's account, or set region in {_SAMCONFIG}.", "account")]


def judge_names(stack: str, fleet: str) -> list[DoctorFinding]:
    findings = []
    for name, value, limit in (("stack", stack, MAX_STACK_NAME), ("fleet", fleet, MAX_FLEET_NAME)):
        if len(value) > limit:
            text = f"The name of the {name} has {count_of(len(value), 'character')}, at most {limit} are possible."
            findings.append(failed(text, f"Shorten it in {_SAMCONFIG}.", name))
    return findings or [ok(f"The names {stack} and {fleet} are short enough.")]


def judge_parameters(parameters: Mapping[str, str], clusters: Sequence[str]) -> list[DoctorFinding]:
    """Judge the parameters that CloudFormation's rules judge, and surprising parameters of a first deployment."""
    problems = {
        "KubernetesClusters": not clusters,
        "SecurityGroupIds": bool(parameters["SubnetIds"]) and not parameters["SecurityGroupIds"],
        "SubnetIds": bool(parameters["SecurityGroupIds"]) and not parameters["SubnetIds"],
        "CheckpointBuckets": bool(parameters["CheckpointEncryption"]) and not parameters["CheckpointBuckets"],
    }
    findings = [
        failed(f"{name} is missing; other parameters need it.", f"Set {name} in {_SAMCONFIG} (docs/deploy.md).", name)
        for name, is_missing in problems.items()
        if is_missing
    ]
    if parameters["LocalEngine"] == "true" or parameters["Policy"] != "production":
        text = "LocalEngine and Policy have the values of the local data centre."
        findings.append(failed(text, f"Set LocalEngine=false and Policy=production in {_SAMCONFIG}.", "LocalEngine"))
    if not parameters["PageEmail"]:
        text = "PageEmail is empty: no person receives pages until you subscribe to the page topic."
        findings.append(warning(text, "Set PageEmail, or follow docs/deploy.md, step 7.", "PageEmail"))
    return findings or [ok("The parameters fit together.")]


_COMPLETE = (
    "CREATE_COMPLETE",
    "UPDATE_COMPLETE",
    "UPDATE_ROLLBACK_COMPLETE",
    "IMPORT_COMPLETE",
    "IMPORT_ROLLBACK_COMPLETE",
)
"""States in which CloudFormation accepts an update."""


def judge_earlier_stack(name: str, status: str, parameters: Mapping[str, str]) -> list[DoctorFinding]:
    """Judge the stack of this name. `status` is empty if there is none."""
    if status in ("", "REVIEW_IN_PROGRESS"):
        findings = [ok(f"There is no stack {name} yet.")]
        if parameters["Schedules"] == "on":
            text = "Schedules is on in a new stack: alarms page for missing access until the setup is complete."
            findings.append(warning(text, f"Set Schedules=off in {_SAMCONFIG} (docs/deploy.md).", "Schedules"))
        if parameters["Mode"] == "act":
            text = "Mode is act in a new stack: Evenkeel repairs nodes before you have seen its decisions."
            findings.append(warning(text, f"Set Mode=observe in {_SAMCONFIG} (docs/deploy.md).", "Mode"))
        return findings
    if status in _COMPLETE:
        return [ok(f"The stack {name} can be updated ({status}).")]
    if status.endswith("_IN_PROGRESS"):
        return [failed(f"The stack {name} is being changed ({status}).", "Wait until the operation ends.")]
    if status == "UPDATE_ROLLBACK_FAILED":
        fix = f"aws cloudformation continue-update-rollback --stack-name {name}"
        return [failed(f"The last update of {name} could not be rolled back.", fix)]
    fix = f"aws cloudformation delete-stack --stack-name {name}; AWS keeps tables that hold data (docs/backup.md)"
    return [failed(f"The stack {name} cannot be updated ({status}).", fix)]


def judge_sam(installed_version: str, locked_version: str) -> list[DoctorFinding]:
    if installed_version == locked_version and installed_version:
        return [ok(f"sam has the locked version {locked_version}.")]
    text = (
        f"sam has version {installed_version}, but this release is locked to {locked_version}."
        if installed_version
        else "sam is not installed."
    )
    return [failed(text, "make setup")]


def judge_log_role(setting: str, role: str) -> list[DoctorFinding]:
    """Judge `ApiLogRole` against the account's role for the logs of API Gateway."""
    match setting, bool(role):
        case "present", False:
            text = "ApiLogRole=present, but API Gateway has no role for logs in this account and region."
            return [failed(text, f"Set ApiLogRole=off or ApiLogRole=set-up in {_SAMCONFIG}.")]
        case "set-up", True:
            text = f"ApiLogRole=set-up would replace {role} for every API of this account and region."
            return [warning(text, f"Set ApiLogRole=present in {_SAMCONFIG}, unless this stack made that role.")]
        case "off", True:
            return [
                ok(f"The API will write no access log. The account has a role: ApiLogRole=present would use {role}.")
            ]
        case "off", False:
            return [ok("The API will write no access log.")]
    role_text = f"has the role {role} for logs" if role else "has no role for logs yet"
    return [ok(f"ApiLogRole={setting} is right: API Gateway {role_text}.")]


def judge_limits(
    limit: int, unreserved_executions: int, *, reserved_per_function: tuple[int, int], reserved_in_template: int
) -> list[DoctorFinding]:
    """Judge the account's limit of concurrent Lambda invocations.

    Args:
        limit: The account's limit in this region.
        unreserved_executions: The part that no function has reserved.
        reserved_per_function: `CordonConcurrency` of the present stack and of the planned one, for each of three
            functions.
        reserved_in_template: `LambdaConcurrencyLimit`.
    """
    raise_it = (
        "aws service-quotas request-service-quota-increase --service-code lambda --quota-code L-B99A9384 "
        f"--desired-value {max(1000, limit)}"
    )
    present_executions, needed_executions = (
        RESERVING_FUNCTIONS * per_function for per_function in reserved_per_function
    )
    findings = []
    if unreserved_executions < MIN_CONCURRENCY:
        findings.append(
            failed(f"Only {unreserved_executions} of {limit} concurrent invocations are unreserved.", raise_it)
        )
    elif unreserved_executions < ENOUGH_CONCURRENCY:
        findings.append(
            warning(f"Only {unreserved_executions} of {limit} concurrent invocations are unreserved.", raise_it)
        )
    if needed_executions and unreserved_executions + present_executions - needed_executions < KEPT_UNRESERVED:
        text = (
            f"CordonConcurrency={reserved_per_function[1]} reserves {needed_executions} invocations. Lambda "
            f"must keep {KEPT_UNRESERVED} of the "
            f"{unreserved_executions + present_executions} that are unreserved without this stack."
        )
        findings.append(failed(text, f"Lower CordonConcurrency in {_SAMCONFIG}, or: {raise_it}", "CordonConcurrency"))
    if reserved_in_template != limit:
        text = (
            f"LambdaConcurrencyLimit is {reserved_in_template}, the account's limit is {limit}: the "
            "alarm would be wrong."
        )
        findings.append(warning(text, f"Set LambdaConcurrencyLimit={limit} in {_SAMCONFIG}.", "LambdaConcurrencyLimit"))
    return findings or [ok(f"{unreserved_executions} of {limit} concurrent invocations are unreserved.")]


def judge_orchestrator(cluster_description: Json, clusters: Sequence[str]) -> list[DoctorFinding]:
    """Judge whether HyperPod's own EKS cluster is the first of `KubernetesClusters`."""
    subject = "orchestrator"
    arn = cluster_description.get("Orchestrator", {}).get("Eks", {}).get("ClusterArn", "")
    if not arn:
        text = "The HyperPod cluster is not orchestrated by EKS. Evenkeel needs Kubernetes."
        return [failed(text, "Use a HyperPod cluster with EKS.", subject)]
    name = arn.rpartition("/")[2]
    if clusters and clusters[0] == name:
        return [ok(f"HyperPod's EKS cluster {name} is the first of KubernetesClusters.", subject)]
    text = f"HyperPod's EKS cluster is {name}. KubernetesClusters begins with {clusters[0] if clusters else 'none'}."
    return [failed(text, f"Put {name} first in KubernetesClusters.", subject)]


def judge_buckets(buckets: Mapping[str, Json | None], region: str) -> list[DoctorFinding]:
    """Judge each checkpoint bucket: its description, or None if it does not exist."""
    findings = []
    for arn, bucket in buckets.items():
        if not re.fullmatch(r"arn:aws[a-z-]*:s3:::[a-z0-9.-]+", arn):
            findings.append(
                failed(f"{arn} is not the ARN of a bucket.", f"Name arn:PARTITION:s3:::BUCKET in {_SAMCONFIG}.", arn)
            )
        elif bucket is None:
            findings.append(failed(f"There is no bucket {arn}.", "Correct CheckpointBuckets.", arn))
        elif not bucket.get("BucketRegion"):
            findings.append(unknown("S3 does not report the region of the bucket.", "Check it yourself.", arn))
        elif bucket["BucketRegion"] != region:
            bucket_region = bucket["BucketRegion"]
            text = (
                f"The bucket is in {bucket_region}, the stack in {region}. A gateway endpoint cannot reach the bucket."
            )
            findings.append(warning(text, "Prefer a bucket of the same region.", arn))
    if not buckets:
        return [ok("There are no checkpoint buckets (parameter CheckpointBuckets).")]
    return findings or [ok(f"{len(buckets)} checkpoint buckets exist in {region}.")]


def judge_keys(keys: Mapping[str, str]) -> list[DoctorFinding]:
    """Judge each key of the buckets: its state, empty if it does not exist."""
    findings = [
        failed(f"The key {arn} {f'is {state}' if state else 'does not exist'}.", "Correct CheckpointEncryption.", arn)
        for arn, state in keys.items()
        if state != "Enabled"
    ]
    if not keys:
        return [ok("There are no keys of your own (parameter CheckpointEncryption).")]
    return findings or [ok(f"{len(keys)} keys are enabled.")]
