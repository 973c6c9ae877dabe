"""What limits on shares, temperatures, given and learned, pushes, neighbours, rescaled rows give.

Each setting trains a recipe of `published_splits` for a third of its epochs, on nine tenths of
Gowalla's or Yelp2018's training pairs, and is judged by Recall@20 on the tenth that was held out;
what the test part says is not kept. Results are kept in benchmarks/kept/share-limits, so that
settings can be added.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks import gowalla
from benchmarks.published_splits import ALONE, KEPT, Kept
from benchmarks.tiny import recipes
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.recipe import Recipe

METRIC = "recall@20"
# Rates fall as far as over all epochs.
SHORT = [
    *("split.share=0.1", "training.epochs=20", "training.decay=0.86"),
    *("training.evaluate_every=20", f"metrics=['{METRIC}']"),
]


@dataclass(frozen=True)
class Setting:
    """What is set of [task] and [training].

    Args:
        share: `largest_share`; None is no limit.
        neighbours: `neighbour_share`.
        rescales: `rescale_rows`, at half of the rate.
    """

    temperature: float | Literal["learned"]
    share: float | None
    push: float
    neighbours: float = 0.0
    rescales: bool = False

    def overrides(self) -> list[str]:
        """Return the whole [task], as no key can take another's limit away, and the rate."""
        share = "" if self.share is None else f", largest_share={self.share}"
        task = (
            f"task={{kind='softmax_all', temperature={self.temperature!r}, "
            f"push={self.push}{share}, neighbour_share={self.neighbours}}}"
        )
        rescaled = ["training.rescale_rows=true", "training.table_rate=0.02"]
        return [*ALONE, *(rescaled if self.rescales else []), task]


@dataclass(frozen=True)
class Row:
    """A setting's Recall@20 on the pairs that were held out of `data`'s training part."""

    data: str
    setting: Setting
    recall: float


BESIDE = ((0.0, False), (0.0, True), (0.1, True), (0.2, True), (0.2, False))
SETTINGS: dict[str, Sequence[Setting]] = {
    "yelp2018": [
        *(Setting(0.12, 0.01, 1.1, *beside) for beside in BESIDE),
        *(Setting(0.12, share, 1.1) for share in (0.005, 0.02, None)),
        *(Setting(temperature, 0.01, 1.1) for temperature in (0.1, 0.14)),
        *(Setting(0.12, 0.01, push) for push in (1.0, 1.22)),
        Setting(0.12, 0.005, 1.0),
        Setting("learned", 0.01, 1.1, 0.1, True),
    ],
    "gowalla": [
        *(Setting(0.1, 0.01, 1.22, *beside) for beside in BESIDE),
        *(Setting(0.1, share, 1.22) for share in (0.005, 0.02, None)),
        *(Setting(temperature, 0.01, 1.22) for temperature in (0.08, 0.12)),
        *(Setting(0.1, 0.01, push) for push in (1.1, 1.35)),
        Setting("learned", 0.01, 1.22, 0.2, True),
    ],
}


def share_limits(names: Sequence[str] = tuple(SETTINGS), *, trains: bool = True) -> list[Row]:
    """Return a row a setting, trained where its result is not kept; all if `trains`."""
    rows: list[Row] = []
    kept = Kept(KEPT.parent / "share-limits", trains)
    for name in names:
        if gowalla.available(name):
            gowalla.convert(name=name)
            path = gowalla.ROOT / "recipes" / f"{name}-softmax.toml"
            rows += _rows(name, path, SHORT, SETTINGS[name], kept)
    return rows


def tiny() -> list[Row]:
    """Train two settings on the tiny corpus, each for an instant."""
    made = ["model.dim=4", "training.epochs=1", "training.optimizer=adam"]
    short = ["model.normalize=true", *made, f"metrics=['{METRIC}']"]
    with recipes() as folder:
        settings = [Setting(0.2, 0.5, 1.0), Setting(0.2, None, 1.0)]
        return list(_rows("tiny", folder / "given.toml", short, settings, Kept(folder)))


def _rows(
    name: str, path: Path, short: Sequence[str], settings: Sequence[Setting], kept: Kept
) -> Iterator[Row]:
    for setting in settings:
        recipe = Recipe.load(path, [*short, *setting.overrides()])
        made = kept.get(_about(recipe), lambda r=recipe: _train(r))  # type: ignore[misc]
        if made is not None:
            yield Row(name, setting, made["recall"])


def _train(recipe: Recipe) -> dict[str, Any]:
    split = split_for(recipe, load_corpus(recipe), 0)
    fitted = fit_encoder(recipe, split, 0, RunContext(torch.device("cpu")))
    return {"recall": fitted.history[-1][METRIC], "seconds": fitted.seconds}


def _about(recipe: Recipe) -> str:
    about = recipe.model_dump_json(exclude={"upgrade"})
    return about.replace(str(gowalla.ROOT), "")


def table(rows: Sequence[Row]) -> str:
    """Return the settings, best first within each data set."""
    head = (
        "| data | temperature | largest share | push | neighbours' share | rescaled | Recall@20 |"
    )
    lines = [head, "|---|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (row.data, -row.recall)):
        own = row.setting
        share = "none" if own.share is None else f"{own.share:g}"
        rescaled = "yes" if own.rescales else "no"
        lines.append(
            f"| {row.data} | {own.temperature} | {share} | {own.push:g} | {own.neighbours:g} "
            f"| {rescaled} | {row.recall:.4f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.share_limits")
    parser.add_argument("--data", choices=list(SETTINGS), nargs="+", default=list(SETTINGS))
    parser.add_argument("--kept", action="store_true", help="train nothing")
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    chosen = parser.parse_args()
    shown = table(share_limits(chosen.data, trains=not chosen.kept))
    print(shown)
    if chosen.write:
        from benchmarks.__main__ import put

        put("share-limits", shown)


if __name__ == "__main__":
    main()
