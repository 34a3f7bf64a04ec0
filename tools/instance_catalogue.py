"""Remake the catalogue of instance types from EC2's answer.

    aws ec2 describe-instance-types --output json > types.json
    python tools/instance_catalogue.py types.json

Each file is an answer of DescribeInstanceTypes. Regions differ in their types, so give one file for each region.
The tool takes the instance types that HyperPod's API enumerates. An answer replaces the facts of its types. Types that
no answer has stay as they are, and so do the fields that EC2 does not state: MIG profiles and `efaVaries`.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import botocore.session

Json = dict[str, Any]
CATALOGUE = Path(__file__).resolve().parents[1] / "shared/evenkeel/domain/capacity/instance_types.json"
PREFIX = "ml."
_NOT_IN_EC2 = ("efaVaries", "mig")
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}


class AnswerError(ValueError):
    """A file is not an answer of DescribeInstanceTypes, or lacks a field. The message names both."""


def hyperpod_types() -> tuple[str, ...]:
    """Return the instance types that the installed botocore enumerates for HyperPod."""
    model = botocore.session.get_session().get_service_model("sagemaker")
    return tuple(getattr(model.shape_for("ClusterInstanceType"), "enum", ()))


def updated_catalogue(
    catalogue: Mapping[str, Json], answers: Mapping[str, Json], wanted: tuple[str, ...]
) -> dict[str, Json]:
    """Return the catalogue with the facts from AWS's answers.

    Args:
        catalogue: The present types, by name.
        answers: The answers of DescribeInstanceTypes, by the name of their file.
        wanted: The types to take, with `ml.`.

    Raises:
        AnswerError: An answer lacks a field.
    """
    remade_types = dict(catalogue)
    for file, answer in answers.items():
        for name, facts in _facts(file, answer):
            if name in wanted:
                before = catalogue.get(name, {})
                remade_types[name] = facts | {key: before[key] for key in _NOT_IN_EC2 if key in before}
    return {name: remade_types[name] for name in (*wanted, *remade_types) if name in remade_types}


def _facts(file: str, answer: Json) -> Iterator[tuple[str, Json]]:
    listed = answer.get("InstanceTypes")
    if not isinstance(listed, list):
        raise AnswerError(f"{file}: InstanceTypes is missing or is not a list")
    for index, document in enumerate(listed):
        try:
            yield f"{PREFIX}{document['InstanceType']}", instance_type_of(document)
        except (KeyError, TypeError) as error:
            raise AnswerError(f"{file}: InstanceTypes[{index}]: {error} is missing") from error


def instance_type_of(info: Json) -> Json:
    """Return one type of the catalogue from an `InstanceTypeInfo`."""
    memory = info["MemoryInfo"]["SizeInMiB"] / 1024
    facts: Json = {
        "vcpu": info["VCpuInfo"]["DefaultVCpus"],
        "memoryGib": int(memory) if memory == int(memory) else memory,
    }
    for key, devices in (
        ("gpus", info.get("GpuInfo", {}).get("Gpus", ())),
        ("neuron", info.get("NeuronInfo", {}).get("NeuronDevices", ())),
    ):
        if devices and (count := sum(device["Count"] for device in devices)):
            facts[key] = count
            facts["model"] = devices[0]["Name"].lower().replace(" ", "-")
            facts["acceleratorMemoryMib"] = min(device["MemoryInfo"]["SizeInMiB"] for device in devices)
    if interfaces := info.get("NetworkInfo", {}).get("EfaInfo", {}).get("MaximumEfaInterfaces", 0):
        facts["efa"] = interfaces
    architectures = [
        _ARCHITECTURES[architecture]
        for architecture in info["ProcessorInfo"]["SupportedArchitectures"]
        if architecture in _ARCHITECTURES
    ]
    if architectures and architectures[0] != "amd64":
        facts["architecture"] = architectures[0]
    return facts


def catalogue_text(source: str, types: Mapping[str, Json]) -> str:
    """Return the text of the catalogue's file: one type on each line."""
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in types.items())
    return f'{{\n "source": {json.dumps(source)},\n "types": {{\n{rows}\n }}\n}}\n'


def main() -> int:
    """Read the answers, and write the catalogue in place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", nargs="+", type=Path, metavar="FILE", help="An answer of DescribeInstanceTypes.")
    parser.add_argument("--source", help="Where the answers come from; the present source if omitted.")
    arguments = parser.parse_args()
    before = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    try:
        answers = {str(answer): json.loads(answer.read_text(encoding="utf-8")) for answer in arguments.answers}
        types = updated_catalogue(before["types"], answers, hyperpod_types())
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    CATALOGUE.write_text(catalogue_text(arguments.source or before["source"], types), encoding="utf-8")
    changed = [name for name, facts in types.items() if before["types"].get(name) != facts]
    print(f"{len(types)} types, {len(changed)} changed: {', '.join(changed) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
