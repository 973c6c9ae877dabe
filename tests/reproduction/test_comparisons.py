"""Comparisons of methods over versions: columns, tables, figures and claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reproduction.bc import basis, claims, figure3, figure5, methods
from reproduction.bc.columns import (
    on_first,
    on_music,
    value,
)
from reproduction.bc.comparison import closed_form_distances, compare_methods
from reproduction.bc.methods import FIX, JOINT, NAMES, NO_TRANS, TINY
from reproduction.bc.table3 import SENTENCES
from reproduction.experiment import Runs
from reproduction.results import Result
from tests.support.reproduced_comparisons import comparison_result, theirs
from tests.support.reproduction_results import runs_of

from evergram import Lineage, Recipe, load_corpus
from evergram.errors import TrainingError
from evergram.releasing.comparison import compare as compare_module
from evergram.training import Progress


def test_margins_are_of_the_first_corpus_or_of_musical_instruments() -> None:
    def read(result: Result) -> float:
        return value(result, FIX, "intended")

    grocery, music = theirs("Grocery"), theirs("Musical Instruments")
    for label, margin in [("amazon-musical-instruments", -26.81), ("films", -27.79)]:
        runs = runs_of([comparison_result("a", grocery), comparison_result(label, music)])
        assert on_first(read)(runs) == [-27.79]
        assert on_music(read)(runs) == [margin]


CORPORA = list(methods.PAPER)


def test_the_papers_figures_confirm_its_sentences_but_one() -> None:
    for corpus in CORPORA:
        only = comparison_result(corpus, theirs(corpus))
        margins = {s.read: s.read(only) for s in SENTENCES if s.source.startswith("[BC]")}
        assert margins.pop(claims.error_stands_for_consumers) > -0.2
        assert all(margin > 0 for margin in margins.values()), margins


def changed(method: str, **columns: float) -> Result:
    figures = theirs("Video Games")
    return comparison_result("Video Games", {**figures, method: {**figures[method], **columns}})


def test_one_figure_out_of_order_refutes_a_sentence() -> None:
    for read, method, column, figure, margin in [
        (claims.non_bc_breaks, methods.NON_BC, "unintended", 0.41, -1.0),
        (claims.fix_is_worst, methods.FIX, "intended", -5.0, -5.61),
        (claims.finetune_loses, methods.FINETUNE, "intended", 2.0, -2.0),
        (claims.finetune_breaks, methods.FINETUNE, "unintended", 1.0, -1.0),
        (claims.joint_beats_posthoc, methods.POST_SINGLE, "unintended", 0.41, -1.0),
        (claims.multi_is_no_better_posthoc, methods.POST_MULTI, "unintended", -7.25, -1.0),
        (claims.no_trans_costs, methods.NO_TRANS, "intended", 1.0, -1.0),
        (claims.linear_costs_less, methods.NO_TRANS, "intended", 0.0, -3.98),
        (claims.single_is_worse_for_consumers, methods.JOINT_SINGLE, "unintended", 0.41, -1.0),
        (claims.multi_is_closer, methods.JOINT_SINGLE, "error", 0.2, -40.0),
        (claims.aligner_is_closest, methods.NO_TRANS, "error", 0.2, -40.0),
        (claims.aligner_has_the_best_sum, methods.NO_TRANS, "total", 0.0, -3.94),
        (claims.ours_has_the_better_sum, methods.EVERGRAM, "total", -4.94, -1.0),
        (claims.ours_is_better_for_consumers, methods.EVERGRAM, "unintended", -1.59, -1.0),
        (claims.ours_is_closer, methods.EVERGRAM, "error", 0.35, -25.0),
    ]:
        assert read(changed(method, **{column: figure})) == pytest.approx(margin), read
    best = changed(methods.EVERGRAM, total=5.0, error=0.01)  # ours is no method of theirs
    assert claims.aligner_has_the_best_sum(best) > 0
    assert claims.aligner_is_closest(best) > 0


def test_the_error_stands_for_consumers_if_both_rank_alike() -> None:
    figures = theirs("Video Games")
    alike = {m: {**f, "error": -f["unintended"]} for m, f in figures.items()}
    assert claims.error_stands_for_consumers(comparison_result("a", alike)) == pytest.approx(0.2)
    against = {m: {**f, "error": f["unintended"]} for m, f in figures.items()}
    assert claims.error_stands_for_consumers(comparison_result("a", against)) == pytest.approx(-1.8)


def grocery_runs(corpus: str, seeds: int = 1, **more: Any) -> Runs:
    """Return runs in which (1) of all but Keep-All is a point higher with each seed."""
    figures = theirs("Grocery")
    results = []
    for seed in range(seeds):
        own = {
            method: {**f, "intended": f["intended"] + seed * (method != methods.KEEP_ALL)}
            for method, f in figures.items()
        }
        results.append(comparison_result(corpus, own, seed, **more))
    return runs_of(results)


def test_the_basis_says_queries_budget_plateaus_and_deviation() -> None:
    table = basis.table(grocery_runs("films", 3))
    cells = dict(zip(table.header, *table.rows, strict=True))
    expected = {
        "seeds": "3",
        "users, items, interactions": "5,000, 400, 90,000",
        "test queries of a version": "2,500 to 4,000",
        "passes, of theirs": "20, 4 %",
        "steps, of theirs": "1 %",
        "models that end on a plateau": "30 of 30",  # ten of eleven runs train a model
    }
    assert expected.items() <= cells.items()
    assert cells["largest deviation of (1) over seeds"].startswith("1.00 points")


FIGURES = theirs("Musical Instruments")
STRENGTHS = (1.0, 16.0, 32.0)


def runs(**more: Any) -> Runs:
    return runs_of(
        [comparison_result("a", FIGURES, seed, strengths=STRENGTHS, **more) for seed in range(3)]
    )


def test_figure_3_has_three_methods_and_ours_for_each_metric() -> None:
    panels = figure3.panels(runs())
    assert [panel.vertical for panel in panels] == list(figure3.VERTICAL.values())
    for panel in panels:
        assert [line.label for line in panel.lines] == [NAMES[m] for m in JOINT]
    intended, unintended, _ = panels
    assert intended.lines[0].x == [0.5, 0.6, 0.7]
    assert unintended.lines[0].x == [0.7]  # tested from version 2 on
    assert unintended.lines[0].values == [(-0.8,)] * 3
    tables = figure3.tables(runs())
    assert tables[1].rows[0] == ["a", "Joint-NoTrans", "", "", "-0.80 ± 0.00"]


def test_figure_5_has_theirs_at_16_where_scales_are_alike() -> None:
    intended, _, error = figure5.panels(runs())
    assert intended.lines[0].x == [1.0, 16.0, 32.0]
    dashed = [line for line in intended.lines if line.dashed]
    assert [(line.label, list(line.x), line.values) for line in dashed][-1] == (
        "BC-Aligner, theirs", [16], [[-2.96]],
    )  # fmt: skip
    assert not any(line.dashed for line in error.lines)
    table = figure5.tables(runs())[0]
    assert list(table.header) == ["", "", "λ = 1", "λ = 16", "λ = 32"]
    assert len(table.rows) == 4 * len(JOINT)


def sweep(**by_column: tuple[float, float]) -> Result:
    """A result in which every method has these figures at λ = 1 and at 32."""
    only = comparison_result("a", FIGURES, strengths=(1.0, 32.0))
    for rows in only.series["comparison"]["sweep"].values():
        for place, weight in enumerate(("1", "32")):
            rows[weight] = {**rows[weight], **{c: v[place] for c, v in by_column.items()}}
    return only


def test_the_method_that_changes_least_decides() -> None:
    only = sweep(intended=(-1.0, -3.0), unintended=(-5.0, -1.0), error=(0.4, 0.1))
    assert figure5.large_costs(only) == pytest.approx(2)
    assert figure5.large_helps_consumers(only) == pytest.approx(4)
    assert figure5.large_is_closer(only) == pytest.approx(75)
    only.series["comparison"]["sweep"][NO_TRANS]["32"].update(intended=0.0, unintended=-6.0)
    assert figure5.large_costs(only) == pytest.approx(-1)
    assert figure5.large_helps_consumers(only) == pytest.approx(-1)
    only.series["comparison"]["sweep"]["evergram"]["32"].update(error=9.0)
    assert figure5.large_is_closer(only) == pytest.approx(75)  # ours is no method of theirs


def test_ours_is_compared_at_each_strength() -> None:
    only = sweep(total=(-2.0, -3.0), unintended=(-4.0, -1.0))
    assert figure5.ours_has_the_better_sum(only) == 0
    rows = only.series["comparison"]["sweep"]["evergram"]
    rows["1"].update(total=-1.0, unintended=-3.0)
    rows["32"].update(total=-7.0, unintended=-0.5)
    assert figure5.ours_has_the_better_sum(only) == pytest.approx((1 - 4) / 2)
    assert figure5.ours_is_better_for_consumers(only) == pytest.approx((1 + 0.5) / 2)


QUIET = Progress(quiet=True)
METHODS = ["keep-all", "fix-m0", "joint-notrans", "bc-aligner", "evergram"]


def recipe(*more: str, seed: int = 3) -> Recipe:
    return Recipe.load(TINY, [f"seed={seed}", f"compare.methods={METHODS}", *more])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The comparison of one seed with a sweep, and its folder."""
    folder = tmp_path_factory.mktemp("comparison")
    swept = recipe("compare.lambdas=[1, 16]")
    return compare_methods(swept, QUIET, "cpu", folder)["comparison"], folder


@pytest.mark.long
def test_every_figure_of_the_paper_is_there(made: tuple[dict[str, Any], Path]) -> None:
    measured, folder = made
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
    assert measured["closed_forms"] == {"2": pytest.approx(0, abs=1e-9)}
    lineage = Lineage.open(folder / "comparison" / "seed-3" / "keep-all")
    again = closed_form_distances(recipe(), load_corpus(recipe()), lineage)
    assert again == measured["closed_forms"]


@pytest.mark.long
def test_an_interrupted_comparison_goes_on_in_its_folder(
    made: tuple[dict[str, Any], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count = compare_module.run_version, [0]

    def interrupted(*rest: Any) -> Any:
        count[0] += 1
        if count[0] == 4:
            raise TrainingError("killed")
        return real(*rest)

    swept = recipe("compare.lambdas=[1, 16]")
    monkeypatch.setattr(compare_module, "run_version", interrupted)
    with pytest.raises(TrainingError, match="killed"):
        compare_methods(swept, QUIET, "cpu", tmp_path)
    again = compare_methods(swept, QUIET, "cpu", tmp_path)["comparison"]
    # Two versions of each run, and the one that was killed.
    assert count[0] == 2 * len(again["trained"]) + 1
    assert again == made[0]
