"""Comparisons of methods over versions: columns, tables, figures and claims."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from reproduction.bc import methods
from reproduction.bc.claims import SENTENCES
from reproduction.bc.columns import (
    Read,
    ReadEach,
    on_first,
    on_music,
    value,
)
from reproduction.bc.comparison import compare_methods
from reproduction.bc.methods import ALIGNER, FIX, JOINT, NAMES, POST_CLOSED, TINY
from reproduction.comparison.settings import Comparison
from reproduction.results import Result
from tests.support.reproduction_results import printed, result, runs_of

from evergram.training import Progress

TIMES = (0.5, 0.6, 0.7)
Figures = Mapping[str, Mapping[str, float]]


def theirs(corpus: str) -> dict[str, dict[str, float]]:
    """Return [BC] Table 3 by our names; our two methods have BC-Aligner's figures."""
    rows = printed("BC Table 3")[corpus]
    keys = {"intended": "intended", "unintended": "unintended", "total": "sum", "error": "distance"}
    figures = {
        method: {ours: rows[name][key] for ours, key in keys.items()}
        for method, name in NAMES.items()
        if name in rows
    }
    return figures | dict.fromkeys(set(NAMES) - set(figures), figures[ALIGNER])


def comparison_result(
    label: str, figures: Figures, seed: int = 0, *, strengths: tuple[float, ...] = (), **more: Any
) -> Result:
    """Return a result with these figures by method and column; errors grow evenly over time, and
    a sweep has them all at each λ.

    Args:
        more: replaces parts of the comparison.
    """
    methods = {
        method: {
            **columns,
            "error_after_first": columns["error"],
            "over_time": {
                "intended": dict.fromkeys("012", columns["intended"]),
                "unintended": {"2": columns["unintended"]},
                "error": {str(k): k * columns["error"] for k in range(3)},
            },
            "by_task": {"activity": {"2": columns["unintended"]}},
        }
        for method, columns in figures.items()
    }
    model = {"passes": 20, "share_of_passes": 0.04, "share_of_steps": 0.01, "last_gain": 0.0}
    sweep = {method: {f"{w:g}": figures[method] for w in strengths} for method in JOINT}
    measured = {
        "methods": methods,
        "sweep": sweep if strengths else {},
        "trained": {
            name: {} if name == POST_CLOSED else {"1": {**model, "on_plateau": True}}
            for name in methods
        },
        "keep_all": {"intended": 0.1, "unintended": 0.7},
        "times": list(TIMES),
        "lambda": 16.0,
        "protocol": "strict",
        "queries": {"0": 3000, "1": 2500, "2": 4000},
        "known": 0.8,
        "sizes": {"queries": 5000, "candidates": 400, "interactions": 90_000, "keys": {}},
        "tasks": {},
        "left_out": [],
    }
    return result(label, seed, comparison=measured | more)


def test_margins_are_of_the_first_corpus_or_of_musical_instruments() -> None:
    def read(result: Result) -> float:
        return value(result, FIX, "intended")

    grocery, music = theirs("Grocery"), theirs("Musical Instruments")
    for label, margin in [("amazon-musical-instruments", -26.81), ("films", -27.79)]:
        runs = runs_of([comparison_result("a", grocery), comparison_result(label, music)])
        assert on_first(read)(runs) == [-27.79]
        assert on_music(read)(runs) == [margin]


CORPORA = list(printed("BC Table 3"))


def least(read: Read | ReadEach, of: Result) -> float:
    """Return a margin; the smallest of several competitors'."""
    found = read(of)
    return min(found.values()) if isinstance(found, Mapping) else found


def test_the_papers_figures_confirm_its_sentences_but_one() -> None:
    for corpus in CORPORA:
        only = comparison_result(corpus, theirs(corpus))
        own = {key: s for key, s in SENTENCES.items() if s.source.startswith("[BC]")}
        margins = {key: least(sentence.read, only) for key, sentence in own.items()}
        assert margins.pop("error stands for consumers") > -0.2
        assert all(margin > 0 for margin in margins.values()), margins


def changed(method: str, **columns: float) -> Result:
    figures = theirs("Video Games")
    return comparison_result("Video Games", {**figures, method: {**figures[method], **columns}})


