"""The two kinds of store, each empty for every test."""

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto import mock_aws


@pytest.fixture(params=["folder", "bucket"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield an empty checkpoint URI: once in a folder, once in S3."""
    if request.param == "folder":
        yield f"file://{tmp_path}/checkpoints/job-rings"
        return
    with mock_aws():
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="checkpoints")
        yield "s3://checkpoints/research/job-rings"
