"""Write the parts of template.yaml that follow from the workflows and from the functions.

A state names its function as `${CheckNodeArn}`. From this name follow the substitution and the right of the workflow to
invoke the function. A function that may call Kubernetes has the statement `FindKubernetes` in its role. From this
statement follows its line in the output `KubernetesRoleArns`.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from pydantic.alias_generators import to_snake

from tools import dashboard
from tools.architecture import ROOT, logical_id_of, template

_ARN = re.compile(r"\$\{(\w+)Arn\}")
_SUBSTITUTIONS = re.compile(r"(        Partition: !Ref AWS::Partition\n)((?:        \w+Arn: !Ref \w+\.Version\n)+)")
_INVOKED = re.compile(
    r'(Action: \[lambda:InvokeFunction\]\n                Resource:\n)((?: {18}- !Sub "\$\{\w+\.Arn\}:\*"\n)+)'
)
_KUBERNETES_ROLES = re.compile(
    r'(  KubernetesRoleArns:\n[^\n]*\n    Value: !Join\n      - ","\n)((?:      [- ] - !Sub "\w+=\$\{\w+\.Arn\}"\n)+)'
)


def _functions() -> tuple[str, ...]:
    """Return the logical ids of all functions, in the order of the template."""
    return tuple(name for name, resource in template().items() if resource["Type"] == "AWS::Serverless::Function")


def functions_of(machine: str) -> tuple[str, ...]:
    """Return the functions that the definition of a workflow calls, in the order of the template."""
    definition = (ROOT / template()[machine]["Properties"]["DefinitionUri"]).read_text(encoding="utf-8")
    named = set(_ARN.findall(definition))
    return tuple(name for name in _functions() if name in named)


def functions_with_kubernetes() -> dict[str, str]:
    """Return the functions whose role may find the Kubernetes clusters, each with the logical id of its role."""
    roles = {name: logical_id_of(template()[name]["Properties"]["Role"]) for name in _functions()}
    return {name: role for name, role in roles.items() if _finds_kubernetes(role)}


def _finds_kubernetes(role: str) -> bool:
    policies = template()[role]["Properties"]["Policies"]
    statements = [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]
    return any(statement.get("Sid") == "FindKubernetes" for statement in statements)


def with_wiring(text: str) -> str:
    """Return the template with the substitutions and rights of its workflows, and with its output of Kubernetes roles.

    Raises:
        ValueError: a part has no place in the template, or more than one.
    """
    machines = [name for name, resource in template().items() if resource["Type"] == "AWS::Serverless::StateMachine"]
    called = [functions_of(machine) for machine in machines]
    text = _fill(
        _SUBSTITUTIONS, ("".join(f"        {name}Arn: !Ref {name}.Version\n" for name in ids) for ids in called), text
    )
    text = _fill(_INVOKED, ("".join(f'{" " * 18}- !Sub "${{{name}.Arn}}:*"\n' for name in ids) for ids in called), text)
    roles = [f'!Sub "{to_snake(name)}=${{{role}.Arn}}"\n' for name, role in functions_with_kubernetes().items()]
    return _fill(_KUBERNETES_ROLES, ["      - - " + "        - ".join(roles)], text)


def _fill(place: re.Pattern[str], contents: Iterable[str], text: str) -> str:
    """Return the text with new content behind the beginning of each place, in order."""
    remaining = list(contents)
    count = len(place.findall(text))
    if count != len(remaining):
        raise ValueError(f"template.yaml needs {len(remaining)} places for {place.pattern!r}, it has {count}")
    return place.sub(lambda match: match[1] + remaining.pop(0), text)


def files() -> dict[Path, str]:
    """Return the template with its dashboard and its wiring."""
    return {path: with_wiring(text) for path, text in dashboard.files().items()}
