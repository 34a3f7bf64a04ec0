"""The engine listens only on loopback, enforces IAM, ignores the caller's environment, and leaves no process behind."""

import base64
import io
import json
import socket
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from evenkeel_local.engine import Engine, EngineError
from evenkeel_local.identities import Credentials, create_deployer, make_user, set_policy
from evenkeel_local.processes import group_members
from evenkeel_local.ticker import Ticker, ticker_statements
from tests.waiting import until

TRUST_LAMBDA = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
MakeFunction = Callable[[str, str], str]


@pytest.fixture(scope="module")
def make_function(deployer: Credentials) -> MakeFunction:
    """Create a function from source text, with a role without permissions. Returns its name."""

    def make(name: str, source: str) -> str:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as bundle:
            bundle.writestr("handler.py", source)
        role = deployer.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(TRUST_LAMBDA))
        deployer.client("lambda").create_function(
            FunctionName=name,
            Runtime="python3.11",
            Handler="handler.handler",
            Role=role["Role"]["Arn"],
            Code={"ZipFile": archive.getvalue()},
            Environment={"Variables": {"OWN": "yes"}},
        )
        return name

    return make


def invoke(credentials: Credentials, name: str) -> Any:
    answer = credentials.client("lambda").invoke(FunctionName=name)
    document = json.loads(answer["Payload"].read())
    assert "FunctionError" not in answer, document
    return document


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("Host", "attacker.example", 421),
        ("Host", "127.0.0.1.attacker.example:4566", 421),
        ("Host", "127.0.0.1/attacker.example", 421),
        ("Host", "localhost.", 421),
        ("Origin", "https://attacker.example", 403),
    ],
)
def test_engine_refuses_web_pages_and_other_hosts(engine: Engine, name: str, value: str, status: int) -> None:
    request = urllib.request.Request(f"{engine.endpoint_url}/_ministack/health", headers={name: value})

    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)

    refused.value.close()
    assert refused.value.code == status


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of another listener that never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def listening_addresses(pids: list[int]) -> set[str]:
    """Return the IPv4 addresses (as /proc has them, bytes reversed in hex) that these processes listen on."""
    inodes = set()
    for pid in pids:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            target = str(handle.readlink())
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    addresses = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        rows = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        for fields in (row.split() for row in rows):
            is_listening = fields[3] == "0A" or table.startswith("udp")
            if is_listening and fields[9] in inodes:
                addresses.add(fields[1].partition(":")[0])
    return addresses


def test_engine_listens_only_on_loopback(engine: Engine) -> None:
    assert listening_addresses(group_members(engine.pid)) == {"0100007F"}


def test_error_about_a_taken_port_names_it(tmp_path: Path, taken_port: int) -> None:
    with pytest.raises(EngineError, match=f"cannot bind 127.0.0.1:{taken_port}"):
        Engine.start(tmp_path, port=taken_port)


def test_second_engine_finds_a_free_port(engine: Engine, tmp_path: Path) -> None:
    with Engine.start(tmp_path) as second:
        assert second.port != engine.port
        assert second.is_running()


def test_stopped_engine_leaves_only_its_log(tmp_path: Path) -> None:
    running = Engine.start(tmp_path)
    group = running.pid
    running.stop()
    running.stop()

    assert group_members(group) == []
    assert [path.name for path in tmp_path.iterdir()] == ["engine.log"]


def test_unsigned_request_is_refused(engine: Engine) -> None:
    body = b"Action=ListUsers&Version=2010-05-08"

    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(engine.endpoint_url, data=body, timeout=10)

    with refused.value as answer:
        assert answer.code == 403


def test_wrong_secret_is_refused(engine: Engine, deployer: Credentials) -> None:
    forged = Credentials(deployer.access_key_id, "guessed", engine.endpoint_url)

    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        forged.client("sts").get_caller_identity()


@pytest.mark.parametrize("service", ["sagemaker", "eks"])
def test_engine_does_not_answer_calls_to_the_gpu_cluster(deployer: Credentials, service: str) -> None:
    with pytest.raises(ClientError):
        deployer.client(service).list_clusters()


def test_user_may_do_only_what_its_policy_allows(deployer: Credentials) -> None:
    allowed = {"Effect": "Allow", "Action": "sqs:CreateQueue", "Resource": "*"}
    user = make_user(deployer, "policy-test", [allowed])

    user.client("sqs").create_queue(QueueName="policy-test")
    with pytest.raises(ClientError, match="is not authorized to perform"):
        user.client("sns").create_topic(Name="policy-test")

    assert user.principal_arn == user.client("sts").get_caller_identity()["Arn"]


