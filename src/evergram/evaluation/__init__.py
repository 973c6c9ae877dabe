"""Metrics for rankings, Gramian estimates, maps between versions, and consumers' models.

Read in this order:

1. `score_blocks`: scores in blocks of bounded memory, and the largest of them. `ranking`:
   Recall@K, NDCG@K and MAP@K over the whole catalogue. `metric_sample`: metrics on a sample of
   queries, with standard errors.
2. `gramian_error`: an estimated Gramian compared with the exact one ([G2] Fig. 2 to 4).
3. `version_distance`: the distance between a past version and a newer one mapped to it.
4. `judged`: rankings of texts compared with human judgements. `probes`: a consumer's model, run by
   `probe_process` in a separate process. `html_page`: the page of `evergram demo`.

Source: [G2] Krichene et al., *Efficient training on very large corpora via Gramian estimation*,
ICLR 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.evaluation.gramian_error import score_histograms as score_histograms
    from evergram.evaluation.probes import load_probe_model as load_probe_model
    from evergram.evaluation.ranking import Relevance as Relevance
    from evergram.evaluation.ranking import rank_metrics as rank_metrics
    from evergram.evaluation.version_distance import as_dim as as_dim
    from evergram.evaluation.version_distance import drift as drift
    from evergram.evaluation.version_distance import overlap as overlap

export_lazily(__name__)
