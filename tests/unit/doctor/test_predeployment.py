"""Each check before a deployment runs on a prepared account, and with each fault that it must report."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest

from evenkeel_cli.doctor import checks, findings, network, planned_stack_checks
from evenkeel_cli.doctor.findings import CouldNotCheck, DoctorFinding, Status
from evenkeel_cli.doctor.predeployment import CHECKS_BEFORE_DEPLOYMENT, PlannedSite
from evenkeel_cli.doctor.site import BadCredentials, ResourceNotFound
from evenkeel_cli.offline.planned_stack import PlannedStack, read_planned_stack, read_sam_versions
from tests import aws_shapes
from tests.fakes.system import A_MOMENT
from tests.template import test_first_deployment
from tools import vpc_endpoints

ROOT = Path(__file__).parents[3]
Json = dict[str, Any]
ACCOUNT, REGION = "111122223333", "us-west-2"
HYPERPOD = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:cluster/k3v9x2m7q1ab"
BUCKET = "arn:aws:s3:::checkpoints"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/0a1b2c3d-0000-1111-2222-333344445555"
DENIED = CouldNotCheck("Your identity may not call it.", "Use another identity.")


def a_cluster(**changes: Any) -> Json:
    config = {
        "vpcId": "vpc-1",
        "clusterSecurityGroupId": "sg-cluster",
        "endpointPublicAccess": False,
        "endpointPrivateAccess": True,
        "publicAccessCidrs": ["0.0.0.0/0"],
    }
    cluster: Json = {
        "status": "ACTIVE",
        "accessConfig": {"authenticationMode": "API_AND_CONFIG_MAP"},
        "resourcesVpcConfig": {name: changes.pop(name, value) for name, value in config.items()},
    }
    return {"cluster": cluster | changes}


def a_hyperpod(**changes: Any) -> Json:
    cluster = {
        "ClusterArn": HYPERPOD,
        "ClusterName": "research",
        "ClusterStatus": "InService",
        "NodeRecovery": "None",
        "InstanceGroups": [{"InstanceGroupName": "p5-workers", "ImageVersionStatus": "UpToDate"}],
        "Orchestrator": {"Eks": {"ClusterArn": f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/research-eks"}},
    }
    return cluster | changes


def security_groups(*ids: str, **changes: Any) -> Json:
    pairs = [{"GroupId": "sg-functions"}]
    rule = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "UserIdGroupPairs": pairs, "IpRanges": []} | changes
    return {"SecurityGroups": [{"GroupId": name, "VpcId": "vpc-1", "IpPermissions": [rule]} for name in ids]}


def subnets_in_zones(*pairs: tuple[str, str], vpc: str = "vpc-1") -> Json:
    return {"Subnets": [{"SubnetId": name, "VpcId": vpc, "AvailabilityZone": zone} for name, zone in pairs]}


def a_route_table(**target: str) -> Json:
    route = {"DestinationCidrBlock": "0.0.0.0/0", "State": "active", **target}
    table = {"Associations": [{"SubnetId": "subnet-a"}, {"SubnetId": "subnet-b"}], "Routes": [route]}
    main = {"Associations": [{"Main": True}], "Routes": [{"DestinationCidrBlock": "10.0.0.0/16", "State": "active"}]}
    return {"RouteTables": [main, table]}


NAT = a_route_table(NatGatewayId="nat-1")
NO_INTERNET = a_route_table(GatewayId="igw-1")
"""Routes without access to the internet. A function has no public address, so it cannot use an internet gateway."""


def made_endpoints(*names: str, state: str = "Available") -> Json:
    return {"VpcEndpoints": [{"ServiceName": f"com.amazonaws.{REGION}.{name}", "State": state} for name in names]}


def healthy_answers() -> dict[str, Json]:
    return {
        "sts:get_caller_identity": {"Arn": f"arn:aws:sts::{ACCOUNT}:assumed-role/Deploy/ana", "Account": ACCOUNT},
        "cloudformation:describe_stacks": {"Stacks": [a_stack("UPDATE_COMPLETE")]},
        "apigateway:get_account": {},
        "lambda:get_account_settings": concurrency_limits(1000, 1000),
        "eks:describe_cluster": a_cluster(),
        "sagemaker:describe_cluster": a_hyperpod(),
        "ec2:describe_subnets": subnets_in_zones(("subnet-a", "us-west-2a"), ("subnet-b", "us-west-2b")),
        "ec2:describe_security_groups": security_groups("sg-functions", "sg-cluster"),
        "ec2:describe_route_tables": NAT,
        "ec2:describe_vpc_endpoints": made_endpoints(),
        "s3:head_bucket": {"BucketRegion": REGION},
        "kms:describe_key": {"KeyMetadata": {"KeyId": KEY, "KeyState": "Enabled"}},
    }


def a_stack(status: str) -> Json:
    return {"StackName": "evenkeel", "CreationTime": A_MOMENT, "StackStatus": status}


def concurrency_limits(total: int, unreserved: int) -> Json:
    return {"AccountLimit": {"ConcurrentExecutions": total, "UnreservedConcurrentExecutions": unreserved}}


class FakeAws:
    """A correctly prepared account. Requests and answers have the shapes of botocore's service models."""

    def __init__(self) -> None:
        self.planted: dict[str, Any] = {}

    def call(self, service: str, operation: str, **parameters: Any) -> Json:
        name = f"{service}:{operation}"
        answer = self.planted.get(name, healthy_answers()[name])
        aws_shapes.check_exchange(service, operation, parameters, {} if isinstance(answer, Exception) else answer)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)


