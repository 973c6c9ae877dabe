"""Tasks and classifiers of consumers."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
import torch
from reproduction.comparison.consumer_classifiers import (
    ConsumerClassifiers,
    ConsumerInputs,
    fit_consumers,
)
from reproduction.comparison.consumer_tasks import (
    ConsumerTask,
    Examples,
    _all_tasks,
    _Line,
    consumer_tasks,
)
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.split import HeldOut, time_split
from evergram.data.synthetic import generate


def corpus_of(rows: list[tuple[str, str, float]], *, values: bool = True) -> Corpus:
    columns = {
        "query": [r[0] for r in rows],
        "candidate": [r[1] for r in rows],
        "time": list(range(len(rows))),
    }
    if values:
        columns["value"] = [r[2] for r in rows]
    return Corpus.of(pa.table(columns))


# t_0 = 4, t_1 = 6, t_2 = 8 and the end at 12 of 12 interactions.
ROWS = [
    ("a", "x", 5.0),
    ("b", "x", 2.0),
    ("a", "y", 4.0),
    ("b", "y", 4.0),
    # (t_0, t_1]
    ("a", "x", 4.0),
    ("c", "y", 1.0),
    # (t_1, t_2]
    ("b", "z", 3.5),
    ("c", "x", 4.5),
    # (t_2, end]
    ("a", "y", 2.0),
    ("c", "z", 4.0),
    ("d", "w", 5.0),
    ("b", "x", 5.0),
]
ENDS = [4, 6, 8, 12]


def line_of(corpus: Corpus, ends: list[int], minimum: int = 2) -> _Line:
    # Version k's rows are those of what it has seen, and no more.
    training = [corpus.restrict(torch.arange(n)) for n in ends[:-1]]
    return _Line(corpus, ends, training, minimum)


@pytest.fixture
def tasks() -> dict[str, ConsumerTask]:
    return {task.name: task for task in _all_tasks(line_of(corpus_of(ROWS), ENDS), 2)}


def labels(examples: Examples) -> dict[int, bool]:
    (rows,) = examples.rows.values()
    return dict(zip(rows.tolist(), examples.label.tolist(), strict=True))


def test_activity_by_hand(tasks: dict[str, ConsumerTask]) -> None:
    task = tasks["activity"]
    # Rows: a 0, b 1, c 2, d 3. In (t_0, t_1] a and c are active, and c is not of V_0.
    assert (task.training.version, labels(task.training)) == (0, {0: True, 1: False})
    # V_1 has c; in (t_1, t_2] b and c are active.
    assert task.validation.version == 1
    assert labels(task.validation) == {0: False, 1: True, 2: True}
    # In the last interval a, b and c; d is new.
    assert {k: labels(e) for k, e in task.tests.items()} == {2: {0: True, 1: True, 2: True}}
    assert tuple(task.training.rows) == ("query",)


def test_positive_activity_by_hand(tasks: dict[str, ConsumerTask]) -> None:
    task = tasks["positive-activity"]
    assert labels(task.training) == {0: True, 1: False}
    # b's 3.5 is not positive, c's 4.5 is.
    assert labels(task.validation) == {0: False, 1: False, 2: True}
    # a gives 2, b 5 and c 4.
    assert {k: labels(e) for k, e in task.tests.items()} == {2: {0: False, 1: True, 2: True}}


def test_mean_rating_by_hand(tasks: dict[str, ConsumerTask]) -> None:
    task = tasks["mean-rating"]
    # At t_0: x (row 0) has 5, 2: mean 3.5; y (row 1) has 4, 4: mean 4; the median is 3.75.
    assert (task.training.version, labels(task.training)) == (0, {0: False, 1: True})
    # The same two at t_0, ratings until t_1: x 5, 2, 4: 3.67; y 4, 4, 1: 3.
    assert (task.validation.version, labels(task.validation)) == (0, {0: False, 1: False})
    # Until t_2: x 5, 2, 4, 4.5: 3.875. z has one rating there and is too young.
    assert labels(task.tests[1]) == {0: True, 1: False}
    # Until the end: x 5, 2, 4, 4.5, 5: 4.1; y 4, 4, 1, 2: 2.75; z still had but one at t_2.
    assert labels(task.tests[2]) == {0: True, 1: False}


def test_deviation_of_ratings_by_hand(tasks: dict[str, ConsumerTask]) -> None:
    task = tasks["rating-deviation"]
    # x 5, 2: 2.1; y 4, 4: 0.
    assert labels(task.training) == {0: True, 1: False}
    # Until t_1: x 1.5; y 4, 4, 1: 1.7.
    assert labels(task.validation) == {0: True, 1: True}
    # Until the end: x 1.2; y 4, 4, 1, 2: 1.5.
    assert labels(task.tests[2]) == {0: True, 1: True}


def test_pair_rating_by_hand(tasks: dict[str, ConsumerTask]) -> None:
    task = tasks["pair-rating"]
    assert tuple(task.training.rows) == ("query", "candidate")
    assert task.training.rows["query"].tolist() == [0, 1, 0, 1]
    assert task.training.rows["candidate"].tolist() == [0, 0, 1, 1]
    assert task.training.label.tolist() == [True, False, True, True]
    # Of (t_0, t_1], c is new: one pair cannot be read, and is counted.
    assert (task.validation.version, task.validation.absent) == (0, 1)
    assert task.validation.rows["query"].tolist() == [0]
    assert task.validation.label.tolist() == [True]
    # (t_1, t_2]: z is new at t_1, so (c, x) is left.
    assert (task.tests[1].version, task.tests[1].absent) == (1, 1)
    assert task.tests[1].rows["query"].tolist() == [2]
    # (t_2, end]: (a, y) 2, (c, z) 4 and (b, x) 5 are left, (d, w) is not.
    assert task.tests[2].label.tolist() == [False, True, True]


def test_only_objects_of_version_0_by_hand() -> None:
    line = line_of(corpus_of(ROWS), ENDS)
    # c is new at t_1, and z at t_2; d and w are never of a version.
    assert line.early(1)["query"].tolist() == [True, True, False]
    assert line.early(2)["query"].tolist() == [True, True, False]
    assert line.early(2)["candidate"].tolist() == [True, True, False]
    tests = {task.name: task.tests[2].among(line.early(2)) for task in _all_tasks(line, 2)}
    assert labels(tests["activity"]) == {0: True, 1: True}
    # (a, y) 2 and (b, x) 5 are left of the last interval; (c, z) and (d, w) are not.
    assert tests["pair-rating"].label.tolist() == [False, True]
    assert tests["pair-rating"].absent == 2


def test_tasks_on_a_growing_corpus_and_a_limit() -> None:
    corpus = generate(queries=200, candidates=100, interactions=8000).corpus
    times = [0.5, 0.6, 0.7, 0.8]
    training = [
        time_split(corpus, share=a, until=b, held_out=HeldOut("test")).training
        for a, b in pairwise(times)
    ]
    judged, left_out = consumer_tasks(corpus, times, training)
    # These ratings never deviate by 1.
    assert "rating-deviation is left out: its 65 training examples" in " ".join(left_out)
    assert [list(task.tests) for task in judged] == [[2], [2], [1, 2], [1, 2]]
    pair = judged[-1]
    # The rows are those of the version's own corpus: the same external ids as in the whole.
    at = pair.tests[2]
    assert at.version == 2
    ids = training[2].queries.vocabulary.keys.take(pa.array(at.rows["query"].numpy()))
    mine = corpus.column("query")[round(0.7 * 8000) : round(0.8 * 8000)]
    whole = corpus.queries.vocabulary.keys.take(pa.array(mine.numpy()))
    if not at.absent:
        assert ids.equals(whole)
    few, _ = consumer_tasks(corpus, times, training, limit=50)
    assert {len(task.training) for task in few} == {50}
    again, _ = consumer_tasks(corpus, times, training, limit=50)
    assert torch.equal(few[0].training.rows["query"], again[0].training.rows["query"])


def planted(size: int = 500) -> tuple[Tensor, Tensor]:
    embeddings = torch.randn(size, 6, generator=torch.Generator().manual_seed(0))
    return embeddings, embeddings[:, 0] + embeddings[:, 1] > 0


def parts() -> tuple[tuple[ConsumerInputs, Tensor], tuple[ConsumerInputs, Tensor]]:
    x, y = planted()
    return (ConsumerInputs.of(x[:300]), y[:300]), (ConsumerInputs.of(x[300:400]), y[300:400])


def test_one_learns_without_the_global_random_state() -> None:
    x, y = planted()
    before = torch.random.get_rng_state()
    first, reached = fit_consumers(*parts(), seeds=[1])
    second, _ = fit_consumers(*parts(), seeds=[1])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.score(ConsumerInputs.of(x)), second.score(ConsumerInputs.of(x)))
    assert first.auc(ConsumerInputs.of(x[400:]), y[400:])[0] > 0.95
    assert reached == first.auc(*parts()[1])


def test_the_batched_products_are_those_of_an_mlp() -> None:
    x = planted(10)[0]
    consumers = ConsumerClassifiers(6, 5, [0.0, 0.0], [0, 1])
    consumers.mean, consumers.scale = x.mean(0), x.std(0, correction=0)
    for m in range(2):
        hidden = ((x - x.mean(0)) / x.std(0, correction=0)) @ consumers.first[m]
        hidden = (hidden + consumers.first_bias[m]).relu()
        expected = (hidden @ consumers.second[m] + consumers.second_bias[m]).squeeze(-1)
        torch.testing.assert_close(consumers.score(ConsumerInputs.of(x))[m], expected)
