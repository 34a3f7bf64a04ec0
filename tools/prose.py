"""Check the English of docs, docstrings, comments, messages and alarms: short sentences, named subjects, present terms.

    python tools/prose.py               fail on a file with more findings than its debt (`make lint`)
    python tools/prose.py README.md     list the findings of some files
    python tools/prose.py --lower       write the lower debt of improved files

`tools/prose_debt.json` holds the number of findings that each file still has. It only goes down: a file that is not in
the file has none. docs/decisions/0026-a-prose-checker-of-our-own.md explains why no published linter is used.
"""

import ast
import csv
import io
import itertools
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DEBT = ROOT / "tools" / "prose_debt.json"
MAX_WORDS = 25
"""Longest sentence. The aim is 20."""
MAX_PASSIVE = 0.4
"""Largest share of passive sentences of a page; a page of fewer than 10 sentences is exempt."""
_THIS = "tools/prose.py"
_CHECKED = (".md", ".py", ".json", ".yaml", ".js", ".csv")
_LEFT_OUT = (
    "CHANGELOG.md",
    "docs/decisions/",
    "tests/fixtures/",
    "requirements/",
    "docs/schemas/",
    "openapi.json",
    "tools/prose.py",
    "tests/unit/test_prose.py",
    "cli/evenkeel_cli/console/static/vendor/",
)
_TESTS = "tests/"
"""In tests, only docstrings and comments are read: other texts may be wrong on purpose."""