@dataclass
class FakeAccount:
    """The account and the environment in which a test plants a fault."""

    aws: FakeAws = field(default_factory=FakeAws)
    parameters: dict[str, str] = field(default_factory=dict)
    name: str = "evenkeel"
    sam: tuple[str, str] = ("1.0", "1.0")

    def planned(self) -> PlannedStack:
        read = read_planned_stack(ROOT, "prod")
        default_parameters = {
            "KubernetesClusters": "research-eks",
            "HyperPodClusterArn": HYPERPOD,
            "SubnetIds": "subnet-a,subnet-b",
            "SecurityGroupIds": "sg-functions",
            "CheckpointBuckets": BUCKET,
            "CheckpointEncryption": KEY,
            "PageEmail": "oncall@example.com",
        }
        return read._replace(name=self.name, parameters={**read.parameters, **default_parameters, **self.parameters})

    def run(self, *names: str) -> list[DoctorFinding]:
        site = PlannedSite(self.aws, self.planned(), self.sam)
        skipped = {check.name for check in CHECKS_BEFORE_DEPLOYMENT if names and check.name not in names}
        return checks.run(site, A_MOMENT, skipped, CHECKS_BEFORE_DEPLOYMENT)


Plant = Callable[[FakeAccount], None]


def plant_answer(call: str, answer: Any) -> Plant:
    return lambda account: account.aws.planted.__setitem__(call, answer)


def with_parameters(**parameters: str) -> Plant:
    return lambda account: account.parameters.update(parameters)


def plant_both(*plants: Plant) -> Plant:
    def plant(account: FakeAccount) -> None:
        for plant_fault in plants:
            plant_fault(account)

    return plant


class PredeploymentCase(NamedTuple):
    """A planted fault, the check that must report it, and the status, text and fix that the check reports."""

    check: str
    plant: Plant
    status: str
    expected_text: str
    fix: str


