"""The catalogue has every type of HyperPod's API, and can be remade from EC2's answer."""

import json
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

from evenkeel.domain.capacity.instance_types import shipped_instance_types
from tools.instance_catalogue import CATALOGUE, AnswerError, catalogue_text, hyperpod_types, instance_type_of, remade

BEFORE = json.loads(CATALOGUE.read_text("utf-8"))
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


def test_answer_in_the_tests_matches_the_model_of_ec2() -> None:
    shape = botocore.session.get_session().get_service_model("ec2").shape_for("DescribeInstanceTypesResult")
    for answer in (an_answer(), an_answer(GpuInfo={}, NeuronInfo=NEURON)):
        report = ParamValidator().validate(answer, shape)
        assert not report.has_errors(), report.generate_report()


def test_remade_type_equals_the_shipped_one() -> None:
    assert instance_type_of(an_answer()["InstanceTypes"][0]) == BEFORE["types"]["ml.g5.12xlarge"]


def test_answer_replaces_facts_and_keeps_mig_profiles() -> None:
    larger = an_answer("p5.48xlarge", MemoryInfo={"SizeInMiB": 5_376})

    types = remade(BEFORE["types"], {"a.json": larger}, hyperpod_types())

    assert types["ml.p5.48xlarge"]["memoryGib"] == 5.25
    assert types["ml.p5.48xlarge"]["mig"] == BEFORE["types"]["ml.p5.48xlarge"]["mig"]
    assert types["ml.g5.12xlarge"] == BEFORE["types"]["ml.g5.12xlarge"]


def test_neuron_devices_and_arm_are_read() -> None:
    info = an_answer(GpuInfo={}, NeuronInfo=NEURON, ProcessorInfo={"SupportedArchitectures": ["arm64"]})

    instance_type = instance_type_of(info["InstanceTypes"][0])

    assert (instance_type["neuron"], instance_type["model"], instance_type["architecture"]) == (16, "trainium", "arm64")
    assert "gpus" not in instance_type


def test_type_that_hyperpod_lacks_is_left_out() -> None:
    assert remade({}, {"a.json": an_answer("x9.large")}, hyperpod_types()) == {}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({}, "a.json: InstanceTypes is missing"),
        ({"InstanceTypes": [{"InstanceType": "g5.xlarge"}]}, r"a.json: InstanceTypes\[0\]: 'MemoryInfo' is missing"),
    ],
)
def test_wrong_answer_names_the_field(answer: dict[str, Any], message: str) -> None:
    with pytest.raises(AnswerError, match=message):
        remade({}, {"a.json": answer}, hyperpod_types())


def test_file_has_the_form_that_the_tool_writes() -> None:
    assert catalogue_text(BEFORE["source"], BEFORE["types"]) == CATALOGUE.read_text("utf-8")
