"""Settings of a saved model of sentence-transformers as every release since 3 reads them.

Releases since 5.4 write other names and keys, which earlier ones and text-embeddings-inference do
not read: the latter then leaves all Dense modules out, so that a backward transform has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

LISTED = "modules.json"
LIBRARY = "sentence_transformers."
Settings = Mapping[str, Any]
STANDARD = ("Transformer", "Pooling", "Normalize", "Dense", "StaticEmbedding")
TRANSFORMER = "sentence_bert_config.json"
# What releases since 5.4 write of a transformer that earlier ones can be told of.
TEXT_ALONE = {
    "transformer_task": "feature-extraction",
    "modality_config": {
        "text": {"method": "forward", "method_output_name": "last_hidden_state"},
    },
    "module_output_name": "token_embeddings",
}
# The earlier key of each way of pooling is "pooling_mode_" and this.
POOLING = {
    **{"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens"},
    **{"mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "lasttoken": "lasttoken"},
    "weightedmean": "weightedmean_tokens",
}


def use_common_settings(folder: Path, modules: Sequence[torch.nn.Module]) -> None:
    """Rewrite the settings of a saved model's standard modules, where earlier releases have a form
    that says the same; those of other modules stay."""
    listed = json.loads((folder / LISTED).read_text())
    for entry, module in zip(listed, modules, strict=True):
        kind = entry["type"].rpartition(".")[2]
        if not entry["type"].startswith(LIBRARY) or kind not in STANDARD:
            continue
        own = folder / entry["path"]
        if kind == "Transformer" and not _rewritten(own / TRANSFORMER, module, _of_transformer):
            continue
        if kind == "Pooling" and not _rewritten(own / "config.json", module, _of_pooling):
            continue
        entry["type"] = f"{LIBRARY}models.{kind}"
    (folder / LISTED).write_text(json.dumps(listed, indent=2))


def _rewritten(
    path: Path,
    module: torch.nn.Module,
    form: Callable[[Settings, torch.nn.Module], Settings | None],
) -> bool:
    """Return whether the settings have the earlier form now."""
    if not path.is_file():
        return True  # early models have none, or one of another name; today's releases write it
    settings = form(json.loads(path.read_text()), module)
    if settings is not None:
        path.write_text(json.dumps(settings, indent=2))
    return settings is not None


def _of_transformer(settings: Settings, module: torch.nn.Module) -> Settings | None:
    if not settings.keys() & TEXT_ALONE.keys():
        return settings
    if settings != TEXT_ALONE:
        return None
    length, lower = (getattr(module, n, None) for n in ("max_seq_length", "do_lower_case"))
    return {"max_seq_length": length, "do_lower_case": bool(lower)}


def _of_pooling(settings: Settings, _: torch.nn.Module) -> Settings | None:
    ways = settings.get("pooling_mode")
    if ways is None:
        return settings
    chosen = [ways] if isinstance(ways, str) else ways
    # Several are joined in the order in which they are named; earlier releases have one of theirs.
    if set(settings) != {"embedding_dimension", "pooling_mode", "include_prompt"} or (
        len(chosen) != 1 or chosen[0] not in POOLING
    ):
        return None
    flags = {f"pooling_mode_{key}": way == chosen[0] for way, key in POOLING.items()}
    return {
        "word_embedding_dimension": settings["embedding_dimension"],
        **flags,
        "include_prompt": settings["include_prompt"],
    }