RETIRED = {
    "a pass": "a scheduling cycle",
    "bell": "requeue trigger",
    "bethinks": "decides again",
    "bethought": "decided again",
    "burns": "loses, uses up",
    "chance": "candidate pool",
    "chances": "candidate pools",
    "foreign": "unmanaged",
    "for others": "the job, the node, the team",
    "give way": "be preempted",
    "gives way": "is preempted",
    "give back": "release (nodes), return (a value)",
    "given back": "released (nodes), returned (a value)",
    "gives back": "releases (nodes), returns (a value)",
    "goes home": "migrates back",
    "goes on": "continues",
    "guest": "migration candidate",
    "heard": "ingested",
    "hears": "ingests",
    "human": "person",
    "hurt": "interrupted (job), affected (jobs of a node)",
    "in turn": "in order",
    "lent out": "lent",
    "loan": "temporary capacity",
    "made way": "was preempted",
    "mended": "repaired",
    "mends": "repairs",
    "news": "signal",
    "of late": "recently",
    "of old": "earlier",
    "of others": "the job, the node, the team",
    "one that": "the job, the node, the team",
    "one who": "the person, the caller",
    "patient": "interrupted job, original node",
    "person cordon": "manual cordon",
    "rail": "guardrail",
    "rehearsal": "dry run",
    "rehearse": "run without effects",
    "rework": "lost work",
    "room": "node capacity",
    "rooms": "node capacities",
    "desk": "commit context",
    "seat": "fit (scheduling), node slot (recovery)",
    "seats": "fits (scheduling), node slots (recovery)",
    "sick": "faulty, unhealthy",
    "silence": "no answer",
    "stay": "migration decision",
    "story": "timeline, scenario",
    "that of others": "the job, the node, the team",
    "the turn": "the order",
    "those who": "the people, the callers",
    "told": "message, reported",
    "veto": "opt-out",
    "vetoed": "opted out",
    "vetoes": "opt-outs",
    "way clear": "repair possible",
    "went on": "continued",
    "who it": "the person, the caller",
    "whom it": "the person, the caller",
    "willing": "candidate",
    "wish": "request",
    **dict.fromkeys(("anybody", "everybody", "nobody", "somebody"), "the person, the caller, the job"),
    **dict.fromkeys(("by others", "whoever", "whomever"), "the person, the caller, the job"),
}
"""Retired words, and phrases that hide the acting subject, each with the words to use instead.

`tests/unit/test_vocabulary.py` reads it for the names in the code.
"""
_ORDINARY = frozenset({"chance", "room", "silence", "stay", "story", "told", "willing"})
"""Retired names whose words sentences may use in their everyday meaning."""
_RETIRED = re.compile(
    rf"\b({'|'.join(re.escape(phrase) for phrase in RETIRED if phrase not in _ORDINARY)})\b", re.IGNORECASE
)
_CODE_WORDS = 2
"""A text of at most this number of words is a name or a code: no retired word of a name may be in it."""
_SENTENCE_WORDS = 3
"""A text of fewer words is no sentence. In code a text needs two words more."""
_VAGUE_NOUNS = re.compile(
    r"\b(the ones?|ones) (that|who|whose|which|with|without|of)\b|\b(the|all) others\b(?! \w)|\beach other's\b"
    r"|\b(is|are|than|and|like|including|:|;) (those|that) of\b"
    r"|\bwhat (is|are) (left|missing|free|due|known|seen)\b",
    re.IGNORECASE,
)
"""A pronoun or a clause inside a sentence in place of a noun."""
_SUBJECTLESS = re.compile(r"^(Of|Those|The same as|The same for|As for|As in) (?!course\b)")
"""The beginning of a fragment, or of a sentence in inverted order."""
_GIVES_BACK = re.compile(r"\b(gives?|given|giving|gave) (\w+ ){1,3}back\b", re.IGNORECASE)
_NOUN = re.compile(
    r"^(Who|What|One(?= (?:that|who|of|which|is|has|may|can|must|repairs))|Others|Whose|Whom|Of \w+ with|Where one"
    r"|That one)\b(?![^.]*\?$)"
)
_PASSIVE = re.compile(
    r"\b(is|are|was|were|be|been|being)\s+(?:\w+ly\s+)?(?:not\s+)?(\w+ed|\w+en|kept|told|said|held|made|read|put)\b"
)
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`*\[(\"])")


class Text(NamedTuple):
    """A paragraph, docstring, comment or message."""

    line: int
    words: str


class Finding(NamedTuple):
    """A sentence to rewrite."""

    path: str
    line: int
    rule: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.sentence[:160]}"


# ---------------------------------------------------------------- texts


def texts_of(path: str, source: str) -> Iterator[Text]:
    """Yield the texts of a file that people read."""
    if path.endswith(".md"):
        yield from _of_markdown(_with_names_as_code(source))
    elif path.endswith(".py") and path.startswith(_TESTS):
        yield from _of_docstrings(ast.parse(source))
        yield from _of_comments(source)
    elif path.endswith(".py"):
        yield from _of_python(source)
    elif path.endswith(".yaml"):
        yield from _of_comments_after("#", source)
        yield from _of_descriptions(source)
    elif path.endswith(".js"):
        yield from _of_comments_after("//", source)
    elif path.endswith(".csv"):
        for number, row in enumerate(csv.reader(io.StringIO(source)), 1):
            yield from (Text(number, cell) for cell in row if len(cell.split()) > _SENTENCE_WORDS)
    elif path.endswith(".asl.json"):
        for number, line in enumerate(source.splitlines(), 1):
            if match := re.search(r'"Comment": "(.*)"', line):
                yield Text(number, match[1])


def _with_names_as_code(source: str) -> str:
    """Write the names that a page links at its end (`[name]: path`) as code, and leave these lines empty."""
    definition = re.compile(r"^\[([\w-]+)\]: \S+$", re.MULTILINE)
    names = set(definition.findall(source))
    return re.sub(
        r"\[([\w-]+)\](?!\()",
        lambda match: f"`{match[1]}`" if match[1] in names else match[0],
        definition.sub("", source),
    )


def _of_markdown(source: str) -> Iterator[Text]:
    begin, is_code = 0, False
    lines: list[str] = []
    for number, raw in enumerate([*source.splitlines(), ""], 1):
        is_fence = raw.lstrip().startswith("```")
        is_code ^= is_fence
        line = "" if is_fence else raw
        starts_new = not line.strip() or re.match(r"\s*([-*]|\d+\.)\s|\s*[|#<>]", line)
        if starts_new and lines:
            yield Text(begin, " ".join(lines))
            lines = []
        if is_code or not line.strip() or re.match(r"\s*[|:-]+$", line) or line.lstrip().startswith(("#", "<", ">")):
            continue
        if line.lstrip().startswith("|"):
            yield from (Text(number, cell.strip()) for cell in line.strip().strip("|").split("|"))
            continue
        begin = begin if lines else number
        lines.append(re.sub(r"^\s*([-*]|\d+\.)\s+", "", line).strip())