WITHOUT_VPC = with_parameters(SubnetIds="", SecurityGroupIds="")
FAULTS = [
    PredeploymentCase(
        "credentials",
        plant_answer("sts:get_caller_identity", BadCredentials("They have expired.", "aws sso login")),
        "failed",
        "expired",
        "sso",
    ),
    PredeploymentCase(
        "credentials", plant_answer("sts:get_caller_identity", DENIED), "unknown", "may not", "identity that deploys"
    ),
    PredeploymentCase(
        "credentials",
        with_parameters(HyperPodClusterArn=HYPERPOD.replace(ACCOUNT, "444455556666")),
        "failed",
        "444455556666",
        "Sign in",
    ),
    PredeploymentCase(
        "names", lambda account: setattr(account, "name", "e" * 49), "failed", "49 characters", "Shorten"
    ),
    PredeploymentCase("names", with_parameters(FleetName="f" * 64), "failed", "64 characters", "Shorten"),
    PredeploymentCase(
        "parameters", with_parameters(KubernetesClusters="none"), "failed", "KubernetesClusters is missing", "Set"
    ),
    PredeploymentCase(
        "parameters", with_parameters(SecurityGroupIds=""), "failed", "SecurityGroupIds is missing", "Set"
    ),
    PredeploymentCase("parameters", with_parameters(SubnetIds=""), "failed", "SubnetIds is missing", "Set"),
    PredeploymentCase(
        "parameters", with_parameters(CheckpointBuckets=""), "failed", "CheckpointBuckets is missing", "Set"
    ),
    PredeploymentCase("parameters", with_parameters(Policy="local"), "failed", "local data centre", "production"),
    PredeploymentCase("parameters", with_parameters(PageEmail=""), "warning", "no person", "step 7"),
    PredeploymentCase(
        "sam", lambda account: setattr(account, "sam", ("1.0", "2.0")), "failed", "is locked to 2.0", "make setup"
    ),
    PredeploymentCase(
        "sam", lambda account: setattr(account, "sam", ("", "2.0")), "failed", "not installed", "make setup"
    ),
    PredeploymentCase(
        "stack",
        plant_answer("cloudformation:describe_stacks", {"Stacks": [a_stack("ROLLBACK_COMPLETE")]}),
        "failed",
        "ROLLBACK_COMPLETE",
        "delete-stack",
    ),
    PredeploymentCase(
        "stack",
        plant_answer("cloudformation:describe_stacks", {"Stacks": [a_stack("UPDATE_ROLLBACK_FAILED")]}),
        "failed",
        "could not be rolled back",
        "continue-update-rollback",
    ),
    PredeploymentCase(
        "stack",
        plant_answer("cloudformation:describe_stacks", {"Stacks": [a_stack("UPDATE_IN_PROGRESS")]}),
        "failed",
        "is being changed",
        "Wait",
    ),
    PredeploymentCase(
        "stack",
        plant_both(
            plant_answer("cloudformation:describe_stacks", ResourceNotFound("no")), with_parameters(Schedules="on")
        ),
        "warning",
        "Schedules is on",
        "off",
    ),
    PredeploymentCase(
        "stack",
        plant_both(plant_answer("cloudformation:describe_stacks", ResourceNotFound("no")), with_parameters(Mode="act")),
        "warning",
        "Mode is act",
        "observe",
    ),
    PredeploymentCase(
        "stack", plant_answer("cloudformation:describe_stacks", DENIED), "unknown", "may not", "identity that deploys"
    ),
    PredeploymentCase("api-logs", with_parameters(ApiLogRole="present"), "failed", "no role", "ApiLogRole=off"),
    PredeploymentCase(
        "api-logs",
        plant_both(
            with_parameters(ApiLogRole="set-up"),
            plant_answer("apigateway:get_account", {"cloudwatchRoleArn": "arn:aws:iam::1:role/x"}),
        ),
        "warning",
        "would replace arn:aws:iam::1:role/x",
        "present",
    ),
    PredeploymentCase(
        "api-logs", plant_answer("apigateway:get_account", DENIED), "unknown", "may not", "identity that deploys"
    ),
    PredeploymentCase(
        "concurrency",
        plant_both(
            plant_answer("lambda:get_account_settings", concurrency_limits(10, 10)),
            with_parameters(LambdaConcurrencyLimit="10"),
        ),
        "failed",
        "Only 10 of 10",
        "request-service-quota-increase",
    ),
    PredeploymentCase(
        "concurrency",
        plant_answer("lambda:get_account_settings", concurrency_limits(1000, 60)),
        "warning",
        "Only 60 of 1000",
        "quota",
    ),
    PredeploymentCase(
        "concurrency",
        plant_both(
            plant_answer("lambda:get_account_settings", concurrency_limits(1000, 150)),
            with_parameters(CordonConcurrency="20"),
        ),
        "failed",
        "reserves 60",
        "Lower",
    ),
    PredeploymentCase(
        "concurrency",
        plant_answer("lambda:get_account_settings", concurrency_limits(3000, 3000)),
        "warning",
        "the account's limit is 3000",
        "LambdaConcurrencyLimit=3000",
    ),
    PredeploymentCase(
        "concurrency", plant_answer("lambda:get_account_settings", DENIED), "unknown", "may not", "identity"
    ),
    PredeploymentCase(
        "kubernetes", plant_answer("eks:describe_cluster", ResourceNotFound("no")), "failed", "no cluster", "Correct"
    ),
    PredeploymentCase(
        "kubernetes", plant_answer("eks:describe_cluster", a_cluster(status="FAILED")), "failed", "FAILED", "describe"
    ),
    PredeploymentCase(
        "kubernetes",
        plant_answer("eks:describe_cluster", a_cluster(status="UPDATING")),
        "warning",
        "UPDATING",
        "describe",
    ),
    PredeploymentCase(
        "kubernetes",
        plant_answer("eks:describe_cluster", a_cluster(accessConfig={"authenticationMode": "CONFIG_MAP"})),
        "failed",
        "no access entries",
        "update-cluster-config",
    ),
    PredeploymentCase("kubernetes", WITHOUT_VPC, "failed", "private endpoint only", "SubnetIds"),
    PredeploymentCase(
        "kubernetes",
        plant_both(
            WITHOUT_VPC,
            plant_answer(
                "eks:describe_cluster", a_cluster(endpointPublicAccess=True, publicAccessCidrs=["198.51.100.0/24"])
            ),
        ),
        "failed",
        "only listed addresses",
        "SubnetIds",
    ),
    PredeploymentCase(
        "kubernetes",
        plant_answer("eks:describe_cluster", a_cluster(endpointPrivateAccess=False, endpointPublicAccess=True)),
        "warning",
        "only through NAT",
        "private endpoint",
    ),
    PredeploymentCase(
        "kubernetes",
        with_parameters(KubernetesClusters="none"),
        "failed",
        "No Kubernetes cluster",
        "KubernetesClusters",
    ),
    PredeploymentCase(
        "kubernetes", plant_answer("eks:describe_cluster", DENIED), "unknown", "may not", "identity that deploys"
    ),
    PredeploymentCase(
        "hyperpod", plant_answer("sagemaker:describe_cluster", ResourceNotFound("no")), "failed", "no HyperPod", "Arn"
    ),
    PredeploymentCase(
        "hyperpod",
        plant_answer("sagemaker:describe_cluster", a_hyperpod(ClusterStatus="Failed")),
        "failed",
        "is Failed",
        "describe",
    ),
    PredeploymentCase(
        "hyperpod",
        plant_answer("sagemaker:describe_cluster", a_hyperpod(Orchestrator={})),
        "failed",
        "not orchestrated by EKS",
        "EKS",
    ),
    PredeploymentCase(
        "hyperpod",
        with_parameters(KubernetesClusters="burst-eks,research-eks"),
        "failed",
        "begins with burst-eks",
        "first",
    ),
    PredeploymentCase(
        "hyperpod", plant_answer("sagemaker:describe_cluster", DENIED), "unknown", "may not", "identity that deploys"
    ),
    PredeploymentCase(
        "subnets",
        plant_answer("ec2:describe_subnets", subnets_in_zones(("subnet-a", "z1"))),
        "failed",
        "Subnet subnet-b",
        "Correct",
    ),
    PredeploymentCase(
        "subnets",
        plant_answer("ec2:describe_subnets", subnets_in_zones(("subnet-a", "z1"), ("subnet-b", "z1"))),
        "warning",
        "one Availability Zone",
        "two",
    ),
    PredeploymentCase(
        "subnets",
        plant_answer("ec2:describe_subnets", subnets_in_zones(("subnet-a", "z1"), ("subnet-b", "z2"), vpc="vpc-2")),
        "failed",
        "different VPCs",
        "one VPC",
    ),
    PredeploymentCase(
        "subnets", plant_answer("eks:describe_cluster", a_cluster(vpcId="vpc-9")), "warning", "is in vpc-9", "private"
    ),
    PredeploymentCase(
        "subnets",
        plant_answer("ec2:describe_security_groups", security_groups("sg-cluster")),
        "failed",
        "group sg-functions",
        "Correct",
    ),
    PredeploymentCase(
        "subnets",
        plant_answer(
            "ec2:describe_security_groups", security_groups("sg-functions", "sg-cluster", UserIdGroupPairs=[])
        ),
        "failed",
        "sg-cluster of research-eks has no rule",
        "authorize-security-group-ingress --group-id sg-cluster",
    ),
    PredeploymentCase(
        "subnets",
        plant_answer(
            "ec2:describe_security_groups", security_groups("sg-functions", "sg-cluster", FromPort=80, ToPort=80)
        ),
        "failed",
        "has no rule",
        "443",
    ),
    PredeploymentCase(
        "subnets", plant_answer("ec2:describe_subnets", DENIED), "unknown", "may not", "identity that deploys"
    ),
    PredeploymentCase(
        "endpoints",
        plant_answer("ec2:describe_route_tables", NO_INTERNET),
        "failed",
        "lacks the endpoints",
        "vpc-endpoints",
    ),
    PredeploymentCase(
        "endpoints",
        plant_both(
            plant_answer("ec2:describe_route_tables", NO_INTERNET),
            plant_answer("ec2:describe_vpc_endpoints", made_endpoints(*network.NEEDED_ENDPOINTS[:-1])),
        ),
        "failed",
        f"lacks the endpoints {network.NEEDED_ENDPOINTS[-1]}.",
        "vpc-endpoints",
    ),
    PredeploymentCase(
        "endpoints",
        plant_both(
            plant_answer("ec2:describe_route_tables", NO_INTERNET),
            plant_answer("ec2:describe_vpc_endpoints", made_endpoints(*network.NEEDED_ENDPOINTS, state="Pending")),
        ),
        "failed",
        "lacks the endpoints dynamodb",
        "vpc-endpoints",
    ),
    PredeploymentCase(
        "endpoints", plant_answer("ec2:describe_route_tables", DENIED), "unknown", "may not", "identity that deploys"
    ),
    PredeploymentCase(
        "endpoints", plant_answer("ec2:describe_subnets", subnets_in_zones()), "unknown", "do not exist", "subnets"
    ),
    PredeploymentCase(
        "buckets", plant_answer("s3:head_bucket", ResourceNotFound("no")), "failed", "no bucket", "Correct"
    ),
    PredeploymentCase(
        "buckets", with_parameters(CheckpointBuckets="checkpoints"), "failed", "not the ARN", "arn:PARTITION:s3"
    ),
    PredeploymentCase(
        "buckets", plant_answer("s3:head_bucket", {"BucketRegion": "eu-west-1"}), "warning", "eu-west-1", "same region"
    ),
    PredeploymentCase("buckets", plant_answer("s3:head_bucket", {}), "unknown", "does not report", "Check"),
    PredeploymentCase(
        "keys", plant_answer("kms:describe_key", ResourceNotFound("no")), "failed", "does not exist", "Correct"
    ),
    PredeploymentCase(
        "keys",
        plant_answer("kms:describe_key", {"KeyMetadata": {"KeyId": KEY, "KeyState": "Disabled"}}),
        "failed",
        "Disabled",
        "Cor",
    ),
    PredeploymentCase("keys", plant_answer("kms:describe_key", DENIED), "unknown", "may not", "identity that deploys"),
]


