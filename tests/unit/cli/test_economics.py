"""`evenkeel economics`: the formulas on the command line, every output format, and invalid input."""

import contextlib
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenkeel_cli.figure_output import name_in_words
from evenkeel_cli.main import main

Json = dict[str, Any]


class _Pipe(io.StringIO):
    """An output that is not a terminal."""

    encoding = "utf-8"


def run(*words: str) -> tuple[int, str, str]:
    out, err = _Pipe(), _Pipe()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["economics", *words])
    return code, out.getvalue(), err.getvalue()


def json_output(*words: str) -> Json:
    code, out, err = run(*words, "-o", "json")
    assert code == 0, err
    document: Json = json.loads(out)
    return document


def words_of_line(line: str) -> list[str]:
    return line.split()


def test_failure_rate_as_json_is_not_rounded() -> None:
    document = json_output(*words_of_line("rate --failures 4 --node-hours 12540"))

    assert document["failuresPerNodeHour"] == 4 / 12540
    assert document["lowPercentPerNodeHour"] == pytest.approx(0.00869, abs=1e-5)
    assert document["highPercentPerNodeHour"] == pytest.approx(0.08167, abs=1e-5)


@pytest.mark.parametrize("rate", ["0.0005", "0.05%", "5e-4"])
def test_failure_rate_option_accepts_several_units(rate: str) -> None:
    (row,) = json_output("mtbf", "--nodes", "256", "--rate", rate, "--downtime", "280min")["rates"]

    assert row["mtbfHours"] == pytest.approx(7.8125)
    assert (row["smallestEndlessNodes"], row["endsWithSerialRecovery"]) == (429, True)


def test_mtbf_of_counted_failures_has_low_and_high_bounds() -> None:
    rows = json_output(*words_of_line("mtbf --nodes 256 --failures 4 --node-hours 12540"))["rates"]

    assert [row["end"] for row in rows] == ["low", "estimate", "high"]
    assert rows[0]["mtbfHours"] > rows[1]["mtbfHours"] > rows[2]["mtbfHours"]


def test_mtbf_without_failures_is_null_and_the_note_says_why() -> None:
    document = json_output(*words_of_line("mtbf --nodes 256 --failures 0 --node-hours 1000"))

    assert [row["mtbfHours"] is None for row in document["rates"]] == [True, True, False]
    assert "never fails" in document["note"]
    assert "never fails" not in json_output(*words_of_line("mtbf --nodes 256 --rate 1%"))["note"]


def test_interval_note_advises_optimum_at_a_low_ettr() -> None:
    document = json_output(*words_of_line("interval --write 60 --mtbf 30 --restart 600"))

    young = next(choice for choice in document["choices"] if choice["method"] == "young")
    assert young["ettr"] < 0.8 * document["bestEttr"]
    assert young["lostEttrPoints"] < 0.1
    assert "Use the exact optimum." in document["note"]


def test_ettr_command_shows_every_downtime_model() -> None:
    line = "ettr --nodes 256 --rate 0.05% --downtime 16800 --gpu-hours 10,000,000 --usd-per-gpu-hour 5"
    rows = {run["model"]: run for run in json_output(*words_of_line(line))["runs"]}

    assert {model: round(row["days"], 2) for model, row in rows.items()} == {
        "renewal": 324.98,
        "parallel": 369.72,
        "restart": 369.72,
        "serial": 505.26,
    }
    assert rows["renewal"]["lostUsd"] == pytest.approx(121.5278 * 24 * 2048 * 5, rel=1e-5)


def test_compared_downtimes_show_saved_days_and_dollars() -> None:
    line = "ettr --nodes 256 --rate 0.05% --downtime 40min --instead-of 600+14400+1800 --gpu-hours 1e7"
    document = json_output(*words_of_line(line), "--model", "renewal", "--usd-per-gpu-hour", "5")

    (saved,) = document["savings"]
    assert document["insteadOfSeconds"] == 16_800
    assert saved["savedDays"] == pytest.approx(104.1667, abs=1e-4)
    assert saved["savedShare"] == pytest.approx(0.320534, abs=1e-6)
    assert saved["savedUsd"] == pytest.approx(25_600_000)


