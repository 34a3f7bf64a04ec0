"""The parts of template.yaml that follow from the workflows and the functions: `tools/workflow_wiring.py`."""

import re

import pytest

from tools import workflow_wiring
from tools.architecture import ROOT
from tools.dashboard import TEMPLATE

TEXT = TEMPLATE.read_text(encoding="utf-8")
THROTTLES_OF_CHECK_NODE = (
    "        - {Id: checkNode, ReturnData: false, MetricStat: {Stat: Sum, Period: 300, Metric: {Namespace: AWS/Lambda,"
    "\n           MetricName: Throttles, Dimensions: [{Name: FunctionName, Value: !Ref CheckNode}]}}}"
)


@pytest.mark.parametrize(
    "line",
    [
        "        CheckNodeArn: !Ref CheckNode.Version",
        '                  - !Sub "${CheckNode.Arn}:*"',
        '        - !Sub "check_node=${CheckNodeRole.Arn}"',
        THROTTLES_OF_CHECK_NODE,
    ],
)
def test_missing_line_of_a_function_is_written(line: str) -> None:
    assert TEXT.count(f"{line}\n") == 1

    assert workflow_wiring.with_wiring(TEXT.replace(f"{line}\n", "")) == TEXT


def test_step_without_own_stub_is_answered_in_baseline() -> None:
    baseline = (ROOT / "bench" / "yardsticks" / "template.yaml").read_text(encoding="utf-8")
    line = "        CheckNodeArn: !GetAtt AnswerRest.Arn\n"
    assert baseline.count(line) == 1

    assert workflow_wiring.with_stubs(baseline.replace(line, "")) == baseline


def test_workflow_calls_exactly_the_functions_that_its_states_name() -> None:
    assert workflow_wiring.functions_of("BurstCapacityMachine") == ("OpenWait", "RentCapacity")


def test_only_functions_that_find_clusters_get_access_entries() -> None:
    names = workflow_wiring.functions_with_kubernetes()

    assert names["CheckNode"] == "CheckNodeRole"
    assert "MarkRunning" not in names


def test_template_without_a_place_is_refused() -> None:
    text = re.sub(r"        Partition: !Ref AWS::Partition\n", "", TEXT)

    with pytest.raises(ValueError, match=r"needs 3 places .* it has 0"):
        workflow_wiring.with_wiring(text)