def test_correctly_prepared_account_passes_every_check() -> None:
    doctor_findings = FakeAccount().run()

    assert {finding.check for finding in doctor_findings} == {check.name for check in CHECKS_BEFORE_DEPLOYMENT}
    assert [finding for finding in doctor_findings if finding.status is not Status.OK] == []
    assert findings.exit_code(doctor_findings) == 0


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.check}: {fault.expected_text}")
def test_predeployment_check_reports_its_planted_fault_and_the_fix(fault: PredeploymentCase) -> None:
    account = FakeAccount()
    fault.plant(account)

    bad = [finding for finding in account.run(fault.check) if finding.status is not Status.OK]

    assert [
        finding
        for finding in bad
        if finding.status.value == fault.status and fault.expected_text in finding.text and fault.fix in finding.fix
    ]
    assert all(finding.fix for finding in bad)


def test_each_check_has_a_planted_fault() -> None:
    assert {fault.check for fault in FAULTS if fault.status == "failed"} == {
        check.name for check in CHECKS_BEFORE_DEPLOYMENT
    }
    reads = {check.name for check in CHECKS_BEFORE_DEPLOYMENT} - {"names", "parameters", "sam"}
    assert {fault.check for fault in FAULTS if fault.status == "unknown"} == reads


def test_check_that_could_not_read_is_never_ok() -> None:
    account = FakeAccount()
    account.aws.call = lambda *_a, **_k: (_ for _ in ()).throw(DENIED)  # type: ignore[method-assign]

    doctor_findings = [finding for finding in account.run() if finding.check not in ("names", "parameters", "sam")]

    assert {finding.status for finding in doctor_findings} == {Status.UNKNOWN}


