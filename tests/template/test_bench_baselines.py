"""The baseline of the cordon benchmark uses the product's workflow, and its stub answers lead to the timed cordon."""

import json
import random
from typing import Any

from samtranslator.yaml_helper import yaml_parse

from evenkeel.ports import ExecutionState
from tests.simulator.asl import Json, Reply, WorkflowEngine
from tests.simulator.event_loop import VirtualTimeLoop
from tests.template.documents import ROOT, strings, workflow
from tests.template.test_deployment import arn_of

RESOURCES = yaml_parse((ROOT / "bench" / "yardsticks" / "template.yaml").read_text())["Resources"]
MACHINE = RESOURCES["RecoverNodeMachine"]["Properties"]
FUNCTIONS = {name: arn_of(value) for name, value in MACHINE["DefinitionSubstitutions"].items() if name != "Partition"}


def test_every_function_of_the_workflow_has_a_baseline_stub() -> None:
    text = " ".join(text for _, text in strings(workflow("recover_node")))
    wanted = {part.partition("}")[0] for part in text.split("${")[1:]}

    assert wanted == set(FUNCTIONS), "add a stub of the function to the baseline of the benchmark"


def test_baseline_stubs_take_the_workflow_through_cordon_to_end() -> None:
    loop = VirtualTimeLoop()
    functions: list[str] = []

    def invoke(_state: str, placeholder: str, _payload: Json, reply: Reply) -> None:
        functions.append(FUNCTIONS[placeholder[2:-1]])
        answer: Any = {"outcome": "CORDONED", "reason": "Patched."}
        if functions[-1] != "CordonNode":
            answer = json.loads(RESOURCES[functions[-1]]["Properties"]["Environment"]["Variables"]["ANSWER"])
        loop.after(0.1, lambda: reply(answer))

    engine = WorkflowEngine(loop, invoke, random.Random(1))
    engine.start("recover_node", "round", {"schemaVersion": 1, "incidentId": "node", "run": 1})
    loop.run(60)

    assert functions[:2] == ["PlanRecovery", "CordonNode"]
    assert engine.executions["recover_node", "round"].status is ExecutionState.SUCCEEDED
