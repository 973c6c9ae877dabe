"""What encoding costs: rates from a file, tokens and speed from a sample, texts from a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.text_encoders import HERE, WORDS, sentences, word_vectors
from tests.support.two_models import TEXTS, by_two_models

from evergram.errors import DataError
from evergram.evaluation.score_blocks import best_candidates
from evergram.migration import price
from evergram.migration.cascade import DEPTH
from evergram.migration.migration_plan import (
    Way,
    WaySettings,
    _touched,
    measure_ways,
    plan_migration,
    texts_to_encode,
)
from evergram.migration.price import Rates, cost_of, measure_rates
from evergram.texts.text_encoder import Prompts, TextEncoder


def test_costs_are_those_computed_by_hand() -> None:
    """2 million texts of 150 tokens, at 500 a second: 4000 seconds."""
    rates = {"tokens_per_text": 150.0, "texts_per_second": 500.0}
    assert cost_of(2_000_000, rates) == {"texts": 2_000_000, "tokens": 3e8, "hours": 10 / 9}
    prices = {"price_per_million_tokens": 0.02, "price_per_hour": 3.6}
    assert cost_of(2_000_000, rates | prices)["money"] == pytest.approx(6 + 4)
    assert cost_of(10**6, {"tokens_per_text": 8.0, "price_per_million_tokens": 0.5}) == {
        "texts": 10**6,
        "tokens": 8e6,
        "money": 4.0,
    }
    free = cost_of(7200, {"texts_per_second": 2.0, "price_per_hour": 0.0})
    assert free == {"texts": 7200, "hours": 1.0, "money": 0.0}
    assert cost_of(5, {}) == {"texts": 5}


GIVEN = st.sampled_from(
    [
        {"tokens_per_text": 31.5, "price_per_million_tokens": 0.13},
        {"texts_per_second": 7.0, "price_per_hour": 2.5},
        {"tokens_per_text": 3.0, "texts_per_second": 900.0, "price_per_hour": 1.0},
    ]
)


@given(st.integers(0, 10**9), st.integers(1, 1000), GIVEN)
def test_costs_are_linear_in_the_texts(texts: int, times: int, rates: dict[str, float]) -> None:
    one, many = cost_of(texts, rates), cost_of(texts * times, rates)
    assert many == pytest.approx({key: value * times for key, value in one.items()})


RATES = Rates(texts=30_000, queries=120, tokens_per_text=100.0, price_per_million_tokens=0.02)


def test_a_plan_says_what_each_way_costs_in_the_whole_collection() -> None:
    vectors, judgements = by_two_models(3.0, 0.1)
    report = plan_migration(vectors, judgements, rates=RATES)
    costs = {name: way["cost"] for name, way in report["ways"].items()}
    whole = {"texts": 30_000, "tokens": 3e6, "money": pytest.approx(0.06)}
    nothing, fitted = dict.fromkeys(whole, 0), {"texts": TEXTS, "tokens": 3e4, "money": 6e-4}
    for name in ("sidecar", "pinned", "reindex", "first_6", "first_3", "float16", "int8"):
        assert costs[name] == whole, name
    assert costs["stay"] == costs["naive"] == nothing
    assert costs["bridge"] == pytest.approx(fitted)
    # 200 hits of 30,000 are two of 300; twice as many queries as those of the plan.
    first = best_candidates(vectors.old_queries, vectors.old, 2)
    touched = 2 * 100 * len(set(first.flatten().tolist()))
    assert costs["cascade"]["texts"] == touched
    assert 0 < touched < 30_000
    assert report["rates"] == RATES.model_dump(exclude_none=True)
    assert costs["bridge_cascade"]["texts"] > TEXTS
    plain = plan_migration(vectors, judgements)
    assert plain["rates"] is None
    assert all("cost" not in way for way in plain["ways"].values())
    with pytest.raises(DataError, match="texts of the rates is 299; 300 texts have vectors"):
        plan_migration(vectors, judgements, rates=RATES.model_copy(update={"texts": 299}))


def test_without_sizes_the_rates_are_of_the_plans_texts_and_queries() -> None:
    vectors, judgements = by_two_models(3.0, 0.1)
    report = plan_migration(vectors, judgements, rates=Rates(texts_per_second=10.0))
    assert report["rates"] == {"texts": 300, "queries": 60, "texts_per_second": 10.0}
    for name, way in report["ways"].items():
        assert way["cost"] == {"texts": way["encoded"], "hours": way["encoded"] / 36000}, name


@cache
def measured() -> dict[str, Way]:
    return measure_ways(by_two_models(0.5, 0.2)[0], WaySettings())


@settings(deadline=None)
@given(st.integers(TEXTS, 10**10), st.floats(0.01, 1e6))
def test_a_cascade_costs_between_staying_and_reindexing(texts: int, queries: float) -> None:
    encoded = {n: texts_to_encode(n, w, TEXTS, texts, queries) for n, w in measured().items()}
    assert encoded["stay"] == encoded["naive"] == 0
    assert encoded["bridge"] == TEXTS
    assert encoded["reindex"] == encoded["int8"] == encoded["sidecar"] == texts
    assert 0 <= encoded["cascade"] <= texts
    assert TEXTS <= encoded["bridge_cascade"] <= texts
    for name, way in measured().items():
        assert texts_to_encode(name, way, TEXTS, TEXTS) == way.encoded, name


def test_a_sample_tells_how_many_texts_a_cascade_touches_in_the_collection() -> None:
    """The mean of ten samples is that of the hits in the collection, found as sets."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(30, 16, generator=draw)
    texts = centres[torch.randint(30, (4000,), generator=draw)]
    texts = texts + torch.randn(4000, 16, generator=draw)
    queries = centres[:12] + torch.randn(12, 16, generator=draw)
    order = (queries.double() @ texts.double().T).argsort(dim=1, descending=True)
    touched = set(order[:, :DEPTH].flatten().tolist())
    estimates = []
    for _ in range(10):
        sample = texts[torch.randperm(4000, generator=draw)[:800]]
        first = best_candidates(queries, sample, DEPTH)
        way = Way(first, 0, 0.0, 0.0, touched=_touched(first, 800))
        estimates.append(texts_to_encode("cascade", way, 800, 4000))
    assert np.mean(estimates) == pytest.approx(len(touched), rel=0.06)
    assert len(touched) < 0.8 * 12 * DEPTH


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**32))
def test_touched_texts_are_counted_by_depth(queries: int, depth: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    proposed = np.stack([draw.permutation(12)[:depth] for _ in range(queries)])
    expected = [len(set(proposed[:, :k].flatten())) for k in range(depth + 1)]
    assert _touched(torch.from_numpy(proposed), 12) == expected


class ManualEncoder(TextEncoder):
    """Takes a hundredth of a second per text, on a clock of its own."""

    def __init__(self, tokenizer: Any = None, slowness: float = 1.0) -> None:
        super().__init__("manual:", Prompts(document="word0 "), 8)
        self.tokenizer, self.clock, self.slowness = tokenizer, 0.0, slowness

    def _encode(self, texts: Sequence[str], prompt: str) -> Any:
        self.clock += 0.01 * self.slowness * len(texts)
        return word_vectors([prompt + text for text in texts], 0, 4)


def opened(monkeypatch: pytest.MonkeyPatch, encoder: ManualEncoder) -> None:
    monkeypatch.setattr(price, "open_text_encoder", lambda _: encoder)
    monkeypatch.setattr(time, "perf_counter", lambda: encoder.clock)


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    lines = [f"{number},{text}" for number, text in enumerate(sentences(100))]
    (tmp_path / "sample.csv").write_text("\n".join(["id,text", *lines]))
    return tmp_path / "sample.csv"


@pytest.mark.parametrize(("slowness", "timed"), [(1.0, 100), (100.0, 24)])
def test_speed_and_tokens_are_measured_unless_they_are_given(
    sample: Path, monkeypatch: pytest.MonkeyPatch, slowness: float, timed: int
) -> None:
    """A slow encoder is stopped after 20 seconds."""
    opened(monkeypatch, ManualEncoder(slowness=slowness))
    rates = Rates(sample=str(sample), encoder="manual:")
    known = measure_rates(rates, 100)
    assert known["texts_per_second"] == pytest.approx(100 / slowness)
    assert known["speed_by"] == f"measured on {timed} texts"
    size = sum(len(f"word0 {text}".encode()) for text in sentences(100))
    assert known["tokens_per_text"] == pytest.approx(size / 4 / 100)
    assert known["tokens_by"] == "estimated, 4 bytes a token"
    given = {"tokens_per_text": 7.0, "texts_per_second": 3.0}
    known = measure_rates(rates.model_copy(update=given), 100)
    assert {key: known[key] for key in given} == given
    assert "tokens_by" not in known
    assert "speed_by" not in known


def test_tokens_are_those_of_the_encoders_tokenizer_without_cuts_and_padding(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="word0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    opened(monkeypatch, ManualEncoder(tokenizer))
    known = measure_rates(Rates(sample=str(sample), encoder="manual:"), 100)
    counts = [1 + len(text.split()) for text in sentences(100)]
    assert known["tokens_per_text"] == pytest.approx(math.fsum(counts) / 100)
    assert known["tokens_by"] == "counted in 100 texts"
    assert tokenizer.truncation["max_length"] == 2


def test_the_tokens_of_a_sample_are_estimated_without_an_encoder(sample: Path) -> None:
    known = measure_rates(Rates(sample=str(sample)), 100)
    assert known["tokens_per_text"] == pytest.approx(sum(map(len, sentences(100))) / 400)
    assert "texts_per_second" not in known


def test_a_file_names_a_sample_next_to_it(sample: Path) -> None:
    file = sample.with_name("rates.toml")
    file.write_text(f'sample = "sample.csv"\nencoder = "{HERE}:first"\nprice_per_hour = 2\n')
    rates = Rates.load(file)
    assert rates.sample == str(sample)
    known = measure_rates(rates, 100)
    cost = cost_of(100, known)
    assert cost["money"] == pytest.approx(2 * 100 / known["texts_per_second"] / 3600)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("price_per_million_tokens = 0.02", "needs the key tokens_per_text or sample"),
        ("price_per_hour = 2.0", "needs the key texts_per_second, or encoder and sample"),
        ('price_per_hour = 2.0\nsample = "s.csv"', "needs the key texts_per_second"),
        ('encoder = "wordllama:"', "encoder needs the key sample"),
        ("texts = -5", "texts is -5; it must be greater than 0"),
        ("texts = 1.5", "texts is 1.5; it must be an integer"),
        ("texts = true", "texts is true; it must be an integer"),
        (f"texts = 1{'0' * 30}", "texts is 1000"),
        ("texts_per_second = 0", "texts_per_second is 0; it must be greater than 0"),
        ("texts_per_second = inf", "texts_per_second is inf; it must be a finite number"),
        ("tokens_per_text = nan", "tokens_per_text is nan; it must be a finite number"),
        ("tokens_per_text = '80'", "tokens_per_text is '80'; it must be a number"),
        ("tokens_per_text = 8\nprice_per_million_tokens = -1", "must be at least 0"),
        ("price_per_milion_tokens = 1", "did you mean price_per_million_tokens"),
        ("texts = ", "is not TOML"),
        ("[", "is not TOML"),
        (b"\xff", "is not TOML"),
    ],
)
def test_files_that_say_no_rates_are_refused(
    tmp_path: Path, content: str | bytes, said: str
) -> None:
    file = tmp_path / "rates.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as refused:
        Rates.load(file)
    assert said in str(refused.value)
    assert str(refused.value).startswith(str(file))
    assert "\n" not in str(refused.value)


