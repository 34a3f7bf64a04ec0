"""Images of nodes are removed from a list before it is parsed, and nothing else."""

import json
from typing import Any

import pytest

from bench.scale import sample_objects
from evenkeel.adapters import node_objects
from evenkeel.adapters.node_images import NODES_PATH, remove_images
from tests.unit.adapters.test_list_pages import OnePageApi

IMAGES_AS_TEXT = '"images":[{"names":["a"]}],"nodeInfo":{}'


def page_of(*items: dict[str, Any]) -> bytes:
    return sample_objects.page([*items])


def without_images(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node as it should be after the removal."""
    return {**node, "status": {**node["status"], "images": []}}


def test_images_are_removed_and_all_else_stays() -> None:
    nodes = [sample_objects.node(number) for number in range(3)]

    shortened = remove_images(page_of(*nodes))

    assert json.loads(shortened)["items"] == [without_images(node) for node in nodes]
    assert len(shortened) < len(page_of(*nodes)) / 2


def test_nodes_without_images_are_read_like_complete_ones() -> None:
    nodes = [sample_objects.node(number) for number in range(3)]

    shortened = json.loads(remove_images(page_of(*nodes)))["items"]

    assert [node_objects.read_node("c", node) for node in shortened] == [
        node_objects.read_node("c", node) for node in nodes
    ]


def test_same_words_in_a_text_stay() -> None:
    node = sample_objects.node(1)
    node["metadata"]["annotations"]["note"] = IMAGES_AS_TEXT
    node["status"]["conditions"][0]["message"] = IMAGES_AS_TEXT

    assert json.loads(remove_images(page_of(node)))["items"] == [without_images(node)]


@pytest.mark.parametrize(
    "page", [b"", b"no JSON", b'{"items":[]}', b'{"images":[]}', b'{"items":[{"status":{"images":[{"names":']
)
def test_page_without_images_stays(page: bytes) -> None:
    assert remove_images(page) == page


def test_image_name_like_json_leaves_the_page_whole() -> None:
    node = sample_objects.node(1)
    node["status"]["images"][0]["names"][0] = 'an image}],"conditions":['

    assert [*OnePageApi(page_of(node)).items(NODES_PATH)] == [node]


def test_nodes_of_a_list_have_no_images() -> None:
    node = sample_objects.node(1)

    assert [*OnePageApi(page_of(node)).items(NODES_PATH)] == [without_images(node)]


def test_objects_of_other_lists_stay_complete() -> None:
    node = sample_objects.node(1)

    assert [*OnePageApi(page_of(node)).items("/apis/example.com/v1/nodes")] == [node]
