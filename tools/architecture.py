"""Draw the pictures of docs/architecture.md from the code.

    python tools/architecture.py            write the pictures
    python tools/architecture.py --check    exit 1 if a picture is stale

Each picture is a Mermaid diagram between two markers. Packages come from the imports, the path of an event from
template.yaml and the workflows, the states of a job from `domain/jobs/lifecycle.py`.
"""

import ast
import functools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from samtranslator.yaml_helper import yaml_parse

from evenkeel.domain.jobs.lifecycle import JOB_WRITERS
from tools.generated_tables import fill_tables

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
LAYER = ROOT / "shared" / "evenkeel"
Graph = Mapping[str, frozenset[str]]

# ---------------------------------------------------------------- packages


def package_graph(floor: str) -> Graph:
    """Return which packages each package of `domain` or `services` imports; single modules are left out."""
    graph: dict[str, set[str]] = defaultdict(set)
    packages = {path.parent.name for path in (LAYER / floor).glob("*/__init__.py")}
    for path in (LAYER / floor).glob("*/**/*.py"):
        package = path.relative_to(LAYER / floor).parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"evenkeel.{floor}"):
                for alias in node.names:
                    name = f"{node.module}.{alias.name}".removeprefix(f"evenkeel.{floor}.").partition(".")[0]
                    # Sections of the policy are assembled below the packages that own them.
                    if name in packages and path.stem != "policy":
                        graph[package].add(name)
    return {name: frozenset(graph[name] - {name}) for name in sorted(packages)}


def without_shortcuts(graph: Graph) -> Graph:
    """Return the graph without each edge that a longer path implies: the picture shows only the nearest packages."""

    def below(name: str) -> frozenset[str]:
        direct = graph.get(name, frozenset())
        return direct.union(*(below(lower) for lower in direct))

    return {
        name: frozenset(lower for lower in direct if not any(lower in below(other) for other in direct - {lower}))
        for name, direct in graph.items()
    }


def packages_picture() -> Iterator[str]:
    """Yield the packages of the layer, each above its imports."""
    yield "flowchart TB"
    for floor in ("services", "domain"):
        graph = package_graph(floor)
        yield f"  subgraph {floor}"
        yield from (f'    {floor}_{name}["{name}"]' for name in graph)
        for name, direct in without_shortcuts(graph).items():
            yield from (f"    {floor}_{name} --> {floor}_{lower}" for lower in sorted(direct))
        yield "  end"
    yield "  functions --> services --> domain"
    yield "  functions --> runtime --> adapters"
    yield "  services --> events --> domain"
    yield "  services --> ports"
    yield "  adapters --> ports --> domain"


# ---------------------------------------------------------------- the path of an event


@functools.cache
def template() -> Mapping[str, Any]:
    """Return the resources of template.yaml, which is parsed once. Copy what you change."""
    resources: Mapping[str, Any] = yaml_parse((ROOT / "template.yaml").read_text(encoding="utf-8"))["Resources"]
    return resources


def logical_id_of(resource: object) -> str:
    """Return the logical id that an intrinsic function names."""
    match resource:
        case {"Fn::GetAtt": [str(name), *_]} | {"Ref": str(name)}:
            return name
        case {"Fn::GetAtt": str(name)}:
            return name.partition(".")[0]
    return ""


def event_picture() -> Iterator[str]:
    """Yield the path of an event: rule, queue, function, and the states of the recovery."""
    resources = template()
    yield "flowchart LR"
    for name, resource in resources.items():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::Events::Rule" and "EventPattern" in properties:
            source = ", ".join(properties["EventPattern"].get("source", ["any source"]))
            for target in properties["Targets"]:
                queue = logical_id_of(target["Arn"])
                yield f'  {name}["{source}<br/>{name}"] --> {queue}[("{queue}")]'
        for event in properties.get("Events", {}).values() if resource["Type"].endswith("::Function") else ():
            if event["Type"] == "SQS" and "Events" in logical_id_of(event["Properties"]["Queue"]):
                yield f"  {logical_id_of(event['Properties']['Queue'])} --> {name}"
                yield f"  {name} --> {RECOVERY_START}"
    yield from recovery_states()


RECOVERY = ROOT / "statemachines" / "recover_node.asl.json"
RECOVERY_START = "PlanRecovery"


