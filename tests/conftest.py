"""Fixtures of all test levels: one engine per session, and hypothesis without deadlines."""

import functools
import gc
import os
from collections.abc import Iterator

import botocore.session
import pytest
from botocore.loaders import create_loader
from hypothesis import HealthCheck, settings

from evenkeel_local.engine import Engine
from evenkeel_local.identities import Credentials, create_deployer
from tests import torch_gang

# A slow example on a busy machine is no failure. `ci` uses the same examples each time.
settings.register_profile("developer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("developer"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")

# Test collection allocates only objects that stay: without garbage collection it takes half the time.
gc.disable()


def pytest_collection_finish() -> None:
    """Enable garbage collection again, without the objects loaded so far."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Do not select the tests of the PyTorch example if no interpreter has PyTorch."""
    with_torch = [item for item in items if item.get_closest_marker("pytorch")]
    if with_torch and torch_gang.find() is None:
        config.hook.pytest_deselected(items=with_torch)
        items[:] = [item for item in items if item not in with_torch]
        config.stash[_NOTES] = [f"{len(with_torch)} tests of the PyTorch example were not run: {torch_gang.MISSING}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report the tests that were not selected because a program is missing."""
    for note in config.stash.get(_NOTES, []):
        terminalreporter.write_line(note)


_NOTES = pytest.StashKey[list[str]]()
_AWS_VARIABLES = ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE")


@pytest.fixture(scope="session", autouse=True)
def _no_real_credentials() -> Iterator[None]:
    """Keep every test away from the developer's AWS account, whatever the environment of the shell."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name in _AWS_VARIABLES or name.startswith("AWS_ENDPOINT_URL_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_REGION", "us-west-2")
        patch.setenv("AWS_DEFAULT_REGION", "us-west-2")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="session", autouse=True)
def _service_models_are_read_once() -> Iterator[None]:
    """Share the parsed models of AWS services between all boto3 sessions of a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", functools.cache(create_loader))
        yield


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An AWS engine for the whole session, with IAM enforced. Tests share it: name resources after the test."""
    with Engine.start(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture(scope="session")
def deployer(engine: Engine) -> Credentials:
    """Credentials that may deploy stacks to `engine` and create its users."""
    return create_deployer(engine)
