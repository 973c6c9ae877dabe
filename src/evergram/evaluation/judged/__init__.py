"""Rankings beside people's judgements: which texts answer which query.

Read in this order: `beir_files` (BEIR's layout of texts, queries and judgements), `judged_metrics`
(nDCG@10 and Recall@100 of each query), `paired_bootstrap` (intervals over queries),
`mean_bound` (the bound that a verdict rests on).

Source: Thakur et al., *BEIR: A heterogeneous benchmark for zero-shot evaluation of information
retrieval models*, NeurIPS 2021 (Datasets and Benchmarks).
"""
