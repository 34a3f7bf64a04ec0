"""An engine for workflows: it skips Wait states and retry delays, and a test sets the answers of tasks."""

from collections.abc import Iterator

import pytest

from evenkeel_local.engine import Engine
from evenkeel_local.identities import Credentials, create_deployer
from tests.workflow.workflow_bench import WorkflowBench

SKIP_WAITS = 0.0


@pytest.fixture(scope="session")
def workflow_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine whose Wait states take no time. `mock_workflows` sets the answers of its tasks."""
    with Engine.start(tmp_path_factory.mktemp("workflow-engine"), wait_scale=SKIP_WAITS) as running:
        yield running


@pytest.fixture(scope="session")
def workflow_deployer(workflow_engine: Engine) -> Credentials:
    """Credentials that may create state machines on `workflow_engine`."""
    return create_deployer(workflow_engine)


@pytest.fixture(scope="session")
def bench(workflow_engine: Engine, workflow_deployer: Credentials) -> WorkflowBench:
    """Both state machines on `workflow_engine`."""
    return WorkflowBench(workflow_engine, workflow_deployer)