def test_replaced_policy_takes_effect_at_once(deployer: Credentials) -> None:
    user = make_user(deployer, "replaced-policy", [{"Effect": "Allow", "Action": "sns:*", "Resource": "*"}])
    user.client("sns").create_topic(Name="replaced-policy")

    set_policy(deployer, "replaced-policy", [{"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}])

    with pytest.raises(ClientError, match="is not authorized to perform"):
        user.client("sns").create_topic(Name="replaced-policy")


def test_recreated_user_loses_its_old_key(deployer: Credentials) -> None:
    first = make_user(deployer, "made-twice", [])
    second = make_user(deployer, "made-twice", [])

    assert second.client("sts").get_caller_identity()["Arn"] == second.principal_arn
    with pytest.raises(ClientError):
        first.client("sts").get_caller_identity()


def test_bootstrap_of_an_engine_can_be_repeated(tmp_path: Path) -> None:
    with Engine.start(tmp_path) as fresh:
        create_deployer(fresh)
        again = create_deployer(fresh)

        assert again.client("s3").list_buckets()["Buckets"][0]["Name"] == "evenkeel-artifacts"


def test_printed_credentials_do_not_contain_the_secret(deployer: Credentials) -> None:
    assert deployer.secret_access_key not in repr(deployer)


def test_commands_use_the_credentials_of_the_environment(deployer: Credentials) -> None:
    variables = deployer.environment()

    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        identity = boto3.Session().client("sts").get_caller_identity()

    assert identity["Arn"] == deployer.principal_arn


def test_functions_do_not_inherit_the_environment_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", "http://127.0.0.1:9")
    monkeypatch.setenv("SOMETHING_PRIVATE", "yes")
    with Engine.start(tmp_path) as fresh:
        environ = Path(f"/proc/{group_members(fresh.pid)[-1]}/environ").read_bytes().decode().split("\0")

    names = {entry.partition("=")[0] for entry in environ}
    assert not {"AWS_ENDPOINT_URL_SAGEMAKER", "SOMETHING_PRIVATE", "AWS_ACCESS_KEY_ID"} & names
    assert f"HOME={tmp_path}/home" in environ


def test_function_process_has_the_identity_of_its_role(deployer: Credentials, make_function: MakeFunction) -> None:
    name = make_function(
        "acts-as-role",
        "import boto3, os\n"
        "def handler(event, context):\n"
        "    print('called')\n"
        "    return [boto3.client('sts').get_caller_identity()['Arn'], os.environ['OWN'], os.environ['AWS_REGION']]\n",
    )

    assert invoke(deployer, name) == [
        "arn:aws:sts::000000000000:assumed-role/acts-as-role/acts-as-role",
        "yes",
        "us-west-2",
    ]


def test_workflow_tasks_return_the_mocked_results(engine: Engine, deployer: Credentials) -> None:
    trust = {"Statement": [{"Effect": "Allow", "Principal": {"Service": "states.amazonaws.com"}, "Action": "sts:*"}]}
    role = deployer.client("iam").create_role(RoleName="mocked", AssumeRolePolicyDocument=json.dumps(trust))
    states = deployer.client("stepfunctions")
    task = {"Type": "Task", "Resource": "arn:aws:lambda:us-west-2:000000000000:function:absent", "End": True}
    definition = {"QueryLanguage": "JSONata", "StartAt": "Ask", "States": {"Ask": task}}
    machine = states.create_state_machine(
        name="mocked", definition=json.dumps(definition), roleArn=role["Role"]["Arn"]
    )["stateMachineArn"]
    engine.mock_workflows(
        {
            "StateMachines": {"mocked": {"TestCases": {"Answered": {"Ask": "Forty"}}}},
            "MockedResponses": {"Forty": {"0": {"Return": {"answer": 42}}}},
        }
    )

    started = states.start_execution(stateMachineArn=f"{machine}#Answered", input="{}")["executionArn"]

    until(lambda: states.describe_execution(executionArn=started)["status"] != "RUNNING", "the execution to end")
    engine.mock_workflows({})
    assert json.loads(states.describe_execution(executionArn=started)["output"]) == {"answer": 42}


COUNTING = """
import os, time
from pathlib import Path
folder = Path(os.environ["TMPDIR"])

def handler(event, context):
    print("called")
    mark = folder / f"running-{os.getpid()}-{time.monotonic_ns()}"
    mark.touch()
    side_by_side = len(list(folder.glob("running-*")))
    with (folder / "seen").open("a") as seen:
        seen.write(f"{side_by_side} {event.get('name')}\\n")
    time.sleep(0.1)
    mark.unlink()
"""


def test_ticker_invokes_repeatedly_without_overlap(
    engine: Engine, deployer: Credentials, make_function: MakeFunction
) -> None:
    name = make_function("ticked", COUNTING)
    ticking = make_user(deployer, "ticker", ticker_statements([name]))
    with Ticker(ticking, {name: 0.01}, payloads={name: {"name": "sweep"}}) as ticker:
        beat = ticker.schedule_states[name]
        until(lambda: beat.invoked >= 4, "four invocations")

    assert beat.failed == 0, beat.last_error
    lines = (engine.run_dir / "tmp" / "seen").read_text().splitlines()
    assert set(lines) == {"1 sweep"}
    assert len(lines) >= 4


def test_ticker_may_invoke_only_its_functions(deployer: Credentials, make_function: MakeFunction) -> None:
    other = make_function("not-ticked", COUNTING)
    ticking = make_user(deployer, "narrow-ticker", ticker_statements(["ticked"]))

    with pytest.raises(ClientError, match="is not authorized to perform"):
        ticking.client("lambda").invoke(FunctionName=other)


def test_ticker_counts_a_failed_function_and_continues(deployer: Credentials, make_function: MakeFunction) -> None:
    name = make_function("always-fails", "def handler(event, context):\n    raise ValueError('as ever')\n")
    ticking = make_user(deployer, "failing-ticker", ticker_statements([name]))
    with Ticker(ticking, {name: 0.01}) as ticker:
        beat = ticker.schedule_states[name]
        until(lambda: beat.failed >= 2, "two failures")

    assert "as ever" in str(beat.last_error)


def test_handler_error_keeps_its_name_and_the_process(deployer: Credentials, make_function: MakeFunction) -> None:
    source = "\n".join(
        [
            "import os",
            "class Odd(Exception): pass",
            "def handler(event, context):",
            "    if event.get('fail'): raise Odd('as it was said')",
            "    return os.getpid()",
        ]
    )
    client, name = deployer.client("lambda"), make_function("fails-by-name", source)

    before = json.load(client.invoke(FunctionName=name, Payload=b"{}")["Payload"])
    failed = client.invoke(FunctionName=name, Payload=b'{"fail": true}', LogType="Tail")
    after = json.load(client.invoke(FunctionName=name, Payload=b"{}")["Payload"])

    error = json.load(failed["Payload"])
    assert (failed["FunctionError"], error["errorType"], error["errorMessage"]) == (
        "Unhandled",
        "Odd",
        "as it was said",
    )
    assert "Odd: as it was said" in base64.b64decode(failed["LogResult"]).decode()
    assert after == before


def test_updated_api_keeps_its_id_and_answers_new_paths(deployer: Credentials) -> None:
    client, name = deployer.client("cloudformation"), "updated-api"

    def template(*paths: str) -> str:
        answer = {"x-amazon-apigateway-integration": {"type": "MOCK"}}
        body = {"info": {"title": name}, "paths": {path: {"get": answer} for path in paths}}
        properties = {"Name": name, "Body": body}
        api = {"Type": "AWS::ApiGateway::RestApi", "Properties": properties}
        return json.dumps({"Resources": {"Api": api}, "Outputs": {"Id": {"Value": {"Ref": "Api"}}}})

    def api_id() -> str:
        return str(client.describe_stacks(StackName=name)["Stacks"][0]["Outputs"][0]["OutputValue"])

    client.create_stack(StackName=name, TemplateBody=template("/jobs"))
    client.get_waiter("stack_create_complete").wait(StackName=name, WaiterConfig={"Delay": 1})
    before = api_id()
    client.update_stack(StackName=name, TemplateBody=template("/jobs", "/nodes"))
    client.get_waiter("stack_update_complete").wait(StackName=name, WaiterConfig={"Delay": 1})

    resources = deployer.client("apigateway").get_resources(restApiId=before)["items"]
    assert api_id() == before
    assert {resource["path"] for resource in resources} >= {"/jobs", "/nodes"}
