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


def test_unchecked_copy_of_value_equals_validated_copy() -> None:
    node = Node.model_validate({"name": "a", "rack": "r1"})

    copied = node.replace_unchecked(gpus=4)

    assert copied == node.replace(gpus=4)
    assert copied.model_fields_set == {"name", "gpus", "rack"}
    assert copied.to_json() == {"name": "a", "gpus": 4, "rack": "r1"}
    assert node.gpus == 8


def test_unchecked_change_of_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="Node has no field gpu"):
        Node(name="a").replace_unchecked(gpu=4)