def test_update_may_keep_its_reserved_concurrency() -> None:
    account = FakeAccount()
    present = {"Parameters": [{"ParameterKey": "CordonConcurrency", "ParameterValue": "30"}]}
    plant_both(
        with_parameters(CordonConcurrency="30", LambdaConcurrencyLimit="200"),
        plant_answer("lambda:get_account_settings", concurrency_limits(200, 110)),
        plant_answer("cloudformation:describe_stacks", {"Stacks": [a_stack("UPDATE_COMPLETE") | present]}),
    )(account)

    (finding,) = account.run("concurrency")

    assert finding.status is Status.OK


def test_missing_stack_before_first_deployment_is_no_fault() -> None:
    account = FakeAccount()
    plant_answer("cloudformation:describe_stacks", ResourceNotFound("no"))(account)

    (finding,) = account.run("stack")

    assert (finding.status, finding.text) == (Status.OK, "There is no stack evenkeel yet.")


def test_vpc_endpoints_named_as_in_china_are_recognised() -> None:
    names = [f"cn.com.amazonaws.cn-north-1.{name}" for name in network.NEEDED_ENDPOINTS]
    documents = [{"ServiceName": name, "State": "available"} for name in names]

    (finding,) = network.judge_routes({"subnet-a": []}, documents)

    assert finding.status is Status.OK


