"""Hooks of mkdocs for the documentation site: patterns in the navigation, links to the code, and mermaid.

The pages in `docs/` are written for two readers: the site, and a browser of the repository. A link to a file outside
`docs/` works in a repository only. The site links to that file if `EVENKEEL_REPOSITORY` names the repository's address,
and prints its name otherwise.

Interface: https://www.mkdocs.org/user-guide/configuration/#hooks
"""

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MERMAID = ROOT / ".tools" / "browser" / "mermaid.min.js"
_DEFINITION = re.compile(r"^\[([\w-]+)\]: (\S+)\n", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Replace each pattern of the navigation by its pages, and load the copy of mermaid that the site carries."""
    config["nav"] = _expand(config["nav"], Path(config["docs_dir"]))
    if MERMAID.is_file():
        config["extra_javascript"].append("assets/mermaid.min.js")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add mermaid to the files of the site. Without it, the theme would load mermaid from another host."""
    from mkdocs.structure.files import File  # type: ignore[import-not-found]  # only the site has mkdocs

    if MERMAID.is_file():
        files.append(File.generated(config, "assets/mermaid.min.js", abs_src_path=str(MERMAID)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the page with links to folders and to files outside `docs/` that work on the site."""
    targets = dict(_DEFINITION.findall(markdown))
    markdown = _DEFINITION.sub("", markdown)
    if targets:
        names = re.compile(rf"\[({'|'.join(map(re.escape, targets))})\](?!\()")
        markdown = names.sub(lambda match: f"[`{match[1]}`]({targets[match[1]]})", markdown)
    folder = Path(config["docs_dir"], page.file.src_uri).parent
    repository = config["repo_url"] or ""

    def replaced(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path = Path(os.path.normpath(folder / target))
        if path.is_relative_to(config["docs_dir"]):
            return f"[{text}]({target.rstrip('/')}/{_first_page(path)})" if path.is_dir() else match[0]
        if not repository:
            return text
        return f"[{text}]({repository.rstrip('/')}/blob/main/{path.relative_to(ROOT)})"

    return _LINK.sub(replaced, markdown)


def _expand(entries: list[Any], docs: Path) -> list[Any]:
    """Return the entries of the navigation with the pages of each pattern. A page that is named already is left out."""
    named = {entry for entry in entries if isinstance(entry, str) and "*" not in entry}
    expanded: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            expanded += [
                {title: _expand(inner, docs) if isinstance(inner, list) else inner} for title, inner in entry.items()
            ]
        elif "*" in entry:
            pages = sorted(path.relative_to(docs).as_posix() for path in docs.glob(entry))
            expanded += [page for page in pages if page not in named]
        else:
            expanded.append(entry)
    return expanded


def _first_page(folder: Path) -> str:
    """Return the name of the page that shows a folder: its README, or its first page, or its first file."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    pages = [name for name in names if name.endswith(".md")]
    return "README.md" if "README.md" in names else (pages or names)[0]