def _is_code(text: str) -> bool:
    """Return whether a string of several lines is a Python program."""
    try:
        return "\n" in text and len(ast.parse(text).body) > 1
    except (SyntaxError, ValueError):  # ValueError: lone surrogates
        return False


def _of_python(source: str) -> Iterator[Text]:
    yield from _of_strings(ast.parse(source))
    yield from _of_comments(source)


def _of_strings(tree: ast.Module) -> Iterator[Text]:
    parts_of_texts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in parts_of_texts:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (
                Text(node.lineno, paragraph) for paragraph in _paragraphs(node.value, " " * (node.col_offset + 4))
            )
        elif isinstance(node, ast.JoinedStr):
            parts = (expr.value if isinstance(expr, ast.Constant) else "it" for expr in node.values)
            yield Text(node.lineno, " ".join("".join(str(part) for part in parts).split()))


def _paragraphs(text: str, margin: str) -> Iterator[str]:
    """Yield the paragraphs of a string, without programs, tables and blocks that begin with the margin."""
    if "\n    |" in text or text.lstrip().startswith(("{", "<")) or _is_code(text):
        return
    for block in re.split(r"\n[ \t]*\n", text):
        if all(line.startswith(margin) for line in block.splitlines()):
            continue  # a diagram, a list or a command
        for paragraph in re.split(r"\n\s*(?=\w+: )|\n\s*[-*] ", block):
            yield " ".join(paragraph.split())


def _of_docstrings(tree: ast.Module) -> Iterator[Text]:
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield from (Text(node.lineno, part) for part in _paragraphs(text, " " * (node.col_offset + 4)))


def _of_comments_after(sign: str, source: str) -> Iterator[Text]:
    """Yield the comments of lines that hold only a comment; other comments may be part of a text."""
    lines: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        text = line.strip()
        comment = text.removeprefix(sign) if text.startswith(sign) else ""
        is_prose = comment.strip(f"{sign} ") and not comment.startswith("  ")  # an indented line is a command
        if lines and (not is_prose or re.match(r" \w+: ", comment)):
            yield Text(number - len(lines), " ".join(lines))
            lines = []
        if is_prose:
            lines.append(comment.strip())


def _of_descriptions(source: str) -> Iterator[Text]:
    """Yield the descriptions of a CloudFormation template: one line, or a block after `>-`."""
    lines = source.splitlines()
    for number, line in enumerate(lines, 1):
        if match := re.match(r"(\s*)(?:\w*Description|Comment): (.+)", line):
            block = [line[len(match[1]) :] for line in lines[number:]]
            parts = itertools.takewhile(lambda part: part.startswith(" "), block)
            is_block = match[2].startswith((">", "|"))
            text = " ".join(part.strip() for part in parts) if is_block else match[2].strip("'\"")
            yield Text(number, text)


def _of_comments(source: str) -> Iterator[Text]:
    comment: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "---" not in token.string:
            is_alone = not token.line[: token.start[1]].strip()
            if comment and (token.start[0] != last + 1 or not is_alone):
                yield Text(first, " ".join(comment))
                comment = []
            first, last = (first if comment else token.start[0]), token.start[0]
            comment.append(token.string.lstrip("#: "))
    if comment:
        yield Text(first, " ".join(comment))


