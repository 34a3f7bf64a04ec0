"""The Terraform module: its layout, and its values as Terraform evaluates them. No provider is installed.

Terraform's own `terraform_data` replaces each AWS resource of `main.tf`. The argument names are compared with the
provider's reference.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.template.documents import template
from tools import terraform
from tools.package import BUCKET, PREFIX

MODULE = terraform.VARIABLES.parent
OUTPUT = 'output "parameters" {\n  value = local.parameters\n}\n'
# https://github.com/hashicorp/terraform-provider-aws/tree/main/website/docs: d/s3_bucket, r/s3_object,
# r/cloudformation_stack
ARGUMENTS = {
    "aws_s3_bucket": {"bucket"},
    "aws_s3_object": {"bucket", "key", "source", "source_hash", "content", "content_type", "etag", "tags"},
    "aws_cloudformation_stack": {
        *("name", "template_url", "template_body", "parameters", "capabilities", "iam_role_arn", "tags"),
        *("on_failure", "disable_rollback", "notification_arns", "policy_url", "timeout_in_minutes"),
    },
}
"""Arguments of the provider's resources that a module like this one may use."""
META_ARGUMENTS = {"for_each", "depends_on"}
BLOCK = re.compile(r'^(resource|data) "(aws_\w+)" "(\w+)" \{\n(.*?)^\}\n', re.MULTILINE | re.DOTALL)
ARGUMENT = re.compile(r"^  (\w+) += (.*)\n", re.MULTILINE)


def run_terraform(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = os.environ.get("EVENKEEL_TERRAFORM") or shutil.which("terraform")
    if not program:
        pytest.skip("terraform is not on the PATH, and no package has it; EVENKEEL_TERRAFORM can name it")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "CHECKPOINT_DISABLE": "1"}
    command = [program, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("variables")
    shutil.copy(terraform.VARIABLES, folder)
    (folder / "output.tf").write_text(OUTPUT)
    completed = run_terraform(folder, "init", "-input=false", "-no-color")
    assert completed.returncode == 0, completed.stderr
    return folder


def evaluated_parameters(variables: Path, tmp_path: Path, **given: Any) -> dict[str, str]:
    """Apply the variables, and return the parameters that the stack would get."""
    (tmp_path / "given.tfvars.json").write_text(json.dumps(given))
    files = (f"-var-file={tmp_path / 'given.tfvars.json'}", f"-state={tmp_path / 'state'}")
    completed = run_terraform(variables, "apply", "-auto-approve", "-input=false", "-no-color", *files)
    assert completed.returncode == 0, completed.stderr
    output_result = run_terraform(variables, "output", f"-state={tmp_path / 'state'}", "-json")
    values: dict[str, str] = json.loads(output_result.stdout)["parameters"]["value"]
    return values


def test_module_has_the_layout_of_terraform_fmt() -> None:
    completed = run_terraform(MODULE, "fmt", "-check", "-diff", "-no-color")

    assert completed.returncode == 0, completed.stdout


def test_each_parameter_has_its_own_variable() -> None:
    names = [terraform.variable_name(name) for name in template()["Parameters"]]

    assert len(set(names)) == len(names)
    assert {"hyperpod_cluster_arn", "kubernetes_clusters", "page_email", "sagemaker_endpoint"} <= set(names)


def test_omitted_terraform_variables_keep_the_defaults_of_the_template(variables: Path, tmp_path: Path) -> None:
    assert evaluated_parameters(variables, tmp_path) == {}


def test_terraform_variables_become_string_parameters_of_the_stack(variables: Path, tmp_path: Path) -> None:
    variable_values = {
        "fleet_name": "research",
        "kubernetes_clusters": ["research-eks", "burst-eks"],
        "log_retention_days": 90,
        "hyperpod_cluster_arn": "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghij12",
        "page_email": "",
    }

    assert evaluated_parameters(variables, tmp_path, **variable_values) == {
        "FleetName": "research",
        "KubernetesClusters": "research-eks,burst-eks",
        "LogRetentionDays": "90",
        "HyperPodClusterArn": "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghij12",
        "PageEmail": "",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "auto"),
        ("log_retention_days", 2),
        ("fleet_name", "Research"),
        ("hyperpod_cluster_arn", "arn:aws:eks:us-west-2:111122223333:cluster/research"),
    ],
)
def test_wrong_value_is_refused_with_the_variables_name(variables: Path, tmp_path: Path, name: str, value: Any) -> None:
    (tmp_path / "given.tfvars.json").write_text(json.dumps({name: value}))

    completed = run_terraform(
        variables, "plan", "-input=false", "-no-color", f"-var-file={tmp_path / 'given.tfvars.json'}"
    )

    assert completed.returncode == 1
    assert f"{name} must" in " ".join(completed.stderr.split())


