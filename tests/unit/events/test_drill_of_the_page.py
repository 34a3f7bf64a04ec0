"""The drill that docs/deploy.md sends after a first deployment."""

import json
import re
import subprocess
import textwrap
from pathlib import Path

from evenkeel.domain.health.incidents import NodeFact
from tests.unit.events.samples import parse_event, sample_event

PAGE = Path(__file__).resolve().parents[3] / "docs" / "deploy.md"


def test_drill_event_of_the_deployment_page_reports_a_fault(tmp_path: Path) -> None:
    blocks = re.findall(r"^ *```\n(.*?)^ *```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (script,) = (textwrap.dedent(block) for block in blocks if "evenkeel.drill" in block)

    subprocess.run(["bash", "-euc", script.replace("aws events", "true")], cwd=tmp_path, check=True)

    (entry,) = json.loads((tmp_path / "drill.json").read_text(encoding="utf-8"))
    sent = {"source": entry["Source"], "detail-type": entry["DetailType"], "detail": json.loads(entry["Detail"])}
    (fact,) = parse_event(sample_event("drill-hyperpod-node-unhealthy") | sent).facts
    assert isinstance(fact, NodeFact)
    assert (fact.is_drill, fact.instance_id) == (True, "i-0123456789abcdef0")
    assert fact.fault_key == "hp:NvidiaErrorTerminate"
