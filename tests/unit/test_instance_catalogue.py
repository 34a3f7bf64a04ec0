"""The catalogue has every instance type of HyperPod's API, and can be generated again from EC2's answers."""

import json
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

from evenkeel.domain.capacity.instance_types import shipped_instance_types
from tools.instance_catalogue import (
    CATALOGUE,
    AnswerError,
    catalogue_text,
    hyperpod_types,
    instance_type_of,
    updated_catalogue,
)

SHIPPED_CATALOGUE = json.loads(CATALOGUE.read_text("utf-8"))
ACCELERATED = ("p", "g", "trn")


def an_answer(name: str = "g5.12xlarge", **changes: Any) -> dict[str, Any]:
    """Return the fields that the tool reads of one type, in the form of DescribeInstanceTypes."""
    info = {
        "InstanceType": name,
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "VCpuInfo": {"DefaultVCpus": 48},
        "MemoryInfo": {"SizeInMiB": 196_608},
        "NetworkInfo": {"EfaSupported": True, "EfaInfo": {"MaximumEfaInterfaces": 1}},
        "GpuInfo": {
            "Gpus": [{"Name": "A10G", "Manufacturer": "NVIDIA", "Count": 4, "MemoryInfo": {"SizeInMiB": 22_888}}],
            "TotalGpuMemoryInMiB": 91_553,
        },
    }
    return {"InstanceTypes": [info | changes]}


NEURON = {"NeuronDevices": [{"Count": 16, "Name": "Trainium", "MemoryInfo": {"SizeInMiB": 32_768}}]}


def test_catalogue_has_every_type_of_the_api() -> None:
    assert {*shipped_instance_types().types} == {*hyperpod_types()}


@pytest.mark.parametrize(
    "name",
    [hyperpod_type for hyperpod_type in hyperpod_types() if hyperpod_type.removeprefix("ml.").startswith(ACCELERATED)],
)
def test_accelerated_type_states_its_accelerators(name: str) -> None:
    instance_type = shipped_instance_types().types[name]

    assert instance_type.accelerators
    assert instance_type.model
    assert instance_type.accelerator_memory_mib >= 16 * 1024
    assert instance_type.vcpu
    assert instance_type.memory_gib


def test_sample_ec2_answer_is_valid_for_botocore() -> None:
    shape = botocore.session.get_session().get_service_model("ec2").shape_for("DescribeInstanceTypesResult")
    for answer in (an_answer(), an_answer(GpuInfo={}, NeuronInfo=NEURON)):
        report = ParamValidator().validate(answer, shape)
        assert not report.has_errors(), report.generate_report()


def test_instance_type_read_from_ec2_equals_the_shipped_one() -> None:
    assert instance_type_of(an_answer()["InstanceTypes"][0]) == SHIPPED_CATALOGUE["types"]["ml.g5.12xlarge"]


def test_ec2_answer_updates_an_instance_type_but_keeps_mig_profiles() -> None:
    larger = an_answer("p5.48xlarge", MemoryInfo={"SizeInMiB": 5_376})

    types = updated_catalogue(SHIPPED_CATALOGUE["types"], {"a.json": larger}, hyperpod_types())

    assert types["ml.p5.48xlarge"]["memoryGib"] == 5.25
    assert types["ml.p5.48xlarge"]["mig"] == SHIPPED_CATALOGUE["types"]["ml.p5.48xlarge"]["mig"]
    assert types["ml.g5.12xlarge"] == SHIPPED_CATALOGUE["types"]["ml.g5.12xlarge"]


def test_neuron_devices_and_arm_processors_are_read() -> None:
    info = an_answer(GpuInfo={}, NeuronInfo=NEURON, ProcessorInfo={"SupportedArchitectures": ["arm64"]})

    instance_type = instance_type_of(info["InstanceTypes"][0])

    assert (instance_type["neuron"], instance_type["model"], instance_type["architecture"]) == (16, "trainium", "arm64")
    assert "gpus" not in instance_type


def test_type_that_hyperpod_lacks_is_left_out() -> None:
    assert updated_catalogue({}, {"a.json": an_answer("x9.large")}, hyperpod_types()) == {}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({}, "a.json: InstanceTypes is missing"),
        ({"InstanceTypes": [{"InstanceType": "g5.xlarge"}]}, r"a.json: InstanceTypes\[0\]: 'MemoryInfo' is missing"),
    ],
)
def test_ec2_answer_with_a_wrong_field_is_refused_by_name(answer: dict[str, Any], message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        updated_catalogue({}, {"a.json": answer}, hyperpod_types())


def test_catalogue_file_is_formatted_as_the_tool_writes_it() -> None:
    assert catalogue_text(SHIPPED_CATALOGUE["source"], SHIPPED_CATALOGUE["types"]) == CATALOGUE.read_text("utf-8")