def test_figures_of_a_run_that_never_ends_are_unknown() -> None:
    line = "ettr --nodes 512 --rate 0.05% --downtime 280min --model serial"
    (row,) = json_output(*words_of_line(line))["runs"]

    assert (row["ends"], row["days"], row["lostUsd"]) == (False, None, None)
    assert "unknown" in run(*words_of_line(line))[1]


def test_interval_command_compares_all_methods() -> None:
    document = json_output(
        *words_of_line("interval --write 60s --restart 2390 --nodes 256 --rate 0.05% --interval 30min")
    )

    assert document["mtbfSeconds"] == pytest.approx(28_125)
    assert [choice["method"] for choice in document["choices"]] == ["exact", "young", "daly", "availability", "present"]
    assert document["bestIntervalSeconds"] == pytest.approx(1797.3, abs=0.1)


def test_spares_command_names_the_cheapest_number_of_spares() -> None:
    line = "spares --nodes 256 --rate 0.05% --lead 940 --wait 903 --detect 89 --resume 1398 --run-cost-usd 5e7"
    document = json_output(*words_of_line(line))

    assert document["bestSpares"] == {"estimate": 1}
    assert [round(row["costUsd"] / 1e6, 2) for row in document["spares"]] == [54.25, 52.9, 53.06, 53.26]


def test_spares_without_a_price_have_unknown_dollars() -> None:
    document = json_output(*words_of_line("spares --nodes 256 --rate 0.05% --lead 940 --max-spares 0"))

    assert document["spares"][0]["costUsd"] is None


def test_copies_shrink_and_repair_shop_commands_print_known_results() -> None:
    copies = json_output(*words_of_line("copies --machines 6 --group 2 --lost 3"))
    shrink = json_output(*words_of_line("shrink --nodes 256 --detect 89 --reconfigure 60 --lead 940"))
    shop = json_output(*words_of_line("repair-shop --nodes 256 --rate 0.05% --repair 4h --repairers 2 --max-spares 1"))

    assert copies["recoverableProbability"] == 0.4
    assert (shrink["downtimeSeconds"], shrink["ettrRenewal"]) == (152.671875, None)
    assert [row["spares"] for row in shop["fleets"]] == [0, 1]


def test_large_counts_are_short_in_tables_and_exact_in_json() -> None:
    line = words_of_line("copies --machines 256 --group 2 --lost 40")

    assert len(json_output(*line)["allSets"]) == 48
    assert "e47" in run(*line)[1]


def test_huge_figures_stay_short_in_tables() -> None:
    _, out, _ = run(*words_of_line("rate --failures 4 --node-hours 1e17"))

    assert max(map(len, out.splitlines())) <= 80
    assert "1e+17" in out


def test_column_title_separates_a_one_letter_word() -> None:
    assert name_in_words("meanWaitingForARepairer") == "mean waiting for a repairer"
    assert name_in_words("mtbfHours") == "mtbf hours"
    assert name_in_words("costUSD") == "cost usd"


def test_number_option_may_have_commas_at_thousands() -> None:
    assert json_output(*words_of_line("rate --failures 4 --node-hours 1,012,540.5"))["nodeHours"] == 1_012_540.5


def test_goodput_is_computed_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "times.yaml"
    file.write_text("elapsedSeconds: 100\nproductiveSeconds: 80\nbuckets: {PROGRAM_STARTUP: 5}\n")
    document = json_output("goodput", "--file", str(file))

    assert (document["goodput"], document["sumSeconds"]) == (0.8, 100)
    assert [(bucket["bucket"], bucket["seconds"]) for bucket in document["buckets"]] == [
        ("PROGRAM_STARTUP", 5),
        ("OTHER", 15),
    ]


