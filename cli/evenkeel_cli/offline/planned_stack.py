"""Read the settings of a stack before its deployment: an environment of samconfig.toml, and the template's defaults."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]
_HINT = "Run the command in the project's folder; docs/deploy.md describes samconfig.toml."


class PlannedStack(NamedTuple):
    """The stack of one environment."""

    environment: str
    name: str
    region: str
    parameters: Mapping[str, str]
    """Every parameter of the template: its value in the environment, else the default."""

    def listed(self, parameter: str) -> tuple[str, ...]:
        """Return the members of a list parameter."""
        return tuple(stripped_name for name in self.parameters[parameter].split(",") if (stripped_name := name.strip()))

    def clusters(self) -> tuple[str, ...]:
        """Return the names of the EKS clusters, HyperPod's own first."""
        return tuple(name for name in self.listed("KubernetesClusters") if name != "none")


def read_planned_stack(folder: Path, environment: str) -> PlannedStack:
    """Read an environment of `samconfig.toml`.

    Raises:
        CommandFailed: a file is missing or not valid, there is no such environment, or it sets an unknown parameter.
    """
    config = _read_text(folder / "samconfig.toml")
    try:
        settings = tomllib.loads(config)
    except tomllib.TOMLDecodeError as error:
        raise _usage_error(f"samconfig.toml is not valid TOML: {error}") from error
    environments = sorted(
        name for name, section in settings.items() if isinstance(section, dict) and "deploy" in section
    )
    if environment not in environments:
        raise _usage_error(f"samconfig.toml has no environment {environment!r}. It has {', '.join(environments)}.")
    common = settings[environment].get("global", {}).get("parameters", {})
    document = {**common, **settings[environment]["deploy"].get("parameters", {})}
    if missing_parameters := [field for field in ("stack_name", "region") if not document.get(field)]:
        raise _usage_error(f"The environment {environment} of samconfig.toml has no {missing_parameters[0]}.")
    overrides = _parse_overrides(document.get("parameter_overrides", []), environment)
    declared_in_template = declared_parameters(_read_text(folder / "template.yaml"))
    defaults = {name: str(spec.get("Default", "")) for name, spec in declared_in_template.items()}
    if unknown_parameters := sorted(set(overrides) - set(defaults)):
        raise _usage_error(
            f"The environment {environment} sets {unknown_parameters[0]}, a parameter that template.yaml does not have."
        )
    return PlannedStack(environment, str(document["stack_name"]), str(document["region"]), defaults | overrides)


def read_sam_versions(folder: Path) -> tuple[str, str]:
    """Return the version of sam that `make setup` installed, empty if there is none, and the locked version."""
    metadata_folders = folder.glob(".tools/sam/lib/python*/site-packages/aws_sam_cli-*.dist-info")
    installed_versions = [
        path.name.removeprefix("aws_sam_cli-").removesuffix(".dist-info") for path in metadata_folders
    ]
    locked_version = re.search(r"^aws-sam-cli==(\S+)", _read_text(folder / "requirements" / "sam.txt"), re.MULTILINE)
    return (installed_versions[0] if installed_versions else "", locked_version[1] if locked_version else "")


def _parse_overrides(value: Any, environment: str) -> dict[str, str]:
    """Return `parameter_overrides`: a list of `Name=value`, or one text with several."""
    override_texts = re.findall(r'(?:[^\s"]|"[^"]*")+', value) if isinstance(value, str) else value
    if not isinstance(override_texts, list) or not all(
        isinstance(word, str) and "=" in word for word in override_texts
    ):
        raise _usage_error(f"parameter_overrides of the environment {environment} is not a list of Name=value.")
    pairs = (word.partition("=") for word in override_texts)
    return {name: text.strip('"') for name, _, text in pairs}


def declared_parameters(template: str) -> Json:
    """Return the parameters of a template. Only this section is parsed: YAML of the whole template takes seconds."""
    match = re.search(r"^Parameters:\n(?:[ #].*\n|\n)+", template, re.MULTILINE)
    if not match:
        raise _usage_error("template.yaml has no parameters.")
    parameters: Json = yaml.safe_load(match[0])["Parameters"]
    return parameters


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise _usage_error(f"{path.name} cannot be read: {error.strerror}.") from error


def _usage_error(text: str) -> CommandFailed:
    return CommandFailed(Exit.USAGE, text, code="BAD_DEPLOYMENT", hint=_HINT)
