"""`Value`, the base class of all immutable values."""

import pytest

from evenkeel.domain.values import Value


class Node(Value):
    name: str
    gpus: int = 8


def test_changing_an_unknown_field_of_a_value_is_refused() -> None:
    with pytest.raises(TypeError, match="Node has no field gpu"):
        Node(name="a").replace(gpu=4)


def test_changed_copy_of_a_value_keeps_other_fields() -> None:
    assert Node(name="a").replace(gpus=4) == Node(name="a", gpus=4)