def test_rates_by_group_are_computed_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "seen.yaml"
    file.write_text("failures: [{pool: a}, {pool: b, failures: 2}]\nnodeHours: [{pool: a, nodeHours: 500}]\n")
    groups = json_output("rate", "--file", str(file), "--by", "pool")["groups"]

    assert [(group["group"], group["failuresPerNodeHour"]) for group in groups] == [("a", 0.002), ("b", None)]


def test_tables_command_lists_misprints_in_every_output_format() -> None:
    command = ("tables", "--simulated-failures", "2000")
    misprints = json_output(*command)["misprints"]
    rows = list(csv.DictReader(io.StringIO(run(*command, "-o", "csv")[1])))

    assert len(misprints) == 3
    assert misprints[0] == "Table 4, 0.05 % per hour, 512 instances: printed 48, should say 47 (46.66)."
    assert [(row["printed"], row["correct"]) for row in rows if row["isMisprint"] == "true"] == [
        ("48.0", "47.0"),
        ("40.0", "39.0"),
        ("55.0", "54.0"),
    ]
    for form in ("md", "table"):
        assert all(misprint in run(*command, "-o", form)[1] for misprint in misprints)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rate --failures -1 --node-hours 10", "--failures must be a whole number from 0"),
        ("rate --failures 1 --node-hours 0", "--node-hours must be more than 0, not 0."),
        ("rate --failures 1 --node-hours nan", "--node-hours must be a finite number, not nan."),
        ("rate --failures 1", "The failure rate is unknown: give --rate, or --failures with --node-hours."),
        ("rate --failures 1 --node-hours 9 --confidence 95", "--confidence must be above 0 and below 1, not 95."),
        ("mtbf --nodes 0 --rate 0.1", "--nodes must be a whole number from 1"),
        ("mtbf --nodes 4 --rate -0.1", "--rate must not be negative, not -0.1."),
        ("mtbf --nodes 4 --rate abc", "--rate must be a number, not 'abc'."),
        ("mtbf --nodes 4 --rate 0,05%", "--rate must be a number such as 0.5 or 1,000, not '0,05'."),
        ("mtbf --nodes 4 --rate 0,050%", "--rate must be a number such as 0.5 or 1,000, not '0,050'."),
        ("mtbf --nodes 4 --rate 1 --downtime 1,5h", "--downtime must be a number such as 0.5 or 1,000, not '1,5'."),
        ("mtbf --nodes 4 --rate 1% --failures 4 --node-hours 9", "--rate excludes --failures and --node-hours."),
        ("rate --failures 1 --node-hours 1e-308", "--node-hours must be at least 1e-18, not 1e-308."),
        ("mtbf --nodes 10000001 --rate 1%", "--nodes must be a whole number from 1 to 10000000, not 10000001."),
        ("spares --nodes 4 --rate 0 --lead 1e300", "--lead must be at most 1e+18, not"),
        ("rate --failures 1 --node-hours 9 --file x", "--file excludes --failures and --node-hours."),
        ("ettr --nodes 4 --rate 1 --downtime 1h --gpu-hours -1", "--gpu-hours must be more than 0, not -1."),
        ("interval --write 1 --mtbf 9 --nodes 4 --rate 1", "--mtbf excludes --nodes and --rate."),
        ("interval --write 1 --mtbf 9 --interval 0", "--interval must be more than 0, not 0."),
        ("goodput --elapsed 0 --productive 0", "--elapsed must be more than 0, not 0."),
        ("goodput --elapsed 9 --productive -1", "--productive must be at least 0, not -1."),
        ("ettr --nodes 4 --rate 0.1 --downtime 3weeks", "--downtime must be a duration such as 90s, 40min or 4.5h"),
        ("ettr --nodes 4 --rate 0.1 --downtime 1h --model quick", "--model must be one of renewal, parallel"),
        ("interval --write 0 --mtbf 10", "--write must be more than 0, not 0."),
        ("interval --write 1", "The MTBF is unknown: give --mtbf, or --nodes with --rate."),
        ("copies --machines 7 --group 2 --lost 1", "--group must divide the 7 machines, and 2 does not."),
        ("goodput --elapsed 10 --productive 11", "The values of --bucket and the productive time sum to 11 s, 1 s"),
        ("goodput --elapsed 10 --productive 1 --bucket OTHER=-1", "--bucket OTHER must be at least 0, not -1."),
        ("goodput --elapsed 10 --productive 1 --bucket LUNCH=1", "--bucket must name one of TPU_INITIALIZATION"),
        ("shrink --nodes 4 --detect 1 --reconfigure 1 --lead -5", "--lead must not be negative, not -5."),
        ("shrink --nodes 1 --detect 1 --reconfigure 1 --lead 5", "--nodes must be a whole number from 2 to"),
        ("spares --nodes 1.5 --lead 9 --rate 1%", "--nodes must be a whole number, not '1.5'."),
        ("tables --simulated-failures 1", "--simulated-failures must be at least 100, not '1'."),
        (
            "ettr --nodes 4 --rate 1% --downtime 1h --usd-per-gpu-hour -5",
            "--usd-per-gpu-hour must be at least 0, not -5.",
        ),
    ],
)
def test_invalid_economics_input_names_the_option(line: str, message: str) -> None:
    code, out, err = run(*words_of_line(line))

    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("wrong", ["-1", "-0.5", "nan", "inf", "1e400", "abc"])
