"""The Terraform module: its layout, and its variables as Terraform evaluates them. No provider is installed."""

import json
import os
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


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
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
    done = run(folder, "init", "-input=false", "-no-color")
    assert done.returncode == 0, done.stderr
    return folder


def parameters(variables: Path, tmp_path: Path, **given: Any) -> dict[str, str]:
    """Apply the variables, and return the parameters that the stack would get."""
    (tmp_path / "given.tfvars.json").write_text(json.dumps(given))
    files = (f"-var-file={tmp_path / 'given.tfvars.json'}", f"-state={tmp_path / 'state'}")
    done = run(variables, "apply", "-auto-approve", "-input=false", "-no-color", *files)
    assert done.returncode == 0, done.stderr
    shown = run(variables, "output", f"-state={tmp_path / 'state'}", "-json")
    values: dict[str, str] = json.loads(shown.stdout)["parameters"]["value"]
    return values


def test_module_has_the_layout_of_terraform_fmt() -> None:
    done = run(MODULE, "fmt", "-check", "-diff", "-no-color")

    assert done.returncode == 0, done.stdout


def test_each_parameter_has_its_own_variable() -> None:
    names = [terraform.variable_name(name) for name in template()["Parameters"]]

    assert len(set(names)) == len(names)
    assert {"hyperpod_cluster_arn", "kubernetes_clusters", "page_email", "sagemaker_endpoint"} <= set(names)


def test_omitted_variables_keep_the_defaults_of_the_template(variables: Path, tmp_path: Path) -> None:
    assert parameters(variables, tmp_path) == {}


def test_variables_become_string_parameters_of_the_stack(variables: Path, tmp_path: Path) -> None:
    given = {
        "fleet_name": "research",
        "kubernetes_clusters": ["research-eks", "burst-eks"],
        "log_retention_days": 90,
        "hyperpod_cluster_arn": "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghij12",
        "page_email": "",
    }

    assert parameters(variables, tmp_path, **given) == {
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

    done = run(variables, "plan", "-input=false", "-no-color", f"-var-file={tmp_path / 'given.tfvars.json'}")

    assert done.returncode == 1
    assert f"{name} must" in " ".join(done.stderr.split())


def test_module_sets_the_location_of_the_code() -> None:
    text = (MODULE / "main.tf").read_text(encoding="utf-8")

    assert all(f"    {name} = " in text for name in (BUCKET, PREFIX))
