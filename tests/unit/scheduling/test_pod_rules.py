"""The claims, Secrets, ids and folders of a job: valid values, and what its team allows."""

from typing import Any

import pytest
from pydantic import ValidationError

from evenkeel.domain.jobs.check_pod_rules import check_pod_rules
from evenkeel.domain.jobs.job_types import JobTypes, with_defaults
from evenkeel.domain.jobs.pod_rules import NOTHING_ALLOWED, PodRules
from evenkeel.domain.jobs.validation import check_spec
from tests.unit.scheduling.builders import a_spec

DATA = {"claim": "data", "mountPath": "/data"}
SCRATCH = {"mountPath": "/scratch", "sizeGib": 100}


def invalid_fields(**changes: Any) -> list[str]:
    return [error.field for error in check_spec(a_spec(**changes))]


# ---------------------------------------------------------------- valid values


def test_claims_and_scratch_folders_on_separate_paths_are_valid() -> None:
    volumes = [DATA, {**DATA, "mountPath": "/models", "subPath": "llama/7b", "readOnly": False}]

    assert invalid_fields(volumes=volumes, scratch=[SCRATCH, {"mountPath": "/home/ana/.cache", "sizeGib": 1}]) == []


@pytest.mark.parametrize(
    "path",
    ["", "data", "/", "/data/", "/data/../etc", "/data/.", "//data", "/da ta", "/data\n", "/daté"],
)
def test_paths_that_are_not_plain_are_refused(path: str) -> None:
    assert invalid_fields(volumes=[{**DATA, "mountPath": path}]) == ["volumes.0.mountPath"]


@pytest.mark.parametrize(
    "path", ["/etc", "/etc/ssl", "/proc/1", "/dev/shm", "/usr", "/var", "/var/run/secrets", "/run"]
)
def test_paths_of_the_operating_system_are_refused(path: str) -> None:
    assert invalid_fields(scratch=[{**SCRATCH, "mountPath": path}]) == ["scratch.0.mountPath"]


@pytest.mark.parametrize("path", ["/data", "/data/inner", "/fsx", "/fsx/llama"])
def test_mounts_that_hide_each_other_are_refused(path: str) -> None:
    errors = check_spec(
        a_spec(
            checkpoint_uri="file:///fsx/llama",
            checkpoint_claim="fsx",
            volumes=[DATA, {"claim": "b", "mountPath": path}],
        )
    )

    assert [error.field for error in errors] == ["volumes.1.mountPath"]
    assert "overlap" in errors[0].message


@pytest.mark.parametrize("path", ["/a", "../a", "a/../b", "a//b", "a/"])
def test_sub_paths_stay_inside_their_volume(path: str) -> None:
    assert invalid_fields(volumes=[{**DATA, "subPath": path}]) == ["volumes.0.subPath"]


@pytest.mark.parametrize("name", ["", "Data", "data_1", "-data"])
def test_names_that_kubernetes_refuses_are_refused(name: str) -> None:
    problems = invalid_fields(volumes=[{**DATA, "claim": name}], image_pull_secrets=[name])

    assert set(problems) == {"volumes.0.claim", "imagePullSecrets.0"}


def test_root_has_no_valid_id() -> None:
    assert invalid_fields(run_as_user=0, run_as_group=0, fs_group=0) == [
        "securityContext.runAsUser",
        "securityContext.runAsGroup",
        "securityContext.fsGroup",
    ]


def test_memory_request_of_pods_includes_shared_memory() -> None:
    assert invalid_fields(shared_memory_gib=64) == ["sharedMemoryGib"]
    assert invalid_fields(shared_memory_gib=64, memory_gib_per_node=32) == ["sharedMemoryGib"]
    assert invalid_fields(shared_memory_gib=64, memory_gib_per_node=64) == []


def test_huge_pages_have_two_mib() -> None:
    assert invalid_fields(huge_pages_mib_per_node=3) == ["hugePagesMibPerNode"]


# ---------------------------------------------------------------- allowed values


ALLOWED = PodRules.model_validate(
    {
        "claims": [
            {"name": "data"},
            {"name": "models", "maxMode": "read-write", "accessMode": "ReadWriteMany"},
            {"name": "disk", "maxMode": "read-write", "accessMode": "ReadWriteOnce"},
        ],
        "imagePullSecrets": ["registry"],
        "envSecrets": ["wandb"],
        "users": [{"min": 2000, "max": 2999}],
        "groups": [{"min": 3000, "max": 3000}],
        "fsGroups": [{"min": 3000, "max": 3000}],
        "maxScratchGib": 200,
        "maxHugePagesMib": 1024,
    }
)


def refusals(allowed: PodRules = ALLOWED, **changes: Any) -> dict[str, str]:
    return {error.field: error.message for error in check_pod_rules(a_spec(**changes), allowed, "Team nlp")}


