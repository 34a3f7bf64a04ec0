"""`sam build` and `sam deploy` against the engine, with a small template and a copy of the real layer."""

import json
import shutil
from pathlib import Path

import pytest

from evenkeel_local import PROJECT, deployment
from evenkeel_local.deployment import DeploymentError
from evenkeel_local.engine import Engine
from evenkeel_local.identities import Credentials
from tools import package

TEMPLATE = """
AWSTemplateFormatVersion: "2010-09-09"
Transform: AWS::Serverless-2016-10-31
Parameters:
  PythonRuntime: {Type: String, Default: python3.13}
  Architecture: {Type: String, Default: arm64}
  Greeting: {Type: String, Default: nobody}
Conditions:
  HasFailingResource: !Equals [!Ref Greeting, fail]
Resources:
  Failing:
    Type: AWS::S3::Bucket
    Condition: HasFailingResource
    Properties: {BucketName: evenkeel-artifacts}
  EvenkeelLayer:
    Type: AWS::Serverless::LayerVersion
    Metadata: {BuildMethod: makefile}
    Properties:
      ContentUri: shared/
      CompatibleRuntimes: [!Ref PythonRuntime]
  Greet:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/greet/
      Runtime: !Ref PythonRuntime
      Architectures: [!Ref Architecture]
      Handler: handler.handler
      Timeout: 30
      Layers: [!Ref EvenkeelLayer]
      Environment: {Variables: {GREETING: !Ref Greeting}}
Outputs:
  FunctionName: {Value: !Ref Greet}
"""

HANDLER = """
import os
import boto3, pydantic, aws_lambda_powertools
import evenkeel

def handler(event, context):
    print("called")
    modules = (boto3, pydantic, aws_lambda_powertools, evenkeel)
    return {
        "greeting": os.environ["GREETING"],
        "fromLayer": all("/layer_0/" in module.__file__ for module in modules),
        "compiled": all("__pycache__" in (module.__cached__ or "") for module in modules),
    }
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one function, and a layer built like the real one from an empty package."""
    project = tmp_path_factory.mktemp("project")
    (project / "functions" / "greet").mkdir(parents=True)
    (project / "functions" / "greet" / "handler.py").write_text(HANDLER)
    (project / "shared" / "evenkeel").mkdir(parents=True)
    (project / "shared" / "evenkeel" / "__init__.py").write_text('"""The layer."""\n')
    for name in ("Makefile", "requirements.txt", "slim_sdk.py"):
        shutil.copy(PROJECT / "shared" / name, project / "shared" / name)
    (project / "template.yaml").write_text(TEMPLATE)
    return project / "template.yaml"


def test_package_is_built_once_for_deployment_and_update_of_stack(
    engine: Engine, deployer: Credentials, template: Path, tmp_path: Path
) -> None:
    messages: list[str] = []
    awkward = 'a "b", c=d [{"e":1}]'

    def deploy(greeting: str) -> dict[str, object]:
        outputs = deployment.deploy(
            engine, deployer, {"Greeting": greeting}, template, tmp_path, stack_name="greet", progress=messages.append
        )
        answer = deployer.client("lambda").invoke(FunctionName=outputs["FunctionName"])
        return dict(json.loads(answer["Payload"].read()))

    first = deploy("hello")
    second = deploy(awkward)

    assert first == {"greeting": "hello", "fromLayer": True, "compiled": True}
    assert second["greeting"] == awkward
    assert messages.count("building the functions and their layer") <= 1
    assert deployment.stack_resources(deployer, "greet")["Greet"].startswith("greet-Greet-")


def test_cached_package_deploys_the_same_stack_on_a_new_engine(
    engine: Engine, deployer: Credentials, template: Path, tmp_path: Path
) -> None:
    def deploy(name: str) -> tuple[str, dict[str, object]]:
        outputs = deployment.deploy(engine, deployer, {"Greeting": name}, template, tmp_path, stack_name=name)
        response = deployer.client("cloudformation").get_template(StackName=name, TemplateStage="Original")
        answer = deployer.client("lambda").invoke(FunctionName=outputs["FunctionName"])
        return str(response["TemplateBody"]), dict(json.loads(answer["Payload"].read()))

    by_sam, greeted_by_sam = deploy("by-sam")
    log = tmp_path / "sam-deploy.log"
    log.unlink(missing_ok=True)
    by_package, greeted = deploy("by-package")

    assert not log.exists(), "the second stack came from the package, not from sam"
    assert by_package == by_sam
    assert (greeted_by_sam["greeting"], greeted["greeting"]) == ("by-sam", "by-package")
    assert greeted["fromLayer"], "the package has the code of the layer"