def test_subnet_without_a_route_table_uses_the_main_table() -> None:
    tables = NO_INTERNET["RouteTables"]

    assert network.routes_of("subnet-z", tables) == tables[0]["Routes"]
    assert network.routes_of("subnet-a", tables) == tables[1]["Routes"]


def test_checked_limits_equal_those_of_the_template() -> None:
    assert planned_stack_checks.MAX_STACK_NAME == test_first_deployment.MAX_STACK_NAME
    assert test_first_deployment.PARAMETERS["FleetName"]["MaxLength"] == planned_stack_checks.MAX_FLEET_NAME
    assert [endpoint.name for endpoint in vpc_endpoints.needed_endpoints()] == list(network.NEEDED_ENDPOINTS)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("KubernetesClusters", {"KubernetesClusters": "none"}),
        ("SecurityGroupIds", {"SecurityGroupIds": ""}),
        ("SubnetIds", {"SubnetIds": ""}),
        ("CheckpointBuckets", {"CheckpointBuckets": ""}),
    ],
)
def test_parameters_that_the_template_refuses_fail_the_check(name: str, parameters: dict[str, str]) -> None:
    account = FakeAccount(parameters=parameters)
    planned = account.planned().parameters

    assert test_first_deployment.refusals(**planned) != []
    assert [finding.subject for finding in account.run("parameters") if finding.status is Status.FAILED] == [name]


def test_installed_sam_cli_has_the_locked_version() -> None:
    installed, locked = read_sam_versions(ROOT)

    assert installed == locked != ""


def test_doctor_page_describes_every_predeployment_check() -> None:
    page = (ROOT / "docs" / "operate" / "doctor.md").read_text(encoding="utf-8")
    section = page.split("## Before a deployment")[1].split("\n## ")[0]
    rows = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]

    assert rows == [check.name for check in CHECKS_BEFORE_DEPLOYMENT]


def test_predeployment_output_as_json_follows_the_schema_of_doctor() -> None:
    schema = json.loads((ROOT / "docs" / "schemas" / "doctor.schema.json").read_text(encoding="utf-8"))
    account = FakeAccount()
    WITHOUT_VPC(account)
    document = findings.to_json(
        account.run(), fleet="prod", stack="evenkeel", region=REGION, as_of=A_MOMENT.isoformat(), then=""
    )

    jsonschema.validate(document, schema)


# ---------------------------------------------------------------- make deploy

STUB_PROGRAM = '#!/bin/sh\necho "{name} $*" >> "{log}"\nexit {code}\n'


@pytest.mark.parametrize(
    ("code", "deploys"), [(0, True), (1, False), (2, True)], ids=["in-order", "failed", "could-not-check"]
)
def test_failed_check_stops_make_deploy(tmp_path: Path, code: int, deploys: bool) -> None:
    log = tmp_path / "log"
    for name, ends in (("evenkeel", code), ("python", 0), ("sam", 0), ("python3", 0)):
        stub = tmp_path / name
        stub.write_text(STUB_PROGRAM.format(name=name, log=log, code=ends))
        stub.chmod(0o755)
    words = [f"BIN={tmp_path}", f"SAM={tmp_path / 'sam'}", f"PYTHON={tmp_path / 'python3'}", "ENV=prod", "SKIP=keys"]

    completed = subprocess.run(["make", "deploy", *words], cwd=ROOT, capture_output=True, text=True, check=False)

    steps = [line for line in log.read_text().splitlines() if not line.startswith("python3")]
    assert steps[0] == "evenkeel doctor --before prod --skip keys"
    assert (completed.returncode == 0) is deploys
    assert steps[1:] == (["python -m tools.build prod", "python -m tools.deploy prod"] if deploys else [])
