import pytest

from tests.unit.api.gateway import Gateway


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()
