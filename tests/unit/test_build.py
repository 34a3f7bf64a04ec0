"""`make build` builds the layer for the parameters of the environment, and reports a layer that does not fit them."""

import py_compile
import sys
import tomllib
from pathlib import Path

import pytest

from evenkeel_cli.offline.planned_stack import read_planned_stack
from evenkeel_client.errors import CommandFailed
from tools import build

ROOT = Path(__file__).resolve().parents[2]
THIS_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
SETTINGS = """
[lab.global.parameters]
stack_name = "evenkeel-lab"
region = "eu-west-1"
[lab.deploy.parameters]
parameter_overrides = {overrides}
"""
TEMPLATE = """Resources: {}
Parameters:
  FleetName:
    Type: String
    Default: main # a comment
  KubernetesClusters: {Type: CommaDelimitedList, Default: none}

Outputs: {}
"""


def a_layer(folder: Path, tag: str, name: str = "pydantic_core-2.0") -> Path:
    info = folder / f"{name}.dist-info"
    info.mkdir(parents=True)
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n")
    return folder


def a_project(folder: Path, overrides: str) -> Path:
    (folder / "samconfig.toml").write_text(SETTINGS.format(overrides=overrides))
    (folder / "template.yaml").write_text(TEMPLATE)
    return folder


@pytest.mark.parametrize(
    ("tag", "runtime", "architecture"),
    [
        ("cp313-cp313-manylinux_2_17_aarch64", "python3.13", "arm64"),
        ("cp313-cp313-manylinux_2_17_x86_64.manylinux2014_x86_64", "python3.13", "x86_64"),
        ("cp38-abi3-manylinux_2_28_aarch64", "python3.13", "arm64"),
        ("py2.py3-none-any", "python3.11", "x86_64"),
    ],
)
def test_wheel_of_the_layers_platform_is_accepted(tmp_path: Path, tag: str, runtime: str, architecture: str) -> None:
    assert build.wrong_libraries(a_layer(tmp_path, tag), runtime, architecture) == []


@pytest.mark.parametrize(
    ("tag", "runtime", "architecture"),
    [
        ("cp313-cp313-manylinux_2_17_aarch64", "python3.13", "x86_64"),
        ("cp313-cp313-manylinux_2_17_x86_64", "python3.13", "arm64"),
        ("cp312-cp312-manylinux_2_17_aarch64", "python3.13", "arm64"),
        ("cp313-cp313-macosx_11_0_arm64", "python3.13", "arm64"),
    ],
)
def test_wheel_of_another_platform_is_reported(tmp_path: Path, tag: str, runtime: str, architecture: str) -> None:
    a_layer(a_layer(tmp_path, "py3-none-any", "boto3-1.0"), tag)

    assert build.wrong_libraries(tmp_path, runtime, architecture) == [f"pydantic_core-2.0 was built for {tag}"]


def test_empty_layer_is_reported(tmp_path: Path) -> None:
    assert build.wrong_libraries(tmp_path, "python3.13", "arm64") == [f"{tmp_path} has no packages"]


@pytest.mark.parametrize(
    ("runtime", "architecture", "platform"),
    [
        ("python3.13", "arm64", "aarch64-manylinux_2_28"),
        ("python3.13", "x86_64", "x86_64-manylinux_2_28"),
        ("python3.11", "x86_64", "x86_64-manylinux_2_17"),
    ],
)
def test_platform_and_python_of_the_layer_follow_the_parameters(runtime: str, architecture: str, platform: str) -> None:
    variables = build.layer_environment(runtime, architecture, "")

    assert variables["EVENKEEL_LAYER_PLATFORM"] == platform
    assert f"python{variables['EVENKEEL_LAYER_PYTHON']}" == runtime


def test_byte_code_of_a_layer_is_counted_or_reported_missing(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("VALUE = 1\n")
    without = build.describe_byte_code(tmp_path, THIS_PYTHON)
    py_compile.compile(str(module), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)

    assert "no byte code" in without
    assert build.describe_byte_code(tmp_path, THIS_PYTHON) == "The layer has byte code for 1 modules."
    assert "no byte code" in build.describe_byte_code(tmp_path, "python3.99"), (
        "report that the byte code of another version does not count"
    )


def test_byte_code_that_python_would_recheck_is_not_counted(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("VALUE = 1\n")
    py_compile.compile(str(module), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)

    assert "no byte code" in build.describe_byte_code(tmp_path, THIS_PYTHON)


def test_interpreter_has_the_version_of_the_runtime_or_is_absent() -> None:
    assert build.find_interpreter(THIS_PYTHON) == sys.executable
    assert build.find_interpreter("python3.99") == ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", sorted(build.MACHINES))
def test_built_layer_fits_its_architecture_and_no_other(tmp_path: Path, architecture: str) -> None:
    other_architecture = ({*build.MACHINES} - {architecture}).pop()

    assert build.build(THIS_PYTHON, architecture, tmp_path) == 0

    layer = tmp_path / "EvenkeelLayer" / "python"
    assert build.wrong_libraries(layer, THIS_PYTHON, other_architecture)
    assert set(build.compiled_libraries(layer)) == {(f"cpython-{sys.version_info.major}{sys.version_info.minor}", True)}


# ---------------------------------------------------------------- the environment of samconfig


@pytest.mark.parametrize(
    "overrides", ['["FleetName=lab", "KubernetesClusters=a,b"]', '"FleetName=lab KubernetesClusters=a,b"']
)
def test_environment_takes_missing_parameters_from_the_template(tmp_path: Path, overrides: str) -> None:
    planned_stack = read_planned_stack(a_project(tmp_path, overrides), "lab")

    assert (planned_stack.name, planned_stack.region) == ("evenkeel-lab", "eu-west-1")
    assert planned_stack.parameters == {"FleetName": "lab", "KubernetesClusters": "a,b"}
    assert planned_stack.clusters() == ("a", "b")


def test_omitted_cluster_parameter_means_no_cluster(tmp_path: Path) -> None:
    assert read_planned_stack(a_project(tmp_path, "[]"), "lab").clusters() == ()


@pytest.mark.parametrize(
    ("environment", "overrides", "says"),
    [
        ("prod", "[]", "has no environment 'prod'. It has lab."),
        ("lab", '["Fleet=lab"]', "sets Fleet, a parameter that"),
        ("lab", '["FleetName"]', "is not a list of Name=value"),
        ("lab", "[", "not valid TOML"),
    ],
)
def test_wrong_environment_is_refused(tmp_path: Path, environment: str, overrides: str, says: str) -> None:
    with pytest.raises(CommandFailed) as error_info:
        read_planned_stack(a_project(tmp_path, overrides), environment)

    assert says in error_info.value.text


@pytest.mark.parametrize("environment", ["local", "dev", "prod"])
def test_build_can_read_every_environment_of_samconfig(environment: str) -> None:
    samconfig_parameters = tomllib.loads((ROOT / "samconfig.toml").read_text())[environment]["deploy"]["parameters"]

    planned_stack = read_planned_stack(ROOT, environment)

    assert {
        name: planned_stack.parameters[name]
        for name in dict(overrides.split("=", 1) for overrides in samconfig_parameters["parameter_overrides"])
    }
    assert planned_stack.parameters["Mode"] == ("act" if environment == "local" else "observe")
