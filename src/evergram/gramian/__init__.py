"""The penalty on all pairs, through two Gramians that are estimated as training goes.

`GramianPenalty` is the whole of it as one module, for a training loop of your own; start there, and
with `docs/penalty.md`. It is made of parts that work alone, to be read in this order:

1. `quadratic_penalty` (penalty.py): value and gradient, Gramians given.
2. `GramianEstimator` (estimator.py): what an estimate is, how it is kept, and which batch it may
   contain; `EntityBatch` go in and a `Moment` comes out.
3. The estimators: `ExactGramian`, the oracle; `SampledGramian`, the last batch; `SOGram` and
   `AdaptiveSOGram`, averages; `SAGram` and `GrowingSAGram`, a cache; `Storm`, recursive momentum.
4. `EntityMeasure` (entity_measure.py): from counts to the weight of a drawn row.

Sources: [G1] Krichene et al., Efficient training on very large corpora via Gramian estimation,
2018. [G2] the same, ICLR 2019. What the two define, in one notation: `docs/method.md`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evergram.gramian.adaptive_sogram import AdaptiveSOGram
    from evergram.gramian.estimator import (
        EntityBatch,
        GramianEstimator,
        Moment,
        Population,
        exact_moment,
    )
    from evergram.gramian.exact import ExactGramian
    from evergram.gramian.gramian_penalty.entity_measure import EntityMeasure
    from evergram.gramian.gramian_penalty.gramian_penalty import GramianErrors, GramianPenalty
    from evergram.gramian.gramian_penalty.growing_sagram import GrowingSAGram
    from evergram.gramian.penalty import orthogonal_penalty, quadratic_penalty
    from evergram.gramian.sagram import SAGram
    from evergram.gramian.sampled import SampledGramian
    from evergram.gramian.sogram import SOGram
    from evergram.gramian.storm import Storm

__all__ = [
    "AdaptiveSOGram",
    "EntityBatch",
    "EntityMeasure",
    "ExactGramian",
    "GramianErrors",
    "GramianEstimator",
    "GramianPenalty",
    "GrowingSAGram",
    "Moment",
    "Population",
    "SAGram",
    "SOGram",
    "SampledGramian",
    "Storm",
    "exact_moment",
    "orthogonal_penalty",
    "quadratic_penalty",
]

# Imported when first used: a recipe is checked by `kinds` without torch.
_HOME = {
    "AdaptiveSOGram": "evergram.gramian.adaptive_sogram",
    "EntityBatch": "evergram.gramian.estimator",
    "EntityMeasure": "evergram.gramian.gramian_penalty.entity_measure",
    "ExactGramian": "evergram.gramian.exact",
    "GramianErrors": "evergram.gramian.gramian_penalty.gramian_penalty",
    "GramianEstimator": "evergram.gramian.estimator",
    "GramianPenalty": "evergram.gramian.gramian_penalty.gramian_penalty",
    "GrowingSAGram": "evergram.gramian.gramian_penalty.growing_sagram",
    "Moment": "evergram.gramian.estimator",
    "Population": "evergram.gramian.estimator",
    "SAGram": "evergram.gramian.sagram",
    "SOGram": "evergram.gramian.sogram",
    "SampledGramian": "evergram.gramian.sampled",
    "Storm": "evergram.gramian.storm",
    "exact_moment": "evergram.gramian.estimator",
    "orthogonal_penalty": "evergram.gramian.penalty",
    "quadratic_penalty": "evergram.gramian.penalty",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'evergram.gramian' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
