"""Write the parts of template.yaml that follow from the workflows and from the functions.

A state names its function as `${CheckNodeArn}`. From this name follow the substitution and the right of the workflow to
invoke the function. The alarm that watches its throttles and its stub in the baseline of the cordon benchmark follow,
too. A function that may call Kubernetes has the statement `FindKubernetes` in its role. From this statement follows its
line in the output `KubernetesRoleArns`.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from pydantic.alias_generators import to_camel, to_snake

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
_THROTTLES = re.compile(
    r"(        - [&*]AllThrottles[^\n]*\n)"
    r"((?:        - \{Id: \w+, [^\n]*Namespace: AWS/Lambda,\n[^\n]*Throttles[^\n]*\n)+)"
)
_MOST_THROTTLES = 9
"""Metrics of functions in one alarm. CloudWatch allows ten, and one is the sum.

Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricAlarm.html
"""
_BASELINE = ROOT / "bench" / "yardsticks" / "template.yaml"
_STUBS = re.compile(r"(        Partition: !Ref AWS::Partition\n)((?:        \w+Arn: !GetAtt \w+\.Arn\n)+)")


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
    text = _fill(_KUBERNETES_ROLES, ["      - - " + "        - ".join(roles)], text)
    return _fill(_THROTTLES, map(_throttles_of, _throttle_groups(text)), text)


def _throttle_groups(text: str) -> tuple[list[str], ...]:
    """Return the functions of each throttle alarm of several functions: for recoveries, jobs, and the rest.

    Raises:
        ValueError: an alarm would watch more functions than CloudWatch allows.
    """
    listed = [re.findall(r"Value: !Ref (\w+)", entries) for _, entries in _THROTTLES.findall(text)]
    recovery = functions_of("RecoverNodeMachine")
    job = {*functions_of("RunJobMachine"), *functions_of("BurstCapacityMachine")}
    groups: tuple[list[str], ...] = ([], [], [])
    for name in _functions():
        if f"{name}ThrottledAlarm" not in template():
            default_group = 0 if name in recovery else 1 if name in job else 2
            groups[next((index for index, names in enumerate(listed) if name in names), default_group)].append(name)
    for names in groups:
        if len(names) > _MOST_THROTTLES:
            raise ValueError(f"CloudWatch allows {_MOST_THROTTLES} functions in a throttle alarm: move one of {names}")
    return groups


def _throttles_of(names: Iterable[str]) -> str:
    return "".join(
        f"        - {{Id: {to_camel(to_snake(name))}, ReturnData: false, MetricStat: {{Stat: Sum, Period: 300, "
        "Metric: {Namespace: AWS/Lambda,\n           MetricName: Throttles, "
        f"Dimensions: [{{Name: FunctionName, Value: !Ref {name}}}]}}}}}}\n"
        for name in names
    )


def with_stubs(baseline: str) -> str:
    """Return the baseline of the cordon benchmark with a stub for each function that `recover_node` names.

    A function without a stub of its own comes after the cordon: `AnswerRest` answers for it.
    """
    _, lines = next(iter(_STUBS.findall(baseline)), ("", ""))
    stubs = dict(re.findall(r"(\w+)Arn: !GetAtt (\w+)\.Arn", lines))
    called = functions_of("RecoverNodeMachine")
    content = "".join(f"        {name}Arn: !GetAtt {stubs.get(name, 'AnswerRest')}.Arn\n" for name in called)
    return _fill(_STUBS, [content], baseline)


def _fill(place: re.Pattern[str], contents: Iterable[str], text: str) -> str:
    """Return the text with new content behind the beginning of each place, in order."""
    remaining = list(contents)
    count = len(place.findall(text))
    if count != len(remaining):
        raise ValueError(f"template.yaml needs {len(remaining)} places for {place.pattern!r}, it has {count}")
    return place.sub(lambda match: match[1] + remaining.pop(0), text)


def files() -> dict[Path, str]:
    """Return the template with its dashboard and its wiring, and the baseline with its stubs."""
    wired = {path: with_wiring(text) for path, text in dashboard.files().items()}
    return wired | {_BASELINE: with_stubs(_BASELINE.read_text(encoding="utf-8"))}
