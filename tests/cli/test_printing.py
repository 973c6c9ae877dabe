"""Results on stdout: tables for people, JSON for machines."""

from __future__ import annotations

import json

import pytest

from evergram.cli.app import run
from evergram.cli.printing import show, table

Output = pytest.CaptureFixture[str]


def words(output: Output) -> str:
    """Return the printed text on one line."""
    return " ".join(output.readouterr().out.split())


def test_json_has_null_for_what_is_no_number(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "json", True)
    show({"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": -float("inf")}})
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
