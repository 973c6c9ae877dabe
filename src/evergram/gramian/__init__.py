"""The penalty on all pairs, computed from two Gramians that are estimated during training.

`GramianPenalty` is the whole penalty as a module for your own training loop: start there, and with
`docs/penalty.md`. You can also use its parts; read them in this order:

1. `quadratic_penalty` (penalty.py): value and gradient from a `BatchSide` of queries and one of
   candidates, given their Gramians.
2. `GramianEstimator` (estimator.py): the interface of estimators, and the rule about which batches
   an estimate may contain. The input is an `EntityBatch`, the output a `Moment`.
3. The estimators: `ExactGramian`; `SampledGramian`, the last batch; `SOGram` and `AdaptiveSOGram`,
   moving averages; `SAGram`, a cache.
4. `QueryForm` (query_form.py): the objective of one query with fixed candidates, a sum of `Term`s,
   minimised in closed form for the `Interactions` of new queries.
5. `EntityMeasure` (entity_measure.py): weights of drawn rows from counts. `contributions`: each
   row's share of the penalty, for adaptive sampling.

Sources: [G1] Krichene et al., Efficient training on very large corpora via Gramian estimation,
2018. [G2] the same, ICLR 2019. `docs/method.md` presents both in one notation.
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

export_lazily(__name__)