def deploy_release(deployer: Credentials, template: Path, folder: Path, stack: str, **given: str) -> dict[str, str]:
    """Package a build as a release, upload it, and create a stack from it; return the outputs."""
    chosen = deployment.local_parameters(template)
    runtime, architecture = chosen["PythonRuntime"], chosen["Architecture"]
    built = deployment.build(template, runtime, architecture, folder)
    release = folder / "release"
    package.package_template(built.parent, release, {"PythonRuntime": runtime, "Architecture": architecture})
    s3, cloudformation = deployer.client("s3"), deployer.client("cloudformation")
    s3.create_bucket(Bucket=stack, CreateBucketConfiguration={"LocationConstraint": deployer.region})
    for path in (path for path in release.rglob("*") if path.is_file()):
        s3.put_object(Bucket=stack, Key=f"v1/{path.relative_to(release)}", Body=path.read_bytes())
    parameters = {**chosen, **given, package.BUCKET: stack, package.PREFIX: "v1/artifacts/"}
    cloudformation.create_stack(
        StackName=stack,
        TemplateURL=f"{deployer.endpoint_url}/{stack}/v1/template.yaml",
        Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items()],
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
    )
    waiter = cloudformation.get_waiter("stack_create_complete")
    waiter.wait(StackName=stack, WaiterConfig={"Delay": 0.5, "MaxAttempts": 240})
    return deployment.stack_outputs(deployer, stack)


def test_release_archive_of_a_build_can_be_deployed(
    engine: Engine, deployer: Credentials, template: Path, tmp_path: Path
) -> None:
    outputs = deploy_release(deployer, template, tmp_path, "by-release", Greeting="hello")

    answer = json.loads(deployer.client("lambda").invoke(FunctionName=outputs["FunctionName"])["Payload"].read())
    assert (answer["greeting"], answer["fromLayer"], answer["compiled"]) == ("hello", True, True)


@pytest.mark.exhaustive
def test_release_archive_of_the_project_can_be_deployed(engine: Engine, deployer: Credentials, tmp_path: Path) -> None:
    given = {"LocalEngine": "true", "KubernetesClusters": "research-eks"}
    outputs = deploy_release(deployer, PROJECT / "template.yaml", tmp_path, "whole-release", **given)

    workflows, functions = deployer.client("stepfunctions"), deployer.client("lambda")
    definition = workflows.describe_state_machine(stateMachineArn=outputs["RecoverNodeArn"])["definition"]
    assert "${" not in definition, "substitute the ARN of each function in the workflow"
    answer = functions.invoke(FunctionName=outputs["ReceiveEventFunction"], Payload=b'{"Records": []}')
    assert json.loads(answer["Payload"].read()) == {"batchItemFailures": []}


def test_failed_resource_of_a_package_is_named(
    engine: Engine, deployer: Credentials, template: Path, tmp_path: Path
) -> None:
    deployment.deploy(engine, deployer, {"Greeting": "x"}, template, tmp_path, stack_name="makes-the-package")

    with pytest.raises(DeploymentError, match=r"The stack fails failed:\n  .*Validation failed"):
        deployment.deploy(engine, deployer, {"Greeting": "fail"}, template, tmp_path, stack_name="fails")


def test_unparsable_template_is_refused_with_sams_message(
    engine: Engine, deployer: Credentials, tmp_path: Path
) -> None:
    broken = tmp_path / "template.yaml"
    broken.write_text(TEMPLATE.replace("CodeUri: functions/greet/", "CodeUri: functions/absent/"))

    with pytest.raises(DeploymentError, match="sam build failed"):
        deployment.deploy(engine, deployer, {}, broken, tmp_path, stack_name="broken")


def test_identity_without_deploy_rights_is_refused(engine: Engine, template: Path, tmp_path: Path) -> None:
    nobody = Credentials("AKIA0000000000000000", "secret", engine.endpoint_url)

    with pytest.raises(DeploymentError, match=r"sam deploy failed|was refused: .*AccessDenied|InvalidAccessKeyId"):
        deployment.deploy(engine, nobody, {"Greeting": "x"}, template, tmp_path, stack_name="refused")


def test_local_parameters_follow_samconfig_and_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "samconfig.toml").write_text(
        '[local.deploy.parameters]\nparameter_overrides = ["Mode=act", "Expression=a=b"]\n'
    )

    parameters = deployment.local_parameters(tmp_path / "template.yaml")

    assert parameters["Mode"] == "act"
    assert parameters["Expression"] == "a=b"
    assert parameters["PythonRuntime"].startswith("python3.")
    assert parameters["Architecture"] in {"arm64", "x86_64"}


def test_layer_for_the_cloud_is_built_for_its_platform() -> None:
    assert deployment.layer_environment("python3.13", "arm64")["EVENKEEL_LAYER_PLATFORM"] == "aarch64-manylinux_2_28"
    assert deployment.layer_environment("python3.13", "arm64")["EVENKEEL_LAYER_PYTHON"] == "3.13"
