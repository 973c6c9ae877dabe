"""The benchmark of migrations: the figures that it computes itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.residual_heads import HeadSettings
from tests.support.two_models import by_two_models

from benchmarks import migrations
from evergram.releasing.migration.migration_plan import plan_migration
from evergram.releasing.migration.ways import WaySettings


def test_predicted_bytes_are_those_of_the_directions_that_the_new_model_lacks() -> None:
    pair, _ = by_two_models(0.0, 0.0, old_dim=12, new_dim=20)
    # The new model has all but what the last five old coordinates have alone.
    own = torch.randn(len(pair.old), 5, generator=torch.Generator().manual_seed(3))
    object.__setattr__(pair, "old", torch.cat([pair.new[:, :7], own], dim=1))
    # Of five equal directions, four with 3 bits and one with 2 leave a sixteenth of the square.
    assert migrations.predicted_bytes(pair) == {"predicted": 2, "needed": 2}


def test_the_depth_is_the_largest_that_touches_no_more_than_the_share() -> None:
    texts = torch.eye(20)
    queries = torch.eye(20)[:2] + 0.1 * torch.rand(
        2, 20, generator=torch.Generator().manual_seed(0)
    )
    depth, share = migrations._depth_for(0.3, queries, texts)
    touched = {int(i) for q in queries for i in (texts @ q).argsort(descending=True)[:depth]}
    more = {int(i) for q in queries for i in (texts @ q).argsort(descending=True)[: depth + 1]}
    assert share == len(touched) / 20 <= 0.3 < len(more) / 20


def test_the_summary_counts_the_pairs_that_meet_the_bars() -> None:
    def row(
        stay: float, reindex: float, shallow: tuple[float, float, float], needed: int
    ) -> dict[str, Any]:
        means = {"stay": stay, "reindex": reindex}
        ways = {way: {"ndcg@10": {"mean": mean}} for way, mean in means.items()}
        return {
            "plans": {1.0: {"ways": ways}},
            "cascade_share": 0.995,
            "shallow": dict(zip(("share", "encoded", "own_share"), shallow, strict=True)),
            "sidecar_share": stay,
            "head_share": reindex + 0.495,
            "predicted": {"predicted": 12, "needed": needed},
        }

    rows = [
        row(0.3, 0.5, (0.995, 0.1, 1.0), 10),
        # Even a depth of one encodes too many.
        row(0.3, 0.5, (0.995, 0.12, 0.9), 16),
        row(0.99, 0.49, (1.2, 0.05, 1.0), 12),
    ]
    corpora = {"one": {str(place): row for place, row in enumerate(rows)}}
    *_, one, every = migrations._summary(corpora)
    assert one == "| one | 2 of 3 | 2 of 2 | 1 of 2 | 1 of 2 | 1 of 3 | 2 of 3 | 2 of 3 |"
    assert every == one.replace("| one |", "| all |")


def test_the_new_models_own_hits_are_those_of_no_more_texts_than_a_tenth() -> None:
    pair, judgements = migrations.made_up()
    words = pair.new[:30], torch.arange(30)
    shallow = migrations.compare(pair, judgements, *words, HeadSettings(steps=1))["shallow"]
    hits = (pair.new_queries @ pair.new.T).argsort(dim=1, descending=True)[
        :, : shallow["own_depth"]
    ]
    assert len(set(hits.flatten().tolist())) <= 0.1 * len(pair.texts)
    first = hits == torch.arange(60)[:, None]
    gains = first / torch.log2(torch.arange(hits.shape[1]) + 2.0)
    plan = plan_migration(pair, judgements, WaySettings())
    reindex = plan["ways"]["reindex"]["ndcg@10"]["mean"]
    assert shallow["own_share"] == pytest.approx(float(gains[:, :10].sum(1).mean()) / reindex)


def test_the_tables_of_a_corpus_are_folded() -> None:
    text = migrations.table(migrations.tiny())
    assert text.count("<details") == text.count("</details>") == 1
    assert "| a → b |" in text.split("<details")[1]
