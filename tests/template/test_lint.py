"""The linters accept the translated template, and each workflow.

`make lint` runs this module. `sam validate --lint` translates and lints the template once more, with fewer rules.
"""

import json
import subprocess
from pathlib import Path

import pytest
from cfnlint.api import lint
from cfnlint.core import get_rules

from tests.template.documents import WORKFLOWS, Json, resources, translated, workflow
from tests.template.waivers import LINT_WAIVERS

Finding = tuple[tuple[str, str], str]
"""((rule, logical id), sentence)."""


@pytest.fixture(scope="module")
def template_findings() -> list[Finding]:
    """Return every finding of the template. The result is cached, because the template is long."""
    return every_finding(translated())


def unwaived(findings: list[Finding]) -> list[str]:
    return [sentence for key, sentence in findings if key not in LINT_WAIVERS]


def every_finding(document: Json) -> list[Finding]:
    rules = get_rules(append_rules=["cfn_lint_serverless.rules"], ignore_rules=[], include_rules=["W", "E"])
    matches = lint(json.dumps(document, indent=1), rules=rules, regions=["us-west-2"])
    paths = [[str(step) for step in match.path or ()] for match in matches]
    return [
        ((match.rule.id, path[1] if len(path) > 1 else ""), f"{match.rule.id} {'/'.join(path)}: {match.message}")
        for match, path in zip(matches, paths, strict=True)
    ]


def test_translated_template_passes_cfn_lint_and_its_serverless_rules(template_findings: list[Finding]) -> None:
    assert unwaived(template_findings) == []


@pytest.mark.exhaustive
def test_sam_accepts_the_template() -> None:
    project = Path(__file__).resolve().parents[2]
    command = [str(project / ".tools" / "sam" / "bin" / "sam"), "validate", "--lint", "--region", "us-west-2"]

    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_lint_waiver_is_needed(template_findings: list[Finding]) -> None:
    assert {key for key, _ in template_findings} == set(LINT_WAIVERS)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_passes_cfn_lint(name: str) -> None:
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

    assert unwaived(every_finding(wrapped)) == []


def test_cfn_lint_checks_inside_a_wrapped_workflow() -> None:
    broken = {"StartAt": "A", "States": {"A": {"Type": "Nonsense", "End": True}}}
    machine = {
        "Type": "AWS::StepFunctions::StateMachine",
        "Properties": {"RoleArn": "arn:aws:iam::000000000000:role/machine", "DefinitionString": json.dumps(broken)},
    }

    finding = every_finding({"AWSTemplateFormatVersion": "2010-09-09", "Resources": {"Machine": machine}})

    assert any(rule == "E3601" for (rule, _), _ in finding)
