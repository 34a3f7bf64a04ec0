"""The prose checker reports long and retired wording, and accepts plain sentences."""

import pytest

from tools import prose

LONG = "The job " + "waits and " * 13 + "starts."


@pytest.mark.parametrize(
    ("path", "source", "rules"),
    [
        ("a.md", "# Title\n\nThe node is cordoned. The job resumes on a spare.\n", []),
        ("a.md", LONG, ["more than 25 words"]),
        ("a.md", "Who waits for quota cannot use free nodes.", ["name the subject"]),
        ("a.md", "| promise | why |\n|---|---|\n| a hurt job comes first | it lost its node |\n", ["retired: hurt"]),
        ("a.py", 'OPTION, KEY = "loan", "ROOM"', ["retired: loan", "retired: room"]),
        ("a.py", 'def f(writer):\n    return f"{writer}-foreign"\n', ["retired: foreign"]),
        ("a.md", "Large free pools stay large, and the team is told.", []),
        ("a.md", "```\nwhoever types this is an example\n```\n", []),
        ("a.md", "Is it who you think? `whoever` is code.", []),
        ("a.md", "[test_whoever] proves it.\n\n[test_whoever]: a/b.py\n", []),
        ("a.py", '"""Return what nobody else may have, whoever asks."""\n', ["retired: nobody"]),
        ("a.py", "# Somebody else was first here.\nx = 1\n", ["retired: somebody"]),
        ("a.py", 'def f(n):\n    return f"{n} jobs that nobody may stop"\n', ["retired: nobody"]),
        (
            "a.py",
            f'"""Draw it.\n\n    node ── whoever reads this sees a diagram\n\n{LONG}\n"""\n',
            ["more than 25 words"],
        ),
        ("a.md", "Evenkeel gives the rented nodes back late.", ["retired: gives back"]),
        ("a.py", '"""Of the interrupted attempt; null if unknown."""\n', ["name the subject"]),
        ("a.md", "A refusal of one node leaves all others.", ["name the subject"]),
        ("a.md", "The fields are those of the policy.", ["name the subject"]),
        ("a.md", "The job goes on with one node fewer.", ["retired: goes on"]),
        ("a.md", "The first incident owns the loss, and the other incidents share it.", []),
        ("a.yaml", "A:\n  # Whoever rents is a reader.\n  Key: whoever\n", ["retired: whoever"]),
        (
            "a.yaml",
            "AlarmDescription: >-\n  The nodes cost money,\n  and nobody pays.\nOther: 1\n",
            ["retired: nobody"],
        ),
        ("a.js", '// Nobody has signed in yet.\nconst url = "https://nobody";\n', ["retired: nobody"]),
        ("a.csv", "key,note\nxid:8,nobody may repair this node\n", ["retired: nobody"]),
        ("tests/a.py", '"""Nobody repairs the node."""\nNAME = "nobody repairs this node"\n', ["retired: nobody"]),
        ("a.asl.json", '{\n "Comment": "Whoever is first answers the wait."\n}', ["retired: whoever"]),
    ],
)
def test_prose_check_reports_each_broken_rule_of_a_sentence(path: str, source: str, rules: list[str]) -> None:
    assert [finding.rule for finding in prose.find_problems(path, source)] == rules


def test_page_with_mostly_passive_sentences_is_reported() -> None:
    page = "\n\n".join(["The node is cordoned by the service."] * 10)

    assert [finding.rule for finding in prose.find_problems("a.md", page)] == ["passive in 10 of 10 sentences"]
