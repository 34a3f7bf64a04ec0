from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.jobs.validation import check_spec
from tests.unit.scheduling.builders import a_spec


def invalid_fields(**changes: Any) -> list[str]:
    return [fault.field for fault in check_spec(a_spec(**changes))]


def test_valid_job_has_no_error() -> None:
    assert (
        invalid_fields(env={"LR": "3e-4"}, labels={"team.example/owner": "ana"}, instance_types=("ml.p5.48xlarge",))
        == []
    )


@pytest.mark.parametrize("uri", ["", "s3://bucket/prefix", "s3://bucket/a/b.c/", "s3://my.bucket-1/run=3"])
def test_valid_checkpoint_uris_are_accepted(uri: str) -> None:
    assert invalid_fields(checkpoint_uri=uri) == []


def test_checkpoint_folder_on_a_claim_is_accepted() -> None:
    assert invalid_fields(checkpoint_uri="file:///fsx/llama/7b", checkpoint_claim="fsx.research-1") == []


@pytest.mark.parametrize(
    ("uri", "claim"),
    [
        ("file:///fsx/llama", ""),
        ("file:///fsx/llama", "Not A Name"),
        ("s3://bucket/prefix", "fsx"),
        ("", "fsx"),
    ],
)
def test_invalid_claims_are_refused(uri: str, claim: str) -> None:
    assert invalid_fields(checkpoint_uri=uri, checkpoint_claim=claim) == ["checkpoint.claim"]


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket",
        "s3://bucket/",
        "s3://Bucket/x",
        "http://bucket/x",
        "s3://bucket/../x",
        "s3://bucket//x",
        "s3://bucket/x y",
        "s3://bucket/x\n",
        "/data/x",
        "file:///fsx",
        "file:///fsx/../etc",
        "file://host/fsx/x",
        "file:///fsx//x",
    ],
)
def test_invalid_checkpoint_uris_are_refused(uri: str) -> None:
    assert invalid_fields(checkpoint_uri=uri) == ["checkpoint.uri"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "Llama"}, "name"),
        ({"name": "a" * 64}, "name"),
        ({"name": "llama\n"}, "name"),
        ({"team": "-nlp"}, "team"),
        ({"priority_class": "High!"}, "priorityClass"),
        ({"image": ""}, "image"),
        ({"image": "has space"}, "image"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": 100_000}, "nodes"),
        ({"accelerators_per_node": -1}, "gpusPerNode"),
        ({"grace_seconds": 100_000}, "graceSeconds"),
        ({"max_restarts": -1}, "recovery.maxRestarts"),
        ({"instance_types": ("p5",)}, "instanceTypes.0"),
        ({"command": ()}, "command"),
        ({"command": ("",)}, "command"),
        ({"command": ("echo", "\0")}, "command"),
        ({"command": ("echo", "\ud800")}, "command"),
        ({"args": ("x" * 40_000,)}, "command"),
        ({"env": {"1X": "y"}}, "env.1X"),
        ({"env": {"WORLD_SIZE": "9"}}, "env.WORLD_SIZE"),
        ({"env": {f"X{number}": "" for number in range(201)}}, "env"),
        ({"labels": {"evenkeel.io/job": "x"}}, "labels.evenkeel.io/job"),
        ({"labels": {"app.kubernetes.io/name": "x"}}, "labels.app.kubernetes.io/name"),
        ({"labels": {"kueue.x-k8s.io/queue-name": "x"}}, "labels.kueue.x-k8s.io/queue-name"),
        ({"labels": {"owner": "no spaces"}}, "labels.owner"),
        ({"labels": {f"x{number}": "" for number in range(33)}}, "labels"),
    ],
)
def test_invalid_field_is_reported_by_name(changes: dict[str, Any], field: str) -> None:
    assert invalid_fields(**changes) == [field]


@given(st.text(max_size=40), st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3))
def test_any_text_is_accepted_or_refused_without_an_exception(text: str, pairs: dict[str, str]) -> None:
    for fault in check_spec(
        a_spec(name=text, image=text, command=(text,), env=pairs, labels=pairs, checkpoint_uri=text)
    ):
        assert fault.message
        assert fault.field.isprintable() or fault.field.isascii()