def test_one_figure_out_of_order_refutes_a_sentence() -> None:
    cases = [
        ("non-bc breaks", methods.NON_BC, "unintended", 0.41, -1.0),
        ("fix loses", methods.FIX, "intended", -3.0, -1.0),
        ("finetune loses", methods.FINETUNE, "intended", 2.0, -6.0),
        ("finetune breaks", methods.FINETUNE, "unintended", 1.0, -1.0),
        ("post hoc is poor", methods.POST_SINGLE, "unintended", -3.0, -1.0),
        ("joint beats post hoc", methods.POST_SINGLE, "unintended", 0.41, -1.0),
        ("multi is no better post hoc", methods.POST_MULTI, "unintended", -7.25, -0.5),
        ("no-trans costs", methods.NO_TRANS, "intended", -2.35, -1.0),
        ("aligner loses little", methods.ALIGNER, "intended", -5.0, -1.0),
        ("linear costs less", methods.NO_TRANS, "intended", 0.0, -3.98),
        ("single is worse for consumers", methods.JOINT_SINGLE, "unintended", 0.41, -1.0),
        ("multi is closer", methods.JOINT_SINGLE, "error", 0.2, -40.0),
        ("aligner is closest", methods.NO_TRANS, "error", 0.2, -40.0),
        ("aligner has the best sum", methods.NO_TRANS, "total", 0.0, -3.94),
        ("ours is better for consumers", methods.EVERGRAM, "unintended", -1.59, -1.0),
        ("ours is closer", methods.EVERGRAM, "error", 0.35, -25.0),
    ]
    for key, method, column, figure, margin in cases:
        only = changed(method, **{column: figure})
        assert least(SENTENCES[key].read, only) == pytest.approx(margin), key
    best = changed(methods.EVERGRAM, total=5.0, error=0.01)  # ours is no method of theirs
    assert least(SENTENCES["aligner has the best sum"].read, best) > 0
    assert least(SENTENCES["aligner is closest"].read, best) > 0


def test_a_sentence_whose_premise_fails_is_not_tested() -> None:
    """Consumers near chance have nothing to lose."""
    music = "amazon-musical-instruments"
    chance = {"keep_all": {"intended": 0.1, "unintended": 0.55}}
    cases: list[tuple[str, dict[str, Any], str, bool]] = [
        (music, {}, "non-bc breaks", True),
        (music, chance, "non-bc breaks", False),
        (music, chance, "multi is closer", True),
        (music, chance, "fix loses", True),
    ]
    for label, more, key, premise in cases:
        only = comparison_result(label, theirs("Musical Instruments"), **more)
        assert (SENTENCES[key].claim.premise(runs_of([only])) == "") is premise, (label, key)


QUIET = Progress(quiet=True)
METHODS = ["keep-all", "fix-m0", "joint-notrans", "bc-aligner", "evergram"]


SWEPT = Comparison.load(TINY, ["seed=3", f"compare.methods={METHODS}", "compare.lambdas=[1, 16]"])


@pytest.mark.long
def test_every_figure_of_the_paper_is_there(tmp_path: Path) -> None:
    """Of the comparison of one seed with a sweep."""
    measured = compare_methods(SWEPT, QUIET, "cpu", tmp_path)["comparison"]
    assert list(measured["methods"]) == METHODS
    keep = measured["methods"]["keep-all"]
    assert (keep["intended"], keep["unintended"], keep["total"], keep["error"]) == (0, 0, 0, 0)
    aligner = measured["methods"]["bc-aligner"]
    assert aligner["total"] == pytest.approx(aligner["intended"] + aligner["unintended"])
    assert aligner["error"] == pytest.approx(sum(aligner["over_time"]["error"].values()) / 3)
    assert set(aligner["by_task"]["activity"]) == {"2"}
    assert list(measured["queries"]) == ["0", "1", "2"]
    assert min(measured["queries"].values()) > 20
    assert measured["sizes"]["interactions"] == 6000
    rows = measured["sweep"]["bc-aligner"]
    assert rows["16"]["error"] == aligner["error"] != rows["1"]["error"]
    trained = measured["trained"]
    assert list(trained["keep-all"]) == ["0", "1", "2"]
    assert trained["fix-m0"] == {}
    assert set(trained["bc-aligner-lambda-1"]) == {"1", "2"}
    assert trained["bc-aligner"]["1"]["share_of_passes"] == pytest.approx(2 / 500)
