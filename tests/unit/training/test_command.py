"""`python -m evenkeel.training`, as a start script or a person calls it."""

import hashlib
import json
import sys
from pathlib import Path

import pytest

from evenkeel.training.__main__ import main
from evenkeel.training.run import Run
from evenkeel.training.storage import open_storage


@pytest.fixture
def damaged_uri(uri: str) -> str:
    """Return a checkpoint URI where step 10 is complete and a shard of step 20 is truncated."""
    storage = open_storage(uri)
    run = Run(storage, job_id="job-rings", attempt=1)
    run.save(10, b"whole")
    run.save(20, b"damaged")
    storage.put("attempt=1/step=000000020/shard-0-of-1.bin", b"dam", hashlib.sha256(b"dam").hexdigest())
    return uri


def test_prove_shows_the_proven_checkpoint_and_rejections(damaged_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", damaged_uri]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Step 10 of attempt 1 is valid: 1 file, 5 bytes, every size and checksum matches.")
    assert lines[1:] == ["  step 20 of attempt 1  SHARD_SIZE: shard-0-of-1.bin has 3 bytes; the manifest says 7."]


def test_prove_reports_step_digest_and_rejections_as_json(damaged_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", damaged_uri, "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["resumeFrom"] == {
        "attempt": 1,
        "step": 10,
        "manifest": "attempt=1/step=000000010/manifest.json",
    }
    assert document["grade"] == "PROVED"
    assert len(document["digest"]) == 64
    assert [(out["step"], out["code"]) for out in document["rejected"]] == [(20, "SHARD_SIZE")]


def test_prove_command_changes_no_file(damaged_uri: str) -> None:
    main(["prove", damaged_uri, "--attempt", "5"])

    assert open_storage(damaged_uri).read_fence().fence is None


def test_prove_command_without_checkpoints_fails(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", uri]) == 1

    assert capsys.readouterr().out == "The job has no checkpoint yet, so training starts at step 0.\n"


def test_prove_command_rejects_distrusted_checkpoints(damaged_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", damaged_uri, "--distrust-after", "2020-01-01T00:00:00Z"]) == 1

    assert "step 10 of attempt 1  DISTRUSTED" in capsys.readouterr().out


def test_resume_point_command_repeated_prints_an_equal_key(
    damaged_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume-point", damaged_uri, "--attempt", "2"]) == 0
    first = capsys.readouterr()
    assert main(["resume-point", damaged_uri, "--attempt", "2"]) == 0

    assert first.out == "attempt=1/step=000000010/manifest.json\n"
    assert capsys.readouterr() == first
    assert "SHARD_SIZE" in first.err


def test_resume_point_without_checkpoints_is_an_empty_line(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume-point", uri, "--attempt", "1"]) == 0

    assert capsys.readouterr().out == "\n"


def test_resume_point_without_proof_pins_only_with_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_storage(str(tmp_path)).put_new("attempt=1/step=000000010/manifest.json", b"{")

    assert main(["resume-point", str(tmp_path), "--attempt", "2"]) == 65
    assert "MANIFEST_UNREADABLE" in capsys.readouterr().err
    assert open_storage(str(tmp_path)).read_fence().fence is None

    assert main(["resume-point", str(tmp_path), "--attempt", "2", "--start-over"]) == 0
    assert capsys.readouterr().out == "\n"


def test_resume_point_behind_the_fence_is_refused(damaged_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["resume-point", damaged_uri, "--attempt", "3"])

    assert main(["resume-point", damaged_uri, "--attempt", "2", "--json"]) == 75
    assert "attempt 2 is fenced" in capsys.readouterr().err


def test_unreadable_fence_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_storage(str(tmp_path)).put_new("_fence.d/1.json", b"not JSON")

    assert main(["resume-point", str(tmp_path), "--attempt", "2"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_checkpoint_address_of_unknown_scheme_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "gs://bucket/prefix"]) == 2
    assert "is not a checkpoint URI" in capsys.readouterr().err


def test_time_without_time_zone_is_an_error(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["prove", uri, "--distrust-after", "2026-11-03T10:00:00"])
    assert "no time zone" in capsys.readouterr().err


def test_bucket_without_boto3_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)

    assert main(["prove", "s3://bucket/prefix"]) == 2
    assert "pip install boto3" in capsys.readouterr().err