def test_default_pod_needs_no_permission_of_its_team() -> None:
    assert refusals(NOTHING_ALLOWED) == {}
    assert refusals(NOTHING_ALLOWED, run_as_user=1000, checkpoint_uri="file:///fsx/a", checkpoint_claim="any") == {}


def test_pod_extras_that_the_team_lists_are_allowed() -> None:
    job: dict[str, Any] = {
        "volumes": [DATA, {"claim": "models", "mountPath": "/models", "readOnly": False}],
        "image_pull_secrets": ["registry"],
        "secret_env": {"KEY": {"secret": "wandb", "key": "key"}},
        "run_as_user": 2500,
        "run_as_group": 3000,
        "fs_group": 3000,
        "scratch": [SCRATCH, {**SCRATCH, "mountPath": "/tmp/more"}],
        "huge_pages_mib_per_node": 1024,
    }

    assert refusals(**job) == {}


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"volumes": [{**DATA, "claim": "other"}]}, "volumes.0.claim", "these claims: data (read-only), models"),
        ({"volumes": [{**DATA, "readOnly": False}]}, "volumes.0.readOnly", "mounts claim data read-only"),
        ({"volumes": [{**DATA, "claim": "disk"}]}, "volumes.0.claim", "only one node can use it, and the job has 2"),
        (
            {"checkpoint_uri": "file:///fsx/a", "checkpoint_claim": "other"},
            "checkpoint.claim",
            "these claims: data (read-only)",
        ),
        (
            {"checkpoint_uri": "file:///fsx/a", "checkpoint_claim": "data"},
            "checkpoint.claim",
            "mounts claim data read-only",
        ),
        ({"image_pull_secrets": ["other"]}, "imagePullSecrets.0", "pulls images with registry"),
        ({"secret_env": {"KEY": {"secret": "other", "key": "key"}}}, "secretEnv.KEY.secret", "Secrets: wandb"),
        ({"run_as_user": 1999}, "securityContext.runAsUser", "allows these ids: 1000, 2000-2999"),
        ({"run_as_group": 2000}, "securityContext.runAsGroup", "allows these ids: 1000, 3000"),
        ({"fs_group": 1}, "securityContext.fsGroup", "allows these ids: 1000, 3000"),
        ({"scratch": [{**SCRATCH, "sizeGib": 201}]}, "scratch", "200 GiB of scratch folders in a pod, not 201"),
        ({"huge_pages_mib_per_node": 1026}, "hugePagesMibPerNode", "1024 MiB of huge pages in a pod, not 1026"),
    ],
)
def test_refusal_names_the_field_and_what_the_team_allows(changes: dict[str, Any], field: str, words: str) -> None:
    problems = refusals(**changes)

    assert list(problems) == [field]
    assert words in problems[field]


def test_each_pod_extra_is_refused_unless_the_policy_lists_it() -> None:
    problems = refusals(
        NOTHING_ALLOWED,
        volumes=[DATA],
        image_pull_secrets=["registry"],
        run_as_user=2000,
        scratch=[SCRATCH],
        huge_pages_mib_per_node=2,
    )

    assert problems["volumes.0.claim"] == "Team nlp mounts no claims."
    assert problems["imagePullSecrets.0"] == "Team nlp pulls images with no Secret."
    assert len(problems) == 5


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"claims": [{"name": "a"}, {"name": "a"}]}, "a is listed twice"),
        ({"imagePullSecrets": ["a", "a"]}, "a is listed twice"),
        ({"claims": [{"name": "No Name"}]}, "pattern"),
        ({"users": [{"min": 3, "max": 2}]}, "the minimum 3 is above the maximum 2"),
        ({"users": [{"min": 0, "max": 2}]}, "greater than or equal to 1"),
        ({"claim": []}, "Extra inputs"),
        ({"claims": [{"name": "a", "mode": "read-write"}]}, "Extra inputs"),
    ],
)
def test_invalid_pod_rules_are_refused(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        PodRules.model_validate(document)


# ---------------------------------------------------------------- job types


def test_job_takes_the_folders_of_its_type() -> None:
    types = JobTypes.model_validate(
        {
            "types": {
                "production": {
                    "volumes": [DATA],
                    "scratch": [SCRATCH],
                    "imagePullSecrets": ["registry"],
                    "runAsUser": 2000,
                    "checkpointClaim": "models",
                }
            }
        }
    )

    in_cluster = with_defaults(a_spec(job_type="production", checkpoint_uri="file:///fsx/a"), types)
    in_s3 = with_defaults(a_spec(job_type="production", volumes=[{**DATA, "mountPath": "/other"}]), types)

    assert (in_cluster.volumes[0].mount_path, in_cluster.scratch[0].size_gib) == ("/data", 100)
    assert (in_cluster.image_pull_secrets, in_cluster.run_as_user) == (("registry",), 2000)
    assert (in_cluster.checkpoint_claim, in_s3.checkpoint_claim) == ("models", "")
    assert [volume.mount_path for volume in in_s3.volumes] == ["/other"]
