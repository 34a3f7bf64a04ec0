"""Commands that show the fault catalogue and check a policy without a fleet."""

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from evenkeel.domain.health.faults import default_catalogue
from evenkeel_cli.offline.policies import load_policy
from tests.unit.cli.conftest import CliFixture

EXPLAINED = f"""\
▲ gpu:driver_hang  nvidia-smi or a DCGM probe hangs
  hardware, major

  plan          nvidia-smi or a DCGM probe hangs: Evenkeel waits for a second,
                independent source.
  confirmed by  a second, independent signal, or a person
  two signals   nvidia-smi or a DCGM probe hangs: Evenkeel moves the jobs, then:
                reboot then replace.
  waits         1m00s for more evidence, then starts
  drain         short (5m00s); the job cannot save
  checkpoints   trusted; a checkpoint that DCP finished is enough, without a
                manifest
  validation    Running, Ready, all accelerators, no fault mark
  if repeated   the 2nd time within 168 h on one node, recovery starts with
                replace

  LADDER: each rung runs if the previous rung did not help
  reboot after 0s, 15m00s at most       nvidia-smi or a DCGM probe hangs: a
                                        reboot may clear the fault, is quickest
                                        and keeps the node.
  replace after 15m00s, 30m00s at most  The provider accepted the reboot, but
                                        the node did not come back. nvidia-smi
                                        or a DCGM probe hangs: a reboot did not
                                        help or would not last, so Evenkeel
                                        replaces the node.
  ask_person after 45m00s               The provider accepted the replace, but
                                        the node did not come back. Evenkeel
                                        already requested its replacement, which
                                        it does only once per node.

  NVSentinel  GpuDcgmUnresponsive
  note        A local hang is stronger evidence than a remote one
  reference  NVSentinel: https://github.com/NVIDIA/NVSentinel

policy  {load_policy(None).hash}, catalogue {default_catalogue().hash}
"""


def write_policy(cli: CliFixture, document: object) -> str:
    file = cli.folder / "policy.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return str(file)


# ---------------------------------------------------------------- faults


def test_explain_shows_the_recovery_of_a_fault(cli: CliFixture) -> None:
    result = cli.run("faults", "explain", "gpu:driver_hang", terminal=True)

    assert result.out == EXPLAINED
    assert cli.requests == []


def test_explain_json_has_plan_steps_and_references(cli: CliFixture) -> None:
    document = json.loads(cli.run("faults", "explain", "79", "-o", "json").out)

    assert document["fault"]["key"] == "xid:79"
    assert [step["rung"] for step in document["steps"]] == ["reboot", "replace", "ask_person"]
    assert [step["deadlineSeconds"] for step in document["steps"]] == [900, 1800, 0]
    assert document["catalogueHash"] == default_catalogue().hash
    assert "https://docs.nvidia.com/deploy/xid-errors/index.html" in [
        reference["url"] for reference in document["references"]
    ]


def test_explain_uses_the_site_policy(cli: CliFixture) -> None:
    file = write_policy(cli, {"faults": {"xid:79": {"ladder": ["replace"]}}, "repair": {"replaceDeadlineSeconds": 60}})

    document = json.loads(cli.run("faults", "explain", "79", "--policy", file, "-o", "json").out)
    result = cli.run("faults", "explain", "79", "--policy", file, terminal=True)

    assert [(step["rung"], step["deadlineSeconds"]) for step in document["steps"]] == [
        ("replace", 60),
        ("ask_person", 0),
    ]
    assert "hardware, critical, changed by this policy" in result.out


def test_unknown_code_suggests_similar_codes_and_exits_4(cli: CliFixture) -> None:
    result = cli.run("faults", "explain", "NvidiaErorReboot", terminal=True)

    assert result.exit_code == 4
    assert result.out == ""
    assert "There is no fault 'NvidiaErorReboot'. [NO_SUCH_FAULT]" in result.err
    assert "similar: hp:NvidiaErrorReboot" in result.err


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_every_fault_can_be_explained(cli: CliFixture, step: int) -> None:
    for key in list(default_catalogue())[::step]:
        result = cli.run("faults", "explain", key, terminal=True)

        assert (result.exit_code, result.err) == (0, "")
        assert result.out.partition("  ")[0].endswith(key)
        too_long = [line for line in result.out.splitlines() if len(line) > 80]
        assert all(line.strip().startswith("https://") for line in too_long), "only a whole URL may be longer"


def test_fault_family_and_whole_catalogue_can_be_listed(cli: CliFixture) -> None:
    family = cli.run("faults", "ls", "--family", "ec2", "-o", "name").out.split()
    all_faults = json.loads(cli.run("faults", "list", "-o", "json").out)["items"]

    assert family == [key for key in default_catalogue() if key.startswith("ec2:")]
    assert len(all_faults) == len(default_catalogue())
    assert cli.run("faults", "ls", "--family", "gremlins").exit_code == 2


# ---------------------------------------------------------------- a policy


def test_valid_policy_is_shown_with_its_changes(cli: CliFixture) -> None:
    file = write_policy(cli, {"repair": {"maxAttempts": 2}, "faults": {"xid:94": {"severity": "major"}}})

    result = cli.run("policy", "check", file, terminal=True)

    assert result.exit_code == 0
    assert "● The file is valid: policy " in result.out
    assert dedent("""\
          FIELD                   SHIPPED  HERE
          faults.xid:94.severity  –        major
          repair.maxAttempts      3        2
        """) in dedent(result.out.partition("\n\n")[2])


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"repair": {"maxAtempts": 2}}, "repair.maxAtempts: is not a known field"),
        ({"repair": {"maxAttempts": "many"}}, "repair.maxAttempts: "),
        ({"faults": {"xid:9999": {"severity": "info"}}}, "faults: there is no fault 'xid:9999'; did you mean "),
        ({"faults": {"xid:79": {"ladder": ["explode"]}}}, "faults.xid:79.ladder.0: "),
        ({"faults": {"xid:79": {"fNvidiaNow": "IGNORE"}}}, "faults.xid:79.fNvidiaNow: is not a known field"),
        ({"faults": {"xid:79": {"validateWith": "none"}}}, "xid:79: validateWith: must not be none"),
        ("{", "is not valid YAML or JSON"),
        ("[]", "must hold one object"),
    ],
)
def test_invalid_policy_is_refused_by_field_and_exits_2(cli: CliFixture, document: object, expected: str) -> None:
    result = cli.run("policy", "check", write_policy(cli, document), terminal=True)

    assert result.exit_code == 2
    assert expected in " ".join(result.err.split())
    assert result.out == ""


def test_missing_policy_file_exits_2(cli: CliFixture) -> None:
    assert cli.run("policy", "check", "nowhere.json").exit_code == 2
    assert cli.run("policy", "check", write_policy(cli, {}), "--base", "gremlins").exit_code == 2


def test_offline_commands_load_no_aws_library(tmp_path: Path) -> None:
    program = (
        "import sys; from evenkeel_cli.main import main; code = main(['faults', 'explain', '79', '-o', 'json']);"
        "print(code, [name for name in sys.modules if name.startswith(('boto', 'aws_lambda'))], file=sys.stderr)"
    )

    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert completed.stderr == "0 []\n"
