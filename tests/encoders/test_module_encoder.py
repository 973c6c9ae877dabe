"""The user's own modules as an encoder: their ids, their tensors, and the modules refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from evergram.data.corpus import Corpus
from evergram.encoders.module_encoder import (
    EncoderModules,
    ModuleEncoder,
    check_vectors,
    outputs_of,
    restore_module_encoder,
)
from evergram.errors import DataError, ShapeError

CORPUS = Corpus.of(pa.table({"query": ["a", "b", "a", "c"], "candidate": [7, 7, 9, 8]}))


def letters(ids: list[Any]) -> Tensor:
    return torch.tensor([ord(i) - ord("a") for i in ids])


def modules(dim: int = 4, **options: Any) -> EncoderModules:
    return EncoderModules(
        nn.Embedding(26, dim), nn.Embedding(20, dim), letters, torch.tensor, **options
    )


def test_both_sides_have_one_dim() -> None:
    own = EncoderModules(nn.Embedding(26, 4), nn.Embedding(20, 5), letters, torch.tensor)
    with pytest.raises(ShapeError, match="4 dimensions and the candidate module 5"):
        ModuleEncoder.of(own, CORPUS)


def test_an_entity_is_embedded_once_and_gradients_add_up() -> None:
    calls: list[list[Any]] = []

    def counted(ids: list[Any]) -> Tensor:
        calls.append(ids)
        return letters(ids)

    table = nn.Embedding(26, 4)
    own = EncoderModules(table, nn.Embedding(20, 4), counted, torch.tensor)
    encoder = ModuleEncoder.of(own, CORPUS)
    calls.clear()
    rows = encoder(encoder.read(CORPUS)).rows("query", torch.tensor([2, 0, 2, 2]))
    assert calls == [["a", "c"]]
    torch.testing.assert_close(rows, own.query(torch.tensor([2, 0, 2, 2])))
    rows.sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad[:3].sum(1).tolist() == [4, 0, 12]


def test_an_id_that_is_new_is_zero_or_known() -> None:
    grown = Corpus.of(pa.table({"query": ["d", "a"], "candidate": [7, 11]}))
    for new_ids in (False, True):
        encoder = ModuleEncoder.of(modules(new_ids=new_ids), CORPUS)
        scene = encoder.read(grown)
        assert encoder.known("query", scene).tolist() == [new_ids, True]
        vectors = encoder.embed_all(grown)
        assert bool(vectors["query"][0].any()) is new_ids
        assert bool(vectors["query"][1].any())
        assert encoder.encode(["d"], "query").any() == new_ids
        for side in ("query", "candidate"):
            assert torch.equal(torch.as_tensor(encoder.encode(grown, side)), vectors[side])
    assert encoder.encode([], "candidate").shape == (0, 4)
    with pytest.raises(DataError, match="side 'item' is unknown"):
        encoder.encode(["a"], "item")


def test_encoding_is_in_evaluation_mode_and_leaves_the_mode() -> None:
    own = EncoderModules(
        nn.Sequential(nn.Embedding(26, 4), nn.Dropout(0.5)),
        nn.Embedding(20, 4),
        letters,
        torch.tensor,
    )
    encoder = ModuleEncoder.of(own, CORPUS).train()
    assert own.query.training
    first, second = (encoder.encode(["a", "b"], "query", convert_to_numpy=False) for _ in range(2))
    assert torch.equal(torch.as_tensor(first), torch.as_tensor(second))
    assert encoder.training


def test_tied_tensors_are_kept_once_and_stay_tied() -> None:
    table = nn.Embedding(26, 4)
    own = EncoderModules(table, table, letters, torch.tensor)
    encoder = ModuleEncoder.of(own, CORPUS)
    tensors = encoder.tensors()
    assert list(tensors) == ["query.weight"]
    other = nn.Embedding(26, 4)
    again = restore_module_encoder(
        EncoderModules(other, other, letters, torch.tensor),
        encoder.options,
        encoder.schema,
        tensors,
        "version 0",
    )
    assert torch.equal(again.query.state_dict()["weight"], table.weight)
    assert again.candidate is again.query
    with pytest.raises(ShapeError, match=r"differ .*candidate\.weight"):
        restore_module_encoder(modules(), encoder.options, encoder.schema, tensors, "version 0")


def test_other_modules_than_the_published_ones_are_refused() -> None:
    encoder = ModuleEncoder.of(modules(), CORPUS)
    parts = encoder.options, encoder.schema, encoder.tensors(), "version 3"
    with pytest.raises(ShapeError, match=r"not the modules of version 3: .*shape"):
        restore_module_encoder(modules(5), *parts)
    bare = EncoderModules(nn.Linear(1, 4), nn.Embedding(20, 4), letters, torch.tensor)
    with pytest.raises(ShapeError, match=r"query\.bias"):
        restore_module_encoder(bare, *parts)
    ids = pa.array(["7", "8", "9"])
    published = torch.as_tensor(encoder.encode([7, 8, 9], "candidate"))
    check_vectors(encoder, "candidate", ids, published, "version 3")
    shifted = EncoderModules(
        nn.Embedding(26, 4), nn.Embedding(20, 4), letters, lambda ids: torch.tensor(ids) - 1
    )
    other = restore_module_encoder(shifted, *parts)
    with pytest.raises(DataError, match="the candidate vectors of version 3 differ by"):
        check_vectors(other, "candidate", ids, published, "version 3")


class Remembers(nn.Embedding):
    def get_extra_state(self) -> str:
        return "anything"

    def set_extra_state(self, state: str) -> None:
        pass


def test_state_that_is_not_a_tensor_is_refused() -> None:
    own = EncoderModules(Remembers(26, 4), nn.Embedding(20, 4), letters, torch.tensor)
    with pytest.raises(DataError, match=r"query\._extra_state .* is a str; only tensors"):
        ModuleEncoder.of(own, CORPUS).tensors()


def test_what_is_no_list_of_its_ids_is_refused() -> None:
    encoder = ModuleEncoder.of(modules(), CORPUS)
    for ids, named in (
        ([7, None], "Id 2 has no id"),
        ([7.0], "integers or texts"),
        (["7"], "such as '7'"),
        ([{"id": 7, "tag": ["t"]}], "'tag'"),
        ([{}], "no id"),
        (7, "A single int"),
        (None, "Nothing"),
    ):
        with pytest.raises(DataError, match=named):
            encoder.encode(ids)


def test_ids_may_be_of_any_library() -> None:
    encoder = ModuleEncoder.of(modules(), CORPUS)
    for ids in (
        torch.tensor([9, 7]),
        np.array([9, 7], dtype=np.int32),
        (9, 7),
        iter([9, 7]),
        pa.chunked_array([[9], [7]]),
        pa.array([9, 7]).dictionary_encode(),
        pa.table({"id": [9, 7]}),
        [{"id": 9}, {"id": 7}],
    ):
        assert np.array_equal(encoder.encode(ids), encoder.encode([9, 7]))


class Pair(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.stack([first, second], dim=1)


@pytest.mark.parametrize(
    "inputs",
    [
        lambda ids: (torch.ones(len(ids)), torch.zeros(len(ids))),
        lambda ids: {"second": torch.zeros(len(ids)), "first": torch.ones(len(ids))},
    ],
)
def test_tuples_are_positional_and_dicts_are_keywords(inputs: Any) -> None:
    own = EncoderModules(Pair(), Pair(), inputs, inputs)
    assert outputs_of(own, "query", [1, 2, 3]).tolist() == [[1.0, 0.0]] * 3


@pytest.mark.parametrize(
    ("module", "named"), [(nn.Flatten(0), r"\[8\] for 2 ids"), (nn.LSTM(4, 4), "tuple")]
)
def test_outputs_that_are_not_b_by_d_are_refused(module: nn.Module, named: str) -> None:
    own = EncoderModules(module, module, lambda ids: torch.ones(len(ids), 4), torch.tensor)
    with pytest.raises(ShapeError, match=named):
        outputs_of(own, "query", [1, 2])


def test_copies_share_what_the_modules_share_and_nothing_else() -> None:
    table = nn.Embedding(9, 4)
    own = EncoderModules(table, table, torch.tensor, torch.tensor, new_ids=True, batch_size=7)
    copy = own.copied()
    assert copy.query is copy.candidate
    assert copy.query is not table
    assert (copy.new_ids, copy.batch_size) == (True, 7)
    assert repr(copy) == "EncoderModules(query=Embedding, candidate=Embedding)"