def without_provider(text: str) -> str:
    """Return `main.tf` with `terraform_data` in place of each AWS resource, and with a fixed address of the bucket."""
    text = re.sub(r"  required_providers \{.*?^  \}\n", "", text, flags=re.MULTILINE | re.DOTALL)
    text = BLOCK.sub(lambda block: "" if block[1] == "data" else _as_terraform_data(block), text)
    text = text.replace("data.aws_s3_bucket.artifacts.bucket_regional_domain_name", '"releases.s3.amazonaws.com"')
    text = re.sub(r"\baws_\w+\.(\w+)\.(key|outputs)\b", r"terraform_data.\1.output.\2", text)
    return re.sub(r"\baws_\w+\.(\w+)", r"terraform_data.\1", text).replace("output.outputs", "output")


def _as_terraform_data(block: re.Match[str]) -> str:
    arguments = dict(ARGUMENT.findall(block[4]))
    meta_arguments = "".join(f"  {name} = {arguments[name]}\n" for name in arguments if name in META_ARGUMENTS)
    values = "".join(f"    {name} = {value}\n" for name, value in arguments.items() if name not in META_ARGUMENTS)
    return f'resource "terraform_data" "{block[3]}" {{\n{meta_arguments}  input = {{\n{values}  }}\n}}\n'


@pytest.fixture
def release(tmp_path: Path) -> Path:
    folder = tmp_path / "evenkeel-1.2.3"
    (folder / "artifacts" / "layer").mkdir(parents=True)
    (folder / "template.yaml").write_text("Resources: {}\n")
    (folder / "artifacts" / "layer" / "code.zip").write_bytes(b"code")
    return folder


def apply_module(folder: Path, release: Path) -> dict[str, Any]:
    """Apply the module to a release, and return the arguments of each resource by its name."""
    folder.mkdir(exist_ok=True)
    shutil.copy(terraform.VARIABLES, folder)
    (folder / "main.tf").write_text(without_provider((MODULE / "main.tf").read_text(encoding="utf-8")))
    variable_values = {
        "release": str(release),
        "artifact_bucket": "releases",
        "artifact_prefix": "main/",
        "fleet_name": "research",
    }
    (folder / "terraform.tfvars.json").write_text(json.dumps(variable_values))
    for arguments in (("init", "-input=false"), ("apply", "-auto-approve", "-input=false")):
        completed = run_terraform(folder, *arguments, "-no-color")
        assert completed.returncode == 0, completed.stderr
    state = json.loads(run_terraform(folder, "show", "-json").stdout)
    resources = state["values"]["root_module"]["resources"]
    return {resource["address"].removeprefix("terraform_data."): resource["values"]["output"] for resource in resources}


def test_resources_use_arguments_of_the_aws_provider() -> None:
    blocks = BLOCK.findall((MODULE / "main.tf").read_text(encoding="utf-8"))

    assert {kind for _, kind, _, _ in blocks} == set(ARGUMENTS)
    for _, kind, _, body in blocks:
        assert {name for name, _ in ARGUMENT.findall(body)} <= ARGUMENTS[kind] | META_ARGUMENTS, kind


def test_module_uploads_the_release_and_creates_its_stack(tmp_path: Path, release: Path) -> None:
    resources = apply_module(tmp_path / "module", release)

    artifact, stack = resources['artifact["layer/code.zip"]'], resources["evenkeel"]
    assert artifact["key"] == "main/artifacts/layer/code.zip"
    assert stack["template_url"] == f"https://releases.s3.amazonaws.com/{resources['template']['key']}"
    assert stack["capabilities"] == ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
    assert stack["parameters"] == {
        "FleetName": "research",
        BUCKET: "releases",
        PREFIX: "main/artifacts/",
        "DeploymentId": stack["parameters"]["DeploymentId"],
    }


def test_new_template_gets_another_deployment_id(tmp_path: Path, release: Path) -> None:
    before = apply_module(tmp_path / "module", release)["evenkeel"]
    unchanged_stack = apply_module(tmp_path / "module", release)["evenkeel"]
    (release / "template.yaml").write_text("Resources: {Topic: {Type: AWS::SNS::Topic}}\n")
    after = apply_module(tmp_path / "module", release)["evenkeel"]

    assert unchanged_stack == before
    assert after["parameters"]["DeploymentId"] != before["parameters"]["DeploymentId"]
    assert after["template_url"] != before["template_url"]


def test_module_sets_the_location_of_the_code() -> None:
    text = (MODULE / "main.tf").read_text(encoding="utf-8")

    assert all(f"    {name} = " in text for name in (BUCKET, PREFIX))