def test_encoders_and_samples_that_fail_say_so(sample: Path) -> None:
    missing = Rates(sample=str(sample.with_name("gone.csv")))
    with pytest.raises(DataError, match=r"no file .*gone\.csv"):
        measure_rates(missing, 1)
    broken = Rates(sample=str(sample), encoder=f"{HERE}:misshapen")
    with pytest.raises(DataError, match="returned an array of shape"):
        measure_rates(broken, 1)


def test_smaller_indexes_search_what_they_say() -> None:
    """First coordinates beside a sort in float64; fewer bytes beside all, the more the nearer."""
    vectors, _ = by_two_models(0.5, 0.2, new_dim=64, count=900)
    ways = measure_ways(vectors, WaySettings())
    for dims in (32, 16):
        texts, queries = (v[:, :dims].double() for v in (vectors.new, vectors.new_queries))
        order = (queries @ (texts / texts.norm(dim=1, keepdim=True)).T).argsort(1, descending=True)
        assert torch.equal(ways[f"first_{dims}"].ranked[:, :10], order[:, :10])
        assert ways[f"first_{dims}"].bytes_a_text == 4 * dims
    found = {name: agreement(ways[name], ways["reindex"]) for name in ("float16", "int8")}
    assert found["float16"] > 0.995
    assert 0.95 < found["int8"] < found["float16"]
    assert (ways["float16"].bytes_a_text, ways["int8"].bytes_a_text) == (128, 64 + 4)
    declared = measure_ways(replace(vectors, shorter=[24]), WaySettings(similarity="dot"))
    assert [name for name in declared if name.startswith("first")] == ["first_24"]
    huge = replace(vectors, new=vectors.new * 1e6)
    halves = measure_ways(huge, WaySettings(similarity="dot"))["float16"].ranked
    assert len(set(halves[0].tolist())) == 100


def agreement(one: Way, other: Way) -> float:
    pairs = zip(one.ranked[:, :10].tolist(), other.ranked[:, :10].tolist(), strict=True)
    return float(np.mean([len(set(a) & set(b)) / 10 for a, b in pairs]))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_vectors_of_few_dims_have_fewer_smaller_indexes(dim: int) -> None:
    ways = measure_ways(by_two_models(0.5, 0.2, new_dim=dim)[0], WaySettings())
    shorter = {name for name in ways if name.startswith("first")}
    assert shorter == {f"first_{d}" for d in {dim // 2, dim // 4} - {0}}
    assert ways["int8"].bytes_a_text == dim + 4
