"""The documentation site has no dead link, loads nothing from other hosts, and shows all pages and policy fields."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools import policy_page, site, site_hooks

_LOADED_URL = re.compile(
    r"<(?:script|img|iframe)[^>]*\bsrc=\"?(https?:[^\">\s]+)|<link[^>]*rel=\"?stylesheet\"?[^>]*href=\"?(https?:[^\">\s]+)"
)
DOCS = site.ROOT / "docs"


@pytest.fixture(scope="module")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built_pages = site.build(folder)
    assert built_pages.returncode == 0, built_pages.stdout + built_pages.stderr
    return folder


def test_site_shows_every_page(built_site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}
    html_files = {path.relative_to(built_site).as_posix() for path in built_site.rglob("*.html")}

    assert {page.replace("README.html", "index.html") for page in pages} - html_files == set()


def test_site_loads_nothing_from_another_host(built_site: Path) -> None:
    external_urls = {
        match[0] for path in built_site.rglob("*.html") for match in _LOADED_URL.finditer(path.read_text("utf-8"))
    }

    assert external_urls == set()


def test_every_policy_field_has_a_description() -> None:
    schema = policy_page.schema()
    sections: dict[str, Any] = {"Policy": schema, **schema["$defs"]}
    undescribed_fields = [
        f"{section}.{name}"
        for section, content in sections.items()
        for name, field in content.get("properties", {}).items()
        if not field.get("description")
    ]

    assert undescribed_fields == [], "write a docstring under each of these fields"


@pytest.mark.parametrize(
    ("repository", "expected"),
    [
        ("", "See template.yaml and [a](b.md#c)."),
        (
            "https://git.example/",
            "See [template.yaml](https://git.example/blob/main/template.yaml) and [a](b.md#c).",
        ),
    ],
)
def test_code_link_leads_to_known_repository(repository: str, expected: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="architecture.md"))
    config = {"docs_dir": str(DOCS), "repo_url": repository}
    text = "See [template.yaml](../template.yaml) and [a](b.md#c)."

    assert site_hooks.on_page_markdown(text, page, config) == expected


def test_link_to_a_folder_leads_to_its_first_page() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    config = {"docs_dir": str(DOCS), "repo_url": None}

    assert site_hooks.on_page_markdown("[all](runbooks/)", page, config) == "[all](runbooks/README.md)"