def following_states(states: Mapping[str, Any], name: str, above: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the next possible task and parallel states after a state, without error paths."""
    state = states[name]
    nexts = [choice["Next"] for choice in state.get("Choices", ())]
    nexts += [state[key] for key in ("Next", "Default") if key in state]
    for successor in dict.fromkeys(nexts):
        if states[successor]["Type"] in ("Task", "Parallel"):
            yield successor
        elif successor not in above:
            yield from following_states(states, successor, above | {successor})


def state_arrows(states: Mapping[str, Any], start: str) -> Iterator[str]:
    """Yield an arrow for each step from one task state to the next."""
    names = [name for name, state in states.items() if state["Type"] in ("Task", "Parallel")]
    first = [start] if start in names else list(dict.fromkeys(following_states(states, start)))
    for name in dict.fromkeys([*first, *names]):
        yield from (
            f"{name} --> {successor}"
            for successor in dict.fromkeys(following_states(states, name))
            if successor != name
        )


def recovery_states() -> Iterator[str]:
    """Yield the states of a recovery: before the fork, in each branch, and after it."""
    workflow = json.loads(RECOVERY.read_text(encoding="utf-8"))
    states = workflow["States"]
    fork, parallel = next((name, state) for name, state in states.items() if state["Type"] == "Parallel")
    yield "  subgraph recover_node"
    yield "    direction TB"
    yield from (f"    {arrow}" for arrow in state_arrows(states, workflow["StartAt"]))
    yield f"    subgraph {fork}"
    for label, branch in zip(("node branch", "job branch"), parallel["Branches"], strict=True):
        yield f'      subgraph {label.replace(" ", "_")}["{label}"]'
        yield from (f"        {arrow}" for arrow in state_arrows(branch["States"], branch["StartAt"]))
        yield "      end"
    yield "    end"
    yield "  end"


# ---------------------------------------------------------------- a job's life


def job_picture() -> Iterator[str]:
    """Yield the states of a job, with the services that may change each."""
    writers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for writer, changes in JOB_WRITERS.items():
        for before, after in changes:
            if before is not after:
                writers[before.value if before else "[*]", after.value].append(writer)
    yield "stateDiagram-v2"
    for (begin, end), names in sorted(writers.items()):
        yield f"  {begin} --> {end}: {', '.join(sorted(names))}"
    ends = {end for _, end in writers} - {begin for begin, _ in writers}
    yield from (f"  {end} --> [*]" for end in sorted(ends))


PICTURES = {"packages": packages_picture, "event": event_picture, "job": job_picture}


def package_table(layer: str) -> Iterator[str]:
    """Yield a table of the packages of a layer: the first sentence of each docstring."""
    yield from ("", "| package | contents |", "|---|---|")
    for path in sorted((LAYER / layer).glob("*/**/__init__.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        contents = " ".join(docstring.partition("\n\n")[0].split()).removesuffix(".")
        yield f"| `{path.parent.relative_to(LAYER / layer)}` | {contents} |"
    yield ""


TABLES = {
    "domain-packages": functools.partial(package_table, "domain"),
    "service-packages": functools.partial(package_table, "services"),
}


def page_with_pictures(page: str, pictures: Mapping[str, Iterable[str]]) -> str:
    """Return the page with each picture between its markers.

    Raises:
        ValueError: the page has no markers for a picture.
    """
    for name, lines in pictures.items():
        block = f"<!-- picture: {name} -->\n```mermaid\n" + "\n".join(lines) + "\n```\n<!-- end -->"
        blocks = re.findall(rf"<!-- picture: {name} -->\n.*?<!-- end -->", page, flags=re.DOTALL)
        if len(blocks) != 1:
            raise ValueError(f"docs/architecture.md needs one place for the picture {name}, it has {len(blocks)}")
        page = page.replace(blocks[0], block)
    return page


def files() -> dict[Path, str]:
    """Return the page with its pictures and tables."""
    pictures = {name: draw() for name, draw in PICTURES.items()}
    return {PAGE: fill_tables(page_with_pictures(PAGE.read_text(encoding="utf-8"), pictures), TABLES, PAGE.name)}


def main() -> int:
    """Write the pictures, or compare them."""
    before, after = PAGE.read_text(encoding="utf-8"), files()[PAGE]
    if "--check" in sys.argv[1:]:
        if before != after:
            print("docs/architecture.md: a picture is stale, run `python tools/architecture.py`")
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