@pytest.mark.parametrize(
    ("elastic", "field"),
    [
        ({"min_nodes": 0, "max_nodes": 4}, "elastic.minNodes"),
        ({"min_nodes": 2000, "max_nodes": 4000}, "elastic.minNodes"),
        ({"min_nodes": 3, "max_nodes": 2}, "elastic.maxNodes"),
        ({"min_nodes": 1, "max_nodes": 100_000}, "elastic.maxNodes"),
        ({"min_nodes": 1, "max_nodes": 4, "step": 1, "sizes": [1, 2]}, "elastic.step"),
        ({"min_nodes": 1, "max_nodes": 4, "step": 0}, "elastic.step"),
        ({"min_nodes": 1, "max_nodes": 4, "sizes": [1, 8]}, "elastic.sizes"),
        ({"min_nodes": 1, "max_nodes": 999, "sizes": list(range(1, 100))}, "elastic.sizes"),
        ({"min_nodes": 3, "max_nodes": 4}, "nodes"),
        ({"min_nodes": 1, "max_nodes": 4, "step": 2}, "nodes"),
        ({"min_nodes": 1, "max_nodes": 4, "sizes": [1, 4]}, "nodes"),
    ],
)
def test_invalid_sizes_are_reported(elastic: dict[str, Any], field: str) -> None:
    assert invalid_fields(nodes=2, elastic=elastic) == [field]


def test_required_network_level_excludes_preferred_level_and_elastic_sizes() -> None:
    assert invalid_fields(nodes=2, required_network_level="layer-3") == []
    assert invalid_fields(nodes=2, required_network_level="layer-3", preferred_network_level="layer-3") == [
        "network.preferredLevel"
    ]
    assert invalid_fields(nodes=2, required_network_level="layer-3", elastic={"min_nodes": 1, "max_nodes": 4}) == [
        "network.requiredLevel"
    ]


def test_elastic_job_needs_checkpoints() -> None:
    assert invalid_fields(nodes=2, elastic={"min_nodes": 1, "max_nodes": 4}) == []
    assert invalid_fields(nodes=2, elastic={"min_nodes": 1, "max_nodes": 4}, checkpoint_uri="") == ["elastic"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"requires": {"accelerators": ("x" * 41,)}}, "requires.gpuModels.0"),
        ({"requires": {"accelerators": ("h100\u20ac",)}}, "requires.gpuModels.0"),
        ({"requires": {"accelerators": ("H100",)}}, "requires.gpuModels.0"),
        ({"requires": {"accelerators": tuple(f"m{n}" for n in range(21))}}, "requires.gpuModels"),
        ({"requires": {"fabric": "x" * 100}}, "requires.fabric"),
        ({"instance_types": tuple(f"ml.p{n}.large" for n in range(21))}, "instanceTypes"),
        ({"args": ("x",) * 257}, "args"),
        ({"command": ("x",) * 257}, "command"),
        ({"args": ("\u20ac" * 11_000,)}, "command"),
        ({"args": ("\x1b[31m",)}, "command"),
        ({"env": {"A": "\x00"}}, "command"),
        ({"env": {"A": "\x7f"}}, "command"),
        (
            {
                "nodes": 2,
                "checkpoint_uri": "s3://bucket/a",
                "elastic": {"min_nodes": 1, "max_nodes": 2, "step": 10**400},
            },
            "elastic.step",
        ),
    ],
)
def test_every_text_and_list_has_a_limit(changes: dict[str, Any], field: str) -> None:
    assert invalid_fields(**changes) == [field]


def test_size_of_a_submission_is_limited() -> None:
    secrets = {f"V{n:03d}{'A' * 200}": {"secret": "s" * 253, "key": "k" * 253} for n in range(100)}

    assert invalid_fields(secret_env=secrets) == ["job"]


def test_scripts_with_newlines_and_unicode_are_accepted() -> None:
    assert invalid_fields(args=("set -e\n\techo \u00fcber \U0001f600\r\n",)) == []
