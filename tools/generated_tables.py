"""Generated tables in a page: each stands between `<!-- table: NAME -->` and `<!-- end -->`."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path


def with_tables(page: Path, tables: Mapping[str, Callable[[], Iterable[str]]]) -> str:
    """Return the page with the present lines of each table.

    Raises:
        ValueError: the page has not exactly one place for a table.
    """
    return fill_tables(page.read_text(encoding="utf-8"), tables, page.name)


def fill_tables(text: str, tables: Mapping[str, Callable[[], Iterable[str]]], page_name: str) -> str:
    """Return the text of a page with the present lines of each table.

    Raises:
        ValueError: the page has not exactly one place for a table.
    """
    for name, rows in tables.items():
        blocks = re.findall(rf"<!-- table: {name} -->\n.*?<!-- end -->", text, flags=re.DOTALL)
        if len(blocks) != 1:
            raise ValueError(f"{page_name} needs one place for the table {name}, it has {len(blocks)}")
        text = text.replace(blocks[0], "\n".join([f"<!-- table: {name} -->", *rows(), "<!-- end -->"]))
    return text
