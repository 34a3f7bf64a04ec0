"""Generated tables in a page: each stands between `<!-- table: NAME -->` and `<!-- end -->`."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path


def with_tables(page: Path, tables: Mapping[str, Callable[[], Iterable[str]]]) -> str:
    """Return the page with the present lines of each table.

    Raises:
        ValueError: the page has not exactly one place for a table.
    """
    text = page.read_text(encoding="utf-8")
    for name, rows in tables.items():
        blocks = re.findall(rf"<!-- table: {name} -->\n.*?<!-- end -->", text, flags=re.DOTALL)
        if len(blocks) != 1:
            raise ValueError(f"{page.name} needs one place for the table {name}, it has {len(blocks)}")
        text = text.replace(blocks[0], "\n".join([f"<!-- table: {name} -->", *rows(), "<!-- end -->"]))
    return text