@pytest.mark.parametrize(
    "line",
    [
        "rate --failures 1 --node-hours 100",
        "mtbf --nodes 4 --rate 1% --downtime 1h",
        "ettr --nodes 4 --rate 1% --downtime 1h --instead-of 2h --gpu-hours 1000 --usd-per-gpu-hour 5",
        "interval --write 1 --mtbf 9 --restart 1 --interval 5",
        "shrink --nodes 4 --detect 1 --reconfigure 1 --lead 5 --rate 1%",
        "spares --nodes 4 --rate 1% --lead 9 --wait 9 --detect 1 --resume 1 --run-cost-usd 10 --max-spares 3",
        "repair-shop --nodes 4 --repair 1h --rate 1% --repairers 2 --max-spares 3",
        "copies --machines 6 --group 2 --lost 3",
        "goodput --elapsed 10 --productive 5",
    ],
)
def test_no_number_option_accepts_impossible_figures(line: str, wrong: str) -> None:
    words = words_of_line(line)
    assert run(*words)[0] == 0

    for place in range(2, len(words), 2):
        code, out, err = run(*words[:place], wrong, *words[place + 1 :])

        assert (code, out) == (2, "")
        assert words[place - 1] in err


@pytest.mark.parametrize(
    "line",
    [
        "mtbf --nodes 4 --rate 1% --downtime=",
        "mtbf --nodes 4 --rate=",
        "rate --failures 1 --node-hours=",
        "ettr --nodes 4 --rate 1% --downtime=",
        "ettr --nodes 4 --rate 1% --downtime 1h --instead-of=",
        "ettr --nodes 4 --rate 1% --downtime 1h --gpu-hours=",
        "ettr --nodes 4 --rate 1% --downtime 1h --failure-free=",
        "ettr --nodes 4 --rate 1% --downtime 1h --usd-per-gpu-hour=",
        "interval --write 1 --mtbf=",
        "interval --write 1 --mtbf 9 --interval=",
        "spares --nodes 4 --rate 1% --lead 9 --wait=",
        "spares --nodes 4 --rate 1% --lead 9 --run-cost-usd=",
        "goodput --productive 1 --elapsed=",
        "forecast --file x --usd-per-gpu-hour=",
    ],
)
def test_empty_option_value_is_an_error(line: str, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("groups: [{name: a, nodes: 4, gpusPerNode: 8, failures: 1, nodeHours: 100}]\n")
    code, out, err = run(*words_of_line(line.replace("--file x", f"--file {fleet}")))

    assert (code, out) == (2, "")
    assert f"{line.rsplit(maxsplit=1)[-1].removesuffix('=')} must be" in err


def test_rates_of_a_file_without_node_hours_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "seen.yaml"
    file.write_text("failures: []\nnodeHours: []\n")

    code, out, err = run("rate", "--file", str(file))

    assert (code, out) == (2, "")
    assert "nodeHours has no node-hours, so every rate is unknown." in err


@pytest.mark.parametrize(
    "line",
    [
        "spares --nodes 256 --failures 5 --node-hours 10000 --lead 940 --run-cost-usd 5e7",
        "ettr --nodes 256 --rate 0.05% --downtime 40min --instead-of 280min --usd-per-gpu-hour 5",
        "interval --write 60 --restart 2390 --mtbf 28125 --interval 1h",
        "repair-shop --nodes 256 --failures 5 --node-hours 10000 --repair 4h --repairers 2",
        "mtbf --nodes 256 --failures 5 --node-hours 10000 --downtime 1h",
        "tables --simulated-failures 1000",
    ],
)
def test_output_in_a_pipe_has_at_most_80_columns(line: str) -> None:
    _, out, _ = run(*words_of_line(line))

    assert [line for line in out.splitlines() if len(line) > 80 and "://" not in line] == []


def test_each_block_of_a_wide_table_repeats_identifying_columns() -> None:
    _, out, _ = run(*words_of_line("spares --nodes 256 --failures 5 --node-hours 10000 --lead 940 --run-cost-usd 5e7"))
    *_, last = out.split("\n\n")

    assert [line.split()[:2] for line in last.splitlines() if line.startswith("low")][:2] == [
        ["low", "0"],
        ["low", "1"],
    ]


def test_economics_output_as_yaml_has_the_figures_of_json() -> None:
    line = words_of_line("shrink --nodes 256 --detect 89 --reconfigure 60 --lead 940")

    assert yaml.safe_load(run(*line, "-o", "yaml")[1]) == json_output(*line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("elapsedSeconds: 100\n", "productiveSeconds is required."),
        ("elapsedSeconds: true\nproductiveSeconds: 1\n", "elapsedSeconds must be a number, not a boolean."),
        ("elapsedSeconds: 9\nproductiveSeconds: 1\nlunch: 1\n", "lunch is not a known field."),
        ("- 1\n", "the document must be an object"),
        ("", "has 0 documents; it must have one."),
    ],
)
def test_invalid_input_file_names_the_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "times.yaml"
    file.write_text(text)
    code, _, err = run("goodput", "--file", str(file))

    assert code == 2
    assert message in err


def test_csv_of_figures_has_no_formula_of_a_spreadsheet(tmp_path: Path) -> None:
    file = tmp_path / "observations.yaml"
    names = ("=HYPERLINK(1)", "@SUM", "-1", "a,b")
    hours = ", ".join(f"{{pool: '{name}', nodeHours: 10}}" for name in names)
    file.write_text(f"failures: []\nnodeHours: [{hours}]\n")

    _, out, _ = run("rate", "--file", str(file), "--by", "pool", "-o", "csv")
    rows = list(csv.DictReader(out.splitlines()))

    assert {row["group"] for row in rows} == {"'=HYPERLINK(1)", "'@SUM", "'-1", "a,b"}
    assert {row["failuresPerNodeHour"] for row in rows} == {"0.0"}


def test_size_that_never_ends_is_absent_not_unknown_without_downtime() -> None:
    document = json_output("mtbf", "--nodes", "8", "--rate", "0.1%", "--downtime", "0")

    assert document["rates"][0]["smallestEndlessNodes"] is None
    assert "A job of any size ends" in document["note"]
