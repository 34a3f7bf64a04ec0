"""The engine's program: ministack as it is pinned, with two corrections in the branches of a Parallel state.

Run by the engine's own interpreter, so nothing of this project can be imported here.

* Branches shared one context object. Two that opened a task token in the same few milliseconds got one token for both,
  and one of them then waited for ever (measured: 5 of 300 executions under load). On AWS each branch has a context of
  its own, and sees the variables of the state around it without changing them.
* What happens inside a branch left no trace in the execution's history. On AWS it does, and people read it.
"""

# ruff: noqa: SLF001 - a correction reaches into what it corrects

import copy
import json
from typing import Any

from ministack import app
from ministack.services import stepfunctions

Document = dict[str, Any]


def run_branch(states: Document, start_at: str, branch_input: Any, execution: Document, outer: Document) -> Any:
    """Walk one branch (or one Map item) to its end, as the engine's main loop walks the machine."""
    context = {**outer, "variables": dict(outer.get("variables", {}))}
    name: str | None = start_at
    document = copy.deepcopy(branch_input)
    while name:
        state = states[name]
        kind = state["Type"]
        context["State"] = {"Name": name, "EnteredTime": stepfunctions.now_iso(), "RetryCount": 0}
        _note(execution, f"{kind}StateEntered", "stateEnteredEventDetails", name, input=document)
        if kind == "Fail":
            raise stepfunctions._ExecutionError(*stepfunctions._fail_state_error(state, document, context))
        if kind == "Succeed":
            _note(execution, "SucceedStateExited", "stateExitedEventDetails", name, output=document)
            return document
        step = getattr(stepfunctions, f"_execute_{kind.lower()}")
        if kind in ("Task", "Parallel", "Map"):
            document, following = step(state, document, execution, context)
        else:
            document, following = step(state, document, context)
        _note(execution, f"{kind}StateExited", "stateExitedEventDetails", name, output=document)
        name = following
    return document


def _note(execution: Document, kind: str, details: str, name: str, **document: Any) -> None:
    spelled = {field: json.dumps(value) for field, value in document.items()}
    stepfunctions._add_event(execution, kind, {details: {"name": name, **spelled}})


if __name__ == "__main__":
    stepfunctions._run_sub_machine = run_branch
    app.main()
