"""A list is read page by page, and the next page is received while this page is used."""

import json
import threading
from io import BytesIO
from typing import Any

import pytest
import urllib3

from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel.ports import Unreachable

SECONDS = 20.0


class PagedApi(KubernetesApi):
    """Answers a list in pages of two objects. Broken pages have no JSON."""

    def __init__(self, pages: int, *, metadata_first: bool = True, broken: int = 0) -> None:
        self.name, self.pages, self.metadata_first, self.broken = "paged", pages, metadata_first, broken
        self.requested = [threading.Event() for _ in range(pages)]

    def _open(self, method: str, path: str, query: Any = None, *_: Any, **__: Any) -> urllib3.BaseHTTPResponse:
        number = int((query or {}).get("continue") or 0)
        self.requested[number].set()
        metadata = {"continue": str(number + 1)} if number + 1 < self.pages else {}
        items = [{"name": f"{number}-{index}", "note": '"items":['} for index in range(2)]
        page = {"metadata": metadata, "items": items} if self.metadata_first else {"items": items, "metadata": metadata}
        body = b"no JSON" if number and number == self.broken else json.dumps(page, separators=(",", ":")).encode()
        return urllib3.HTTPResponse(BytesIO(body), status=200, preload_content=False)


class OnePageApi(KubernetesApi):
    """Answers a list with one page of these bytes."""

    def __init__(self, page: bytes) -> None:
        self.name, self.page = "one-page", page

    def _open(self, *_: Any, **__: Any) -> urllib3.BaseHTTPResponse:
        return urllib3.HTTPResponse(BytesIO(self.page), status=200, preload_content=False)


@pytest.mark.parametrize("metadata_first", [True, False])
@pytest.mark.parametrize("pages", [1, 2, 5])
def test_list_yields_the_objects_of_all_pages_in_order(pages: int, metadata_first: bool) -> None:
    api = PagedApi(pages, metadata_first=metadata_first)

    names = [item["name"] for item in api.items("/api/v1/nodes")]

    assert names == [f"{number}-{index}" for number in range(pages) for index in range(2)]


def test_next_page_is_requested_before_this_page_is_used() -> None:
    api = PagedApi(3)
    items = api.items("/api/v1/nodes")

    next(items)

    assert api.requested[1].wait(SECONDS)
    assert not api.requested[2].is_set()
    items.close()  # type: ignore[attr-defined]  # a generator


def test_failed_page_raises_after_the_pages_before_it() -> None:
    names: list[str] = []

    with pytest.raises(Unreachable, match="GET /api/v1/nodes of paged: the answer is not a JSON object"):
        names.extend(item["name"] for item in PagedApi(3, broken=1).items("/api/v1/nodes"))

    assert names == ["0-0", "0-1"]
