"""The text for the mode that applies."""

import pytest

from evenkeel_cli.state_signs import mode_text

POOL = {"faultClass": "", "pool": "p5", "mode": "recommend"}


@pytest.mark.parametrize(
    ("stack", "in_force", "rules", "expected"),
    [
        ("act", "act", [], "act"),
        ("act", "recommend", [], "recommend (by the policy; the stack allows act)"),
        ("observe", "observe", [], "observe"),
        ("act", "act", [POOL], "act (the policy has 1 narrower rule)"),
        ("recommend", "recommend", [POOL], "recommend"),
    ],
)
def test_mode_text_shows_the_stacks_mode_if_another_applies(
    stack: str, in_force: str, rules: list[object], expected: str
) -> None:
    assert mode_text({"mode": stack, "modeInForce": in_force, "modeRules": rules}) == expected
