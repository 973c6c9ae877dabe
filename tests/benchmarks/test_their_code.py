"""The tables on [BC]'s own code are those of the runs that are kept."""

from __future__ import annotations

from pathlib import Path

from benchmarks import their_code

COMPARE = Path(__file__).resolve().parents[2] / "docs" / "compare.md"


def test_the_document_shows_what_the_kept_runs_give() -> None:
    text = COMPARE.read_text()
    shown = text.split("<!-- their-code -->\n")[1].split("\n<!-- end their-code -->")[0]
    assert shown == their_code.table(their_code.load())


def test_the_change_is_beside_ours_with_their_values() -> None:
    def run(error: float, norm: float, *over: str) -> dict[str, object]:
        versions = [{}, {"warm": error, "norm": norm}]
        of = {"slice": "8", "seed": 0, "who": "ours", "switches": []}
        return {**of, "over": list(over), "versions": versions}

    runs = [run(2.0, 4.0), run(1.0, 1.0, "model.scale=0.1")]
    assert their_code.table(runs).splitlines()[-2:] == [
        "| ours with their values | 2.000 (0.500) |  |",
        "| `model.scale` is 0.1 | 1.000 (1.000) | -50.0 % (+100.0 %) |",
    ]


def test_but_for_the_scale_the_start_of_w_lowers_the_error_most() -> None:
    """As docs/compare.md has it."""
    errors = {
        (*run["switches"], *run["over"]): run["versions"][1]["warm"]
        for run in their_code.load()
        if (run["slice"], run["seed"], run["who"]) == ("8", 0, "ours") and len(run["switches"]) < 2
    }
    assert min(errors, key=lambda key: errors[key]) == ("model.scale=0.1",)
    del errors[("model.scale=0.1",)]
    assert min(errors, key=lambda key: errors[key]) == ("w",)
