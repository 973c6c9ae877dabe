"""Results on stdout: tables for people, JSON for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evergram.cli.printing import (
    dump,
    file_written,
    number,
    paragraph,
    print_probes,
    print_version,
    print_warnings,
    table,
)

Output = pytest.CaptureFixture[str]


def words(output: Output) -> str:
    """Return the printed text on one line."""
    return " ".join(output.readouterr().out.split())


def test_json_has_null_for_what_is_no_number(capsys: Output) -> None:
    dump({"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": -float("inf")}})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": None, "b": [None, 1.5], "c": {"d": None}}
    assert "NaN" not in text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (float("nan"), "–"), (0.0, "0.0000"), (1 / 3, "0.3333")]
)
def test_a_number_has_four_places_and_none_is_a_dash(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_written_file_names_the_file_of_its_ids(tmp_path: Path) -> None:
    vectors = tmp_path / "v.npy"
    assert file_written(vectors) == f"{vectors}, without ids"
    (tmp_path / "v.ids.txt").touch()
    assert file_written(vectors) == f"{vectors}, with its ids in {tmp_path / 'v.ids.txt'}"
    assert file_written(tmp_path / "v.parquet") == str(tmp_path / "v.parquet")


def test_a_table_has_words_to_the_left_and_numbers_to_the_right(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table("Methods", ["method", "value"], [["bc", "1"], ["bc-aligner", "1000"]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].rstrip() == "Methods"
    assert "│ bc         │     1 │" in lines
    assert "│ bc-aligner │  1000 │" in lines


@pytest.mark.parametrize(
    "data",
    ["a[/b]", "ops [at] shop", "[bold]", "[/]", "back\\[red]", ":warning: a:x:b", "[link=x]"],
)
def test_what_a_table_shows_is_data_and_no_markup(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, data: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table(f"Consumers of {data}", ["name", data], [[data, "1"], ["x", data]])
    printed = words(capsys)
    assert f"Consumers of {data} " in printed
    assert f"│ {data} │ 1 │" in printed
    assert f"│ x │ {data} │" in printed
    assert f"┃ {data} ┃" in printed


def test_a_paragraph_is_broken_at_spaces(capsys: Output) -> None:
    paragraph("versions/0/a-file-with-hyphens.json " * 5)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.startswith("versions/0/a-file-with-hyphens.json") for line in lines)


TRAINING: dict[str, Any] = {
    "history": [{"epoch": 1}],
    "best_epoch": 4,
    "epochs": 6,
    "ended": "patience",
    "penalty": [2.0, 0.12345],
    "l2": 0.1,
    "refit": None,
}
METRICS: dict[str, Any] = {
    "version": 1,
    "metrics": {"model": {"recall@20": 0.5}, "popularity": {"recall@20": None}},
}


def test_a_version_without_a_model_is_its_metrics_alone(capsys: Output) -> None:
    print_version("l", METRICS, as_json=False)
    printed = words(capsys)
    assert printed.startswith("Version 1 in l")
    assert "│ popularity │ – │" in printed
    assert "Trained" not in printed


def test_a_version_as_json_names_its_lineage(capsys: Output) -> None:
    print_version(Path("l"), METRICS, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"lineage": "l", **METRICS}


def test_a_trained_version_says_what_it_was_trained_on_and_what_ended_it(capsys: Output) -> None:
    print_version("l", {**METRICS, "training": TRAINING}, as_json=False)
    sentence = (
        "Trained on the training pairs alone: ended by training.patience after 6 epochs; epoch 4 "
        "was best on the selection pairs; λ = 2, 0.1235, l2 = 0.1."
    )
    assert words(capsys).endswith(sentence)
    refit = {"interactions": 12_345, "steps": 1_000}
    print_version("l", {**METRICS, "training": TRAINING | {"refit": refit}}, as_json=False)
    assert (
        "Trained on all 12,345 interactions that are not test, for 1,000 steps: ended by "
        "training.patience" in words(capsys)
    )
    print_version("l", {**METRICS, "training": TRAINING | {"ended": "epochs"}}, as_json=False)
    assert "alone: all 6 epochs ran; epoch 4 was best on the selection pairs; λ" in words(capsys)
    piloted = {"pilots": [{}, {}], "l2_measure": "penalty", "table_rate": 0.05}
    print_version("l", {**METRICS, "training": TRAINING | piloted}, as_json=False)
    assert words(capsys).endswith(
        'l2 = 0.1, task.l2_measure = "penalty" and training.table_rate = 0.05, as 2 pilots chose.'
    )
    popularity = {"exponent": 0.05, "reason": "best recall@20 of 9 held-out queries"}
    print_version("l", {**METRICS, "training": TRAINING | {"popularity": popularity}}, False)
    assert words(capsys).endswith(
        "l2 = 0.1; candidates times count^0.05 (best recall@20 of 9 held-out queries)."
    )


def test_an_upgrade_says_how_well_it_is_read_as_each_past_version(capsys: Output) -> None:
    drift = {
        "held_out": {"objects": 0, "l2": None, "relative": None},
        "known": {"objects": 20, "l2": 0.25, "relative": 0.125},
    }
    unseen = {"held_out": {"objects": 30, "l2": 0.5, "relative": 0.25}}
    ranking = {"past": {"recall@20": 0.5}, "chain": {"recall@20": 0.4}}
    compatibility = {
        "0": {"queries": 30, "ranking": ranking, "drift": drift, "overlap@10": 0.75},
        "1": {"queries": 0, "ranking": {}, "drift": unseen, "overlap@10": None},
    }
    overlap = {"common": 50, "fitted": 40, "held_out": 10}
    metrics = {**METRICS, "version": 2, "overlap": overlap, "compatibility": compatibility}
    print_version("l", metrics, as_json=False)
    printed = words(capsys)
    for sentence in (
        "50 objects in common with the version before: 40 that version 2 was aligned on, 10 that "
        "its error was measured on.",
        "Read as version 0 (by the 30 test queries that it knew)",
        "│ new, through the chain │ 0.4000 │",
        "distance to version 0: there are no objects that alignment never saw",
        "mean distance to version 0 on 20 objects that it knew: 0.2500 (12.5% of their length), as "
        "its consumers meet it on their own objects",
        "overlap@10 with version 0: 0.7500",
        "Read as version 1: no ranking was measured, as it knew none of the test queries.",
        "mean distance to version 1 on 30 objects that alignment never saw: 0.5000 (25.0% of their "
        "length), as its consumers meet it on objects that came later",
        "overlap@10 with version 1: –",
    ):
        assert sentence in printed


def test_probes_are_lines_of_a_table(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    probe = {"consumer": "ads", "pinned": "v0", "metric": "auc", "objects": 40, "missing": 2}
    baseline = {"value": 0.75}
    print_probes(
        [
            {**probe, "value": 0.5, "limit": 0.6, "baseline": baseline},
            {**probe, "value": None, "limit": None, "baseline": None},
        ]
    )
    printed = words(capsys)
    assert "│ ads │ v0 │ auc │ 0.5000 │ 0.6000 │ 0.7500 │ 40 │ 2 │" in printed
    assert "│ ads │ v0 │ auc │ – │ – │ – │ 40 │ 2 │" in printed


def test_warnings_name_their_version(capsys: Output) -> None:
    print_warnings({0: [], 1: ["Few objects.", "No figure."]})
    assert capsys.readouterr().out == "Version 1: Few objects.\nVersion 1: No figure.\n"


def test_a_sampled_metric_has_its_error_and_the_samples_size(capsys: Output) -> None:
    sampled = {"queries": 5000, "of": 60_000, "errors": {"model": {"recall@20": 0.0123}}}
    metrics = {"model": {"recall@20": 0.25}, "popularity": {"recall@20": 0.5}}
    reading = {
        "queries": 1000,
        "ranking": {"past": {"recall@20": 0.5}},
        "sampled": {"queries": 1000, "of": 4000, "errors": {"past": {"recall@20": 0.02}}},
        "drift": {},
        "overlap@10": 0.5,
    }
    report = {"version": 1, "metrics": metrics, "sampled": sampled, "compatibility": {"0": reading}}
    print_version("lineage", report, as_json=False)
    text = words(capsys)
    assert "0.2500 ±0.0123" in text
    assert "0.5000 ±" not in text.split("Read as version 0")[0]
    assert "Measured on 5,000 of 60,000 test queries, drawn at random; ± is a standard" in text
    assert "by 1000 of the 4000 test queries that it knew" in text
    assert "0.5000 ±0.0200" in text
    print_version("lineage", {"version": 1, "metrics": metrics}, as_json=False)
    assert "±" not in words(capsys)
