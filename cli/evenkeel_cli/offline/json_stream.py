"""Read JSON documents from large files: one on each line, one after another, or the entries of a list.

A list is an array, or an object with its entries in `Records` (CloudTrail), `items` (kubectl) or `Events` (AWS CLI).
The memory holds one entry at a time. A malformed line is reported with its number, and reading continues after it. In a
malformed list, the entries after the fault are not read, because their beginning is unknown.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

_CHUNK = 1 << 20
LARGEST_DOCUMENT = 64 << 20
"""Maximum characters of one entry."""
_SPACE = re.compile(r"[ \t\r\n]*")
_LIST = re.compile(
    r'\{(?:\s*"[A-Za-z]{1,40}"\s*:\s*(?:"[^"\\]{0,2000}"|null|true|false|-?\d{1,20})\s*,)*'
    r'\s*"(?:Records|items|Events)"\s*:\s*\['
)
_NEXT_LINE = re.compile(r"\n(?=[\[{])")
_MARGIN = 16
"""An error this close to the end of the buffer may come from a word, number or escape that is not read completely."""


class JsonDocument(NamedTuple):
    """A JSON document, or the reason why it could not be read."""

    line: int
    content: Any
    problem: str = ""
    """Empty for a good document."""


def documents(path: Path) -> Iterator[JsonDocument]:
    """Yield the documents of a file, which may be compressed with gzip.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
    with (
        gzip.open(path, "rb") if is_gzip else path.open("rb") as reader,
        io.TextIOWrapper(reader, encoding="utf-8-sig", errors="surrogateescape", newline="\n") as stream,
    ):
        yield from _Reader(stream).documents()


class _Reader:
    """The unread part of a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._text = ""
        self._at = 0
        self._line = 1
        self._is_at_end = False
        self._problem = ""
        self._decoder = json.JSONDecoder()

    def documents(self) -> Iterator[JsonDocument]:
        while self._skip_space():
            if self._text[self._at] == "[":
                self._take(1)
                yield from self._entries()
            elif (start := self._list_head()) is not None:
                self._take(start)
                yield from self._entries()
                yield from self._rest_of_object()
            else:
                document = self._document()
                yield document
                if document.problem and not self._skip_to_next_line():
                    break
        if self._problem:
            yield JsonDocument(self._line, None, self._problem)

    def _list_head(self) -> int | None:
        """Return the length of the beginning of an object up to its list; None if the object holds none."""
        if self._text[self._at] != "{":
            return None
        if len(self._text) - self._at < _CHUNK:
            self._fill(_CHUNK)
        match = _LIST.match(self._text, self._at)
        return match.end() - self._at if match else None

    def _entries(self) -> Iterator[JsonDocument]:
        """Yield the entries of a list, up to its end."""
        while self._skip_space():
            if self._text[self._at] == "]":
                self._take(1)
                return
            document = self._document()
            if document.problem:
                yield document._replace(problem=f"{document.problem}; the rest of this list is skipped")
                self._skip_to_next_line()
                return
            yield document
            if self._skip_space() and self._text[self._at] == ",":
                self._take(1)
        yield JsonDocument(self._line, None, "the file ends inside a list")

    def _rest_of_object(self) -> Iterator[JsonDocument]:
        """Skip the fields after the list of an object."""
        if not self._skip_space() or self._text[self._at] not in ",}":
            return
        if self._text[self._at] == "}":
            self._take(1)
            return
        # Parse the remaining fields as a separate object.
        self._text = "{" + self._text[self._at + 1 :]
        self._at = 0
        document = self._document()
        if document.problem:
            yield document
            self._skip_to_next_line()

    def _document(self) -> JsonDocument:
        """Read one document at the current position. The position stays before a bad document."""
        line = self._line
        while True:
            try:
                content, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                unread = len(self._text) - self._at
                if unread > LARGEST_DOCUMENT:
                    return JsonDocument(line, None, f"the document has more than {LARGEST_DOCUMENT} characters")
                is_cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _MARGIN
                if is_cut and self._fill(max(_CHUNK, unread)):
                    continue
                return JsonDocument(line, None, f"not JSON: {error.msg.removesuffix(' at')}")
            except RecursionError:
                return JsonDocument(line, None, "not JSON: nested too deeply")
            self._take(end - self._at)
            return JsonDocument(line, content)

    def _skip_space(self) -> bool:
        """Go to the next character that is not white space. Return False at the end of the stream."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._take(match.end() - self._at if match else 0)
            if self._at < len(self._text):
                return True
            if not self._fill(_CHUNK):
                return False

    def _skip_to_next_line(self) -> bool:
        """Go to the next line that begins with a document. Return False at the end of the stream."""
        while True:
            match = _NEXT_LINE.search(self._text, self._at)
            if match:
                self._take(match.end() - self._at)
                return True
            self._take(max(0, len(self._text) - 1 - self._at))
            if not self._fill(_CHUNK):
                return False

    def _take(self, count: int) -> None:
        self._line += self._text.count("\n", self._at, self._at + count)
        self._at += count

    def _fill(self, count: int) -> bool:
        """Read more. Return False at the end of the stream, or where an archive is damaged."""
        if self._is_at_end:
            return False
        try:
            chunk = self._stream.read(count)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            chunk, self._problem = "", f"damaged archive: {error}"
        self._is_at_end = not chunk
        self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)
