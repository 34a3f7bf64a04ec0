"""What the linters say, of the template as CloudFormation sees it and of each workflow on its own."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from cfnlint.api import lint
from cfnlint.core import get_rules

from tests.template.documents import ROOT, TEMPLATE, WORKFLOWS, Json, resources, translated, workflow
from tests.template.waivers import LINT_WAIVERS

SAM = ROOT / ".tools" / "sam" / "bin" / "sam"


def findings(document: Json) -> list[str]:
    return [finding for key, finding in every_finding(document) if key not in LINT_WAIVERS]


def every_finding(document: Json) -> list[tuple[tuple[str, str], str]]:
    """Return ((rule, logical id), sentence) of each finding."""
    rules = get_rules(append_rules=["cfn_lint_serverless.rules"], ignore_rules=[], include_rules=["W", "E"])
    found = lint(json.dumps(document, indent=1), rules=rules, regions=["us-west-2"])
    paths = [[str(step) for step in match.path or ()] for match in found]
    return [
        ((match.rule.id, path[1] if len(path) > 1 else ""), f"{match.rule.id} {'/'.join(path)}: {match.message}")
        for match, path in zip(found, paths, strict=True)
    ]


def test_translated_template_is_clean_under_cfn_lint_and_its_serverless_rules() -> None:
    assert findings(translated()) == []


def test_every_lint_waiver_is_needed() -> None:
    assert {key for key, _ in every_finding(translated())} == set(LINT_WAIVERS)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_is_clean_under_cfn_lint(name: str) -> None:
    logical = "".join(word.capitalize() for word in name.split("_")) + "Machine"
    names = resources("AWS::Serverless::StateMachine")[logical]["DefinitionSubstitutions"]
    text = json.dumps(workflow(name))
    for placeholder in names:
        text = text.replace(f"${{{placeholder}}}", f"arn:aws:lambda:us-west-2:000000000000:function:{placeholder}")
    wrapped = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Resources": {
            "Machine": {
                "Type": "AWS::StepFunctions::StateMachine",
                "Properties": {
                    "RoleArn": "arn:aws:iam::000000000000:role/machine",
                    "TracingConfiguration": {"Enabled": True},
                    "DefinitionString": text,
                },
            }
        },
    }

    assert findings(wrapped) == []


def test_cfn_lint_does_look_inside_a_wrapped_workflow() -> None:
    broken = {"StartAt": "A", "States": {"A": {"Type": "Nonsense", "End": True}}}
    machine = {
        "Type": "AWS::StepFunctions::StateMachine",
        "Properties": {"RoleArn": "arn:aws:iam::000000000000:role/machine", "DefinitionString": json.dumps(broken)},
    }

    found = findings({"AWSTemplateFormatVersion": "2010-09-09", "Resources": {"Machine": machine}})

    assert any(finding.startswith("E3601") for finding in found)


def test_sam_validate_lint_is_clean(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SAM_"))}
    environment |= {"SAM_CLI_TELEMETRY": "0", "SAM_CLI_CHECK_FOR_UPDATES": "0", "AWS_REGION": "us-west-2"}
    environment |= {"__SAM_CLI_APP_DIR": str(tmp_path / "sam")}

    done = subprocess.run(
        [SAM, "validate", "--lint", "--template-file", TEMPLATE],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