# ---------------------------------------------------------------- rules


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text; each piece of code and each link counts as one word."""
    plain = re.sub(r"`[^`]*`", "Code", text)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    plain = re.sub(r"https?://\S+|\*\*|noqa.*|type: ignore.*", "", plain)
    return [sentence.strip() for sentence in _SENTENCE.split(plain) if sentence.strip()]


def words_of(name: str) -> list[str]:
    """Return the words of an identifier: `NodeFact_of` is node, fact, of."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _retired_word(text: str) -> str:
    """Return the retired word of a sentence or of a code such as `NO_ROOM`; empty if there is none."""
    is_code = len(text.split()) <= _CODE_WORDS
    retired = [word for word in words_of(text) if word in RETIRED] if is_code else _RETIRED.findall(text)
    return retired[0].lower() if retired else ""


def find_problems(path: str, source: str) -> list[Finding]:
    """Return the findings of a file, in line order."""
    findings, count, passive = [], 0, 0
    shortest = _SENTENCE_WORDS + 2 * path.endswith(".py")
    for text in texts_of(path, source):
        for sentence in sentences_of(text.words):
            if word := _retired_word(sentence):
                findings.append(Finding(path, text.line, f"retired: {word}", sentence))
            elif _GIVES_BACK.search(sentence):
                findings.append(Finding(path, text.line, "retired: gives back", sentence))
            if len(sentence.split()) < _SENTENCE_WORDS or len(text.words.split()) < shortest:
                continue
            count += 1
            passive += bool(_PASSIVE.search(sentence))
            if len(sentence.split()) > MAX_WORDS:
                findings.append(Finding(path, text.line, f"more than {MAX_WORDS} words", sentence))
            if _NOUN.search(sentence) or _VAGUE_NOUNS.search(sentence) or _SUBJECTLESS.search(sentence):
                findings.append(Finding(path, text.line, "name the subject", sentence))
    if count >= 10 and passive > count * MAX_PASSIVE:
        findings.append(Finding(path, 1, f"passive in {passive} of {count} sentences", "say who acts"))
    return sorted(findings, key=lambda finding: finding.line)


# ---------------------------------------------------------------- the command


def checked_files() -> list[str]:
    """Return the checked files of the project."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    names = listed.stdout.decode().splitlines()
    return [name for name in names if name.endswith(_CHECKED) and not name.startswith(_LEFT_OUT)]


def findings_by_file(names: Iterable[str]) -> dict[str, list[Finding]]:
    """Return the findings by file, without the files that have none."""
    findings = {
        name: find_problems(name, (ROOT / name).read_text(encoding="utf-8"))
        for name in names
        if (ROOT / name).is_file()
    }
    return {name: findings for name, findings in findings.items() if findings}


def main(arguments: list[str]) -> int:
    """Check all files, list the findings of named files, or lower the debt."""
    names = [argument for argument in arguments if not argument.startswith("-")]
    if names:
        for finding in findings_by_file(names).values():
            print(*finding, sep="\n")
        return 0
    debt: dict[str, int] = json.loads(DEBT.read_text(encoding="utf-8")) if DEBT.exists() else {}
    findings_of = findings_by_file(checked_files())
    if "--lower" in arguments:
        lower = {
            name: min(len(findings), debt.get(name, len(findings))) for name, findings in sorted(findings_of.items())
        }
        DEBT.write_text(json.dumps(lower, indent=1) + "\n", encoding="utf-8")
        return 0
    worse = {name: findings for name, findings in findings_of.items() if len(findings) > debt.get(name, 0)}
    for name, finding in worse.items():
        print(*finding, sep="\n")
        print(
            f"{name}: {len(finding)} findings, {debt.get(name, 0)} are known: rewrite the sentences that you changed\n"
        )
    total = sum(len(findings) for findings in findings_of.values())
    print(f"prose: {total} findings in {len(findings_of)} files, {len(worse)} files became worse")
    return 1 if worse else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
