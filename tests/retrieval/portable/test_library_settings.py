"""A model that today's library saved, in settings that earlier releases and other servers read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.support.optional import need

from evergram.retrieval.portable.library_settings import use_common_settings
from evergram.retrieval.portable.sentence_transformer_folder import _append

need("sentence_transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "ask", "tell"]
TEXTS = ["red green ask", "tell", "green red red tell"]
# All that text-embeddings-inference knows (backends/src/lib.rs, ModuleType).
KNOWN = [f"sentence_transformers.models.{k}" for k in ("Transformer", "Pooling", "Normalize")]


def saved(
    folder: Path, pooling: str | tuple[str, ...] = "mean", *, normalises: bool = True
) -> Path:
    """Return the folder of a tiny BERT model, as the installed library saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel, BertTokenizer

    folder.mkdir()
    (folder / "words.txt").write_text("\n".join(WORDS))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder / "bert")
    BertTokenizer(str(folder / "words.txt")).save_pretrained(folder / "bert")
    modules: list[torch.nn.Module] = [Transformer(str(folder / "bert"), max_seq_length=5)]
    modules += [Pooling(8, pooling), *([Normalize()] if normalises else [])]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"))
    return folder / "model"


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
def test_settings_of_today_become_those_that_every_release_reads(
    tmp_path: Path, pooling: str
) -> None:
    from sentence_transformers import SentenceTransformer

    folder = saved(tmp_path / "m", pooling)
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(TEXTS)
    use_common_settings(folder, list(model.children()))
    assert [m["type"] for m in json.loads((folder / "modules.json").read_text())] == KNOWN
    transformer = json.loads((folder / "sentence_bert_config.json").read_text())
    assert transformer == {"max_seq_length": 5, "do_lower_case": False}
    flags = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert flags.pop("word_embedding_dimension") == 8
    assert [k for k, v in flags.items() if v and k.startswith("pooling_mode_")] == [
        f"pooling_mode_{'lasttoken' if pooling == 'lasttoken' else pooling + '_token'}"
        + ("s" if pooling in ("mean", "max") else "")
    ]
    again = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_array_equal(again.encode(TEXTS), vectors)
    # Settings of that form stay as they are.
    before = {p: p.read_bytes() for p in folder.rglob("*.json")}
    use_common_settings(folder, list(again.children()))
    assert {p: p.read_bytes() for p in folder.rglob("*.json")} == before


def test_what_no_earlier_release_can_be_told_stays(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = saved(tmp_path / "m", ("mean", "max"))
    kept = (folder / "1_Pooling" / "config.json").read_bytes()
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "unpad_inputs": False}))
    types = [m["type"] for m in json.loads((folder / "modules.json").read_text())]
    modules = list(SentenceTransformer(str(folder), device="cpu").children())
    use_common_settings(folder, modules)
    now = [m["type"] for m in json.loads((folder / "modules.json").read_text())]
    assert now == [*types[:2], KNOWN[2]]
    assert (folder / "1_Pooling" / "config.json").read_bytes() == kept


def test_early_models_without_such_settings_are_named_alone(tmp_path: Path) -> None:
    """As those whose settings are in `sentence_roberta_config.json`."""
    from sentence_transformers import SentenceTransformer

    folder = saved(tmp_path / "m")
    modules = list(SentenceTransformer(str(folder), device="cpu").children())
    (folder / "sentence_bert_config.json").unlink()
    use_common_settings(folder, modules)
    assert [m["type"] for m in json.loads((folder / "modules.json").read_text())] == KNOWN
    assert not (folder / "sentence_bert_config.json").exists()


def test_a_server_that_knows_four_kinds_of_modules_encodes_as_the_past_version(
    tmp_path: Path,
) -> None:
    """As text-embeddings-inference reads a folder: plain transformers, the pooling that a flag
    names, and every Dense that modules.json lists, one after the other."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense
    from transformers import AutoModel, AutoTokenizer

    folder = saved(tmp_path / "m", normalises=False)
    draw = np.random.default_rng(0)
    weight = draw.normal(size=(3, 8)).astype(np.float32)
    offset = draw.normal(size=3).astype(np.float32)
    model = SentenceTransformer(str(folder), device="cpu")
    expected = model.encode(TEXTS) @ weight.T + offset
    dense = Dense(
        *(8, 3, True, torch.nn.Identity()),
        init_weight=torch.from_numpy(weight),
        init_bias=torch.from_numpy(offset),
    )
    use_common_settings(folder, list(model.children()))
    _append(folder, [dense])
    listed = json.loads((folder / "modules.json").read_text())
    assert {m["type"] for m in listed} <= {*KNOWN, "sentence_transformers.models.Dense"}
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_mean_tokens"] is True
    assert pooling["pooling_mode_cls_token"] is False
    tokens = AutoTokenizer.from_pretrained(folder)(
        TEXTS, return_tensors="pt", padding=True, truncation=True, max_length=5
    )
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder)(**tokens).last_hidden_state
    mask = tokens["attention_mask"][..., None]
    pooled = (states * mask).sum(1) / mask.sum(1)
    for module in listed:
        if module["type"].endswith(".Dense"):
            settings = json.loads((folder / module["path"] / "config.json").read_text())
            assert settings["activation_function"] == "torch.nn.modules.linear.Identity"
            parts = load_file(folder / module["path"] / "model.safetensors")
            pooled = pooled @ parts["linear.weight"].T + parts["linear.bias"]
    np.testing.assert_allclose(pooled.numpy(), expected, rtol=1e-5, atol=1e-6)
