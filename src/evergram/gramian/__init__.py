"""The penalty on all pairs, through two Gramians that are estimated as training goes.

`GramianPenalty` is the whole penalty as one module for your own training loop: start there, and
with `docs/penalty.md`. Its parts also work by themselves; read them in this order:

1. `quadratic_penalty` (penalty.py): value and gradient from one `BatchSide` of queries and one of
   candidates, whose Gramians are known.
2. `GramianEstimator` (estimator.py): the interface of estimates, and the rule on which batch they
   may contain; `EntityBatch` go in and a `Moment` comes out.
3. The estimators: `ExactGramian`, the oracle; `SampledGramian`, the last batch; `SOGram` and
   `AdaptiveSOGram`, averages; `SAGram`, a cache; `Storm`, recursive momentum.
4. `QueryForm` (query_form.py): the objective of one query with the candidates fixed,
   made of `Term`s, and minimised in closed form for the `Interactions` of new queries.
5. `EntityMeasure` (entity_measure.py): from counts to the weight of a drawn row. `contributions`:
   each row's share in the penalty, by which adaptive sampling draws rows.

Sources: [G1] Krichene et al., Efficient training on very large corpora via Gramian estimation,
2018. [G2] the same, ICLR 2019. What the two define, in one notation: `docs/method.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.gramian.estimator import EntityBatch as EntityBatch
    from evergram.gramian.estimator import ExactGramian as ExactGramian
    from evergram.gramian.estimator import GramianEstimator as GramianEstimator
    from evergram.gramian.estimator import SampledGramian as SampledGramian
    from evergram.gramian.gramian_penalty import GramianPenalty as GramianPenalty
    from evergram.gramian.penalty import quadratic_penalty as quadratic_penalty
    from evergram.gramian.query_form import Interactions as Interactions
    from evergram.gramian.query_form import QueryForm as QueryForm
    from evergram.gramian.sagram import SAGram as SAGram
    from evergram.gramian.sogram import SOGram as SOGram
    from evergram.gramian.sogram import Storm as Storm

export_lazily(__name__)
