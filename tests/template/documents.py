"""The deployment as data: the SAM template, its translation for CloudFormation, and the workflows."""

import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator
from samtranslator.yaml_helper import yaml_parse

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "template.yaml"
WORKFLOWS = ("recover_node", "run_job", "burst_capacity")
_ELSEWHERE = "s3://bucket/key"


@functools.cache
def _template() -> Json:
    # Converted through JSON, so that each resource has its own copy of blocks that YAML anchors share, as after `sam
    # build`.
    parsed: Json = json.loads(json.dumps(yaml_parse(TEMPLATE.read_text(encoding="utf-8"))))
    return parsed


def template() -> Json:
    """Return template.yaml with its intrinsic functions in their long form."""
    return copy.deepcopy(_template())


@functools.cache
def translated() -> Json:
    """Return the template as SAM translates it. Local folders become objects in S3, as `sam package` does."""
    document = template()
    for resource in document["Resources"].values():
        properties = resource.get("Properties", {})
        for field in ("CodeUri", "ContentUri", "DefinitionUri"):
            if field in properties:
                properties[field] = _ELSEWHERE
    return translate(document)


def translate(document: Json) -> Json:
    """Return a SAM template as CloudFormation receives it, with its default parameters."""
    defaults = {name: spec.get("Default", "") for name, spec in document["Parameters"].items()}
    defaults |= {"AWS::Region": "us-west-2"}
    session = boto3.Session(region_name="us-west-2")  # test collection runs before a region is set
    result: Json = Translator({}, Parser(), boto_session=session).translate(document, defaults)
    return result


def resources(kind: str, document: Json | None = None) -> dict[str, Json]:
    """Return logical id → properties of every resource of a type."""
    source = document or _template()
    return {
        name: resource.get("Properties", {})
        for name, resource in source["Resources"].items()
        if resource["Type"] == kind
    }


@functools.cache
def _workflow(name: str) -> Json:
    parsed: Json = json.loads(workflow_text(name).replace("${Partition}", "aws"))
    return parsed


def workflow_text(name: str) -> str:
    """Return the text of a state machine's definition."""
    return (ROOT / "statemachines" / f"{name}.asl.json").read_text(encoding="utf-8")


def workflow(name: str) -> Json:
    """Return a state machine's definition in the partition `aws`. The ARNs of its functions are placeholders."""
    return copy.deepcopy(_workflow(name))


def machines(definition: Json, where: str = "") -> Iterator[tuple[str, Json]]:
    """Yield the machine and each branch of its Parallel states, as (path, {StartAt, States})."""
    yield where, definition
    for name, state in definition["States"].items():
        for index, branch in enumerate(state.get("Branches", ())):
            yield from machines(branch, f"{where}/{name}[{index}]")


def states(definition: Json) -> Iterator[tuple[str, Json]]:
    """Yield every state of a machine and of its branches, by name (names are unique in a whole definition)."""
    for _, machine in machines(definition):
        yield from machine["States"].items()


def transitions(machine: Json) -> set[tuple[str, str]]:
    """Return the arrows of one machine or branch as (from, to), without those inside its Parallel states."""
    arrows: set[tuple[str, str]] = set()
    for name, state in machine["States"].items():
        arrows |= {(name, rule["Next"]) for rule in state.get("Choices", ())}
        arrows |= {(name, catcher["Next"]) for catcher in state.get("Catch", ())}
        arrows |= {(name, state[field]) for field in ("Next", "Default") if field in state}
    return arrows


def strings(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string of a document with its path."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from strings(value, f"{path}/{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from strings(value, f"{path}/{index}")
    elif isinstance(node, str):
        yield path, node


def as_list(value: Any) -> list[Any]:
    """Return a list; wrap a single value."""
    return value if isinstance(value, list) else [value]
