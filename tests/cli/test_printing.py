"""Results on stdout: tables for people, JSON for machines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evergram.cli.printing import dump, print_version, table

Output = pytest.CaptureFixture[str]


def words(output: Output) -> str:
    """Return the printed text on one line."""
    return " ".join(output.readouterr().out.split())


def test_json_has_null_for_what_is_no_number(capsys: Output) -> None:
    dump({"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": -float("inf")}})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": None, "b": [None, 1.5], "c": {"d": None}}
    assert "NaN" not in text


def test_what_a_table_shows_is_data_and_no_markup(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for data in ("a[/b]", "ops [at] shop", "[bold]", "back\\[red]", ":warning: a:x:b", "[link=x]"):
        table(f"Consumers of {data}", ["name", data], [[data, "1"], ["x", data]])
        printed = words(capsys)
        assert f"Consumers of {data} " in printed
        assert f"│ {data} │ 1 │ │ x │ {data} │" in printed
        assert f"┃ {data} ┃" in printed


TRAINING: dict[str, Any] = {
    "history": [{"epoch": 1}],
    "best_epoch": 4,
    "epochs": 6,
    "ended": "patience",
    "penalty": [2.0, 0.12345],
    "l2": 0.1,
    "refit": None,
}


def test_a_trained_version_says_what_it_was_trained_on_and_what_ended_it(capsys: Output) -> None:
    for more, named in (
        ({}, ("training pairs alone", "patience after 6 epochs", "epoch 4", "λ = 2, 0.1235")),
        ({"refit": {"interactions": 12_345, "steps": 1_000}}, ("all 12,345", "1,000 steps")),
        ({"ended": "epochs"}, ("all 6 epochs ran",)),
        ({"pilots": [{}, {}], "l2_measure": "penalty", "table_rate": 0.05}, ("2 pilots", "0.05")),
        ({"popularity": {"exponent": 0.05, "reason": "best"}}, ("count^0.05 (best)",)),
    ):
        metrics = {"model": {"recall@20": 0.5}, "popularity": {"recall@20": None}}
        facts = {"version": 1, "metrics": metrics, "training": TRAINING | more}
        print_version("l", facts)
        printed = words(capsys)
        assert printed.startswith("Version 1 in l")
        assert "│ popularity │ – │" in printed
        assert [part for part in named if part not in printed] == []


def test_an_upgrade_says_how_well_it_is_read_as_each_past_version(capsys: Output) -> None:
    known = {"objects": 20, "l2": 0.25, "relative": 0.125}
    unseen = {"held_out": {"objects": 30, "l2": 0.5, "relative": 0.25}}
    nothing = {"objects": 0, "l2": None, "relative": None}
    ranking = {"past": {"recall@20": 0.5}, "chain": {"recall@20": 0.4}}
    sampled = {"queries": 30, "of": 4000, "errors": {"past": {"recall@20": 0.02}}}
    drift = {"held_out": nothing, "known": known}
    first = {"queries": 30, "ranking": ranking, "drift": drift, "overlap@10": 0.75}
    facts = {
        "version": 2,
        "metrics": {"model": {"recall@20": 0.5}},
        "sampled": {"queries": 50, "of": 60_000, "errors": {"model": {"recall@20": 0.0123}}},
        "overlap": {"common": 50, "fitted": 40, "held_out": 10},
        "compatibility": {
            "0": {**first, "sampled": sampled},
            "1": {"queries": 0, "ranking": {}, "drift": unseen, "overlap@10": None},
        },
    }
    print_version("l", facts)
    printed = words(capsys)
    for part in (
        "│ new, through the chain │ 0.4000 │",
        "on 20 objects that it knew: 0.2500 (12.5% of their length)",
        "Read as version 1: no ranking was measured",
        "on 30 objects that alignment never saw: 0.5000 (25.0% of their length)",
        "overlap@10 with version 1: –",
        "0.5000 ±0.0123",
        "0.5000 ±0.0200",
    ):
        assert part in printed, printed
