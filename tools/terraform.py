"""The variables of the Terraform module, one for each parameter of `template.yaml`."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evenkeel_cli.offline.planned_stack import declared_parameters

ROOT = Path(__file__).resolve().parents[1]
VARIABLES = ROOT / "terraform" / "variables.tf"
SET_BY_MODULE = "DeploymentId"
_HEAD = """\
# `make generate` writes this file from the parameters of template.yaml.
# An omitted variable has the default of the template.
"""
_TYPES = {"String": "string", "Number": "number", "CommaDelimitedList": "list(string)"}


def files() -> dict[Path, str]:
    """Return the file of the variables with its content."""
    declared = declared_parameters((ROOT / "template.yaml").read_text(encoding="utf-8"))
    parameters = {name: spec for name, spec in declared.items() if name != SET_BY_MODULE}
    return {VARIABLES: variables_file(parameters)}


def variables_file(parameters: Mapping[str, Any]) -> str:
    """Return a variable for each parameter, and the map of the set variables, in the layout of `terraform fmt`."""
    blocks = [_variable(name, spec) for name, spec in parameters.items()]
    width = max(map(len, parameters))
    rows = [f"    {name:<{width}} = {_value(name, spec)}" for name, spec in parameters.items()]
    mapping = "\n".join(["  given = {", *rows, "  }"])
    parts = "  parameters = { for name, value in local.given : name => tostring(value) if value != null }"
    return "\n".join([_HEAD, "locals {", mapping, parts, "}", "", "\n".join(blocks)])


def variable_name(parameter: str) -> str:
    """Return the name of a parameter in Terraform's style: `page_email` for `PageEmail`."""
    return (
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", parameter)
        .lower()
        .replace("hyper_pod", "hyperpod")
        .replace("sage_maker", "sagemaker")
    )


def _value(name: str, spec: Mapping[str, Any]) -> str:
    variable = f"var.{variable_name(name)}"
    if spec["Type"] == "CommaDelimitedList":
        return f'{variable} == null ? null : join(",", {variable})'
    return variable


def _variable(name: str, spec: Mapping[str, Any]) -> str:
    text = " ".join(str(spec["Description"]).split())
    default = json.dumps(spec["Default"]) if spec.get("Default") not in (None, "") else "empty"
    lines = [
        f'variable "{variable_name(name)}" {{',
        f"  description = {_quoted(f'{text} Default: {default}.')}",
        f"  type        = {_TYPES[spec['Type']]}",
        "  default     = null",
    ]
    for condition, message in _rules(f"var.{variable_name(name)}", spec):
        lines += [
            "",
            "  validation {",
            f"    condition     = {condition}",
            f"    error_message = {_quoted(f'{variable_name(name)} {message}.')}",
            "  }",
        ]
    return "\n".join([*lines, "}", ""])


def _rules(variable: str, spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each rule of a parameter as a condition, with the message for values that break it."""
    unset = f"{variable} == null"  # not `||`: Terraform evaluates both of its sides
    if "AllowedValues" in spec:
        values = spec["AllowedValues"]
        listed = ", ".join(_quoted(value) if isinstance(value, str) else str(value) for value in values)
        known = f"contains([{listed}], {variable})"
        yield f"{unset} ? true : {known}", f"must be one of {', '.join(map(str, values))}"
    if "AllowedPattern" in spec:
        pattern = _quoted(f"^({spec['AllowedPattern']})$")
        yield f"{unset} ? true : can(regex({pattern}, {variable}))", f"must match {spec['AllowedPattern']}"
    if "MaxLength" in spec:
        yield (
            f"{unset} ? true : length({variable}) <= {spec['MaxLength']}",
            f"has at most {spec['MaxLength']} characters",
        )
    if "MinValue" in spec:
        yield f"{unset} ? true : {variable} >= {spec['MinValue']}", f"must be at least {spec['MinValue']}"


def _quoted(text: str) -> str:
    """Return a text as a literal of Terraform, in which `${` and `%{` begin templates."""
    return json.dumps(text, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")
