"""Export the newest encoder and the backward transform as one sentence-transformers folder.

Settings are written in the format that every release since 3 reads. Releases since 5.4 write other
names and keys, which earlier releases and text-embeddings-inference do not understand; the latter
would skip all Dense modules, and with them the backward transform.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evergram.atomic_files import new_folder
from evergram.errors import DataError, IntegrityError
from evergram.lineage.lineage import Lineage
from evergram.lineage.view import View
from evergram.texts.addresses import SentenceTransformerEncoder
from evergram.texts.record import TextEncoderRecord, canary_vectors, prompts_of
from evergram.texts.text_encoder import Role, Vectors

KIND = "sentence-transformers:"
# The settings of a Dense module that every release of the library since 3 reads.
DENSE = ("in_features", "out_features", "bias", "activation_function")
# Vectors count as normalised if their lengths differ from 1 by less than this.
UNIT = 1e-3
# The smallest cosine of a canary encoded by the folder and by the encoder and the transform.
LEAST_COSINE = 0.999999

LISTED = "modules.json"
LIBRARY = "sentence_transformers."
Settings = Mapping[str, Any]
STANDARD = ("Transformer", "Pooling", "Normalize", "Dense", "StaticEmbedding")
TRANSFORMER = "sentence_bert_config.json"
# The settings since 5.4 of a text-only transformer, which earlier releases can express.
TEXT_ONLY = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
# The earlier key of each pooling mode is "pooling_mode_" and this suffix.
POOLING = {
    "cls": "cls_token",
    "max": "max_tokens",
    "mean": "mean_tokens",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "lasttoken": "lasttoken",
    "weightedmean": "weightedmean_tokens",
}


def write_sentence_transformer(
    path: Path, lineage: Lineage, view: View, name: str, about: str
) -> None:
    """Write the recorded encoder's files, a Dense module with W and b, and Normalize if the past
    version's vectors are normalised. Before the folder appears at `path`, it is loaded and tested
    on the canary texts. `name` and `about` are for the model card."""
    try:
        from sentence_transformers.sentence_transformer.modules import Dense, Normalize
    except ModuleNotFoundError:
        raise DataError(
            "A sentence-transformers folder needs that library: pip install 'evergram[text]'."
        ) from None
    newest, past = (lineage.manifest(v).text_encoder for v in (view.source, view.version))
    if newest is None or not newest.address.startswith(KIND):
        reason = "records no text encoder" if newest is None else f"has {newest.address}"
        raise DataError(
            f"The newest version {reason}, but a sentence-transformers folder needs a model of "
            "that library (sentence-transformers:…); choose another format."
        )
    model_name = newest.address.removeprefix(KIND)
    encoder = SentenceTransformerEncoder(model_name, prompts_of(newest))
    if why := newest.mismatch(encoder):
        raise DataError(f"{newest.address} is not the recorded encoder: {why}.")
    weight, offset = (tensor.to(torch.float32).contiguous() for tensor in view.affine())
    dense = Dense(
        weight.shape[1],
        len(weight),
        True,
        torch.nn.Identity(),
        init_weight=weight,
        init_bias=offset,
    )
    appended: list[torch.nn.Module] = [dense]
    if past is not None:
        lengths = np.linalg.norm(canary_vectors(past), axis=1)
        if np.abs(lengths - 1).max() < UNIT:
            appended.append(Normalize())
    with new_folder(path) as folder:
        _write_model(encoder, Path(model_name), folder)
        use_common_settings(folder, encoder.modules())
        _append(folder, appended)
        _set_prompts(folder, newest)
        card = folder_card(name, about, view.dim, path.name)
        (folder / "README.md").write_text(card, encoding="utf-8")
        _check(folder, (weight.numpy(), offset.numpy()), newest, encoder)


def _write_model(encoder: SentenceTransformerEncoder, source: Path, folder: Path) -> None:
    """Copy a model's folder, or save a model that was loaded by name from a cache."""
    from sentence_transformers import SentenceTransformer

    if (source / LISTED).is_file():
        shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    else:
        SentenceTransformer(modules=encoder.modules(), device="cpu").save(str(folder))


def _append(folder: Path, appended: list[torch.nn.Module]) -> None:
    """Append modules to a saved model, in the format of all releases since 3."""
    modules = json.loads((folder / LISTED).read_text())
    for number, module in enumerate(appended, len(modules)):
        kind = type(module).__name__
        subfolder = folder / f"{number}_{kind}"
        subfolder.mkdir()
        module.save(str(subfolder))  # type: ignore[operator]
        if kind == "Dense":
            path = subfolder / "config.json"
            settings = json.loads(path.read_text())
            path.write_text(json.dumps({key: settings[key] for key in DENSE}))
        entry = {"idx": number, "name": str(number), "path": subfolder.name}
        modules.append({**entry, "type": f"sentence_transformers.models.{kind}"})
    (folder / LISTED).write_text(json.dumps(modules, indent=2))


def use_common_settings(folder: Path, modules: Sequence[torch.nn.Module]) -> None:
    """Rewrite the settings of a saved model in the earlier format, where it can express them."""
    listed = json.loads((folder / LISTED).read_text())
    for entry, module in zip(listed, modules, strict=True):
        kind = entry["type"].rpartition(".")[2]
        if not entry["type"].startswith(LIBRARY) or kind not in STANDARD:
            continue
        path = folder / entry["path"] / (TRANSFORMER if kind == "Transformer" else "config.json")
        # Early models have no such file, or another name for it; current releases write it.
        if kind in ("Transformer", "Pooling") and path.is_file():
            convert = _of_transformer if kind == "Transformer" else _of_pooling
            settings = convert(json.loads(path.read_text()), module)
            if settings is None:
                continue
            path.write_text(json.dumps(settings, indent=2))
        entry["type"] = f"{LIBRARY}models.{kind}"
    (folder / LISTED).write_text(json.dumps(listed, indent=2))


def _of_transformer(settings: Settings, module: torch.nn.Module) -> Settings | None:
    """Convert a module's settings to the earlier format; None if it cannot express them."""
    if not settings.keys() & TEXT_ONLY.keys():
        return settings
    if settings != TEXT_ONLY:
        return None
    length, lower = (getattr(module, n, None) for n in ("max_seq_length", "do_lower_case"))
    return {"max_seq_length": length, "do_lower_case": bool(lower)}


def _of_pooling(settings: Settings, _: torch.nn.Module) -> Settings | None:
    modes = settings.get("pooling_mode")
    if modes is None:
        return settings
    modes = [modes] if isinstance(modes, str) else modes
    # Several modes are concatenated in the listed order; earlier releases have a fixed order.
    if set(settings) != {"embedding_dimension", "pooling_mode", "include_prompt"} or (
        len(modes) != 1 or modes[0] not in POOLING
    ):
        return None
    flags = {f"pooling_mode_{key}": mode == modes[0] for mode, key in POOLING.items()}
    return {
        "word_embedding_dimension": settings["embedding_dimension"],
        **flags,
        "include_prompt": settings["include_prompt"],
    }


def _set_prompts(folder: Path, record: TextEncoderRecord) -> None:
    path = folder / "config_sentence_transformers.json"
    settings = json.loads(path.read_text()) if path.is_file() else {}
    prompts = {role: text for role, text in record.prompts.items() if text}
    default = None
    if "document" in prompts:
        # `encode` must use the document prompt by default. Then queries need an explicit prompt,
        # even if empty: otherwise `encode_query` would use the default.
        default = "document"
        prompts.setdefault("query", "")
    settings["prompts"] = prompts
    settings["default_prompt_name"] = default
    path.write_text(json.dumps(settings, indent=2))


def _check(
    folder: Path,
    affine: tuple[Vectors, Vectors],
    record: TextEncoderRecord,
    encoder: SentenceTransformerEncoder,
) -> None:
    """Refuse a folder that encodes canaries differently from the encoder and the transform."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), trust_remote_code=False)
    # The calls in the documentation and the model card.
    calls: tuple[tuple[Callable[..., Any], Role], ...] = (
        (model.encode, "document"),
        (model.encode_document, "document"),
        (model.encode_query, "query"),
    )
    for encode, role in calls:
        expected = encoder.encode(record.texts, role) @ affine[0].T + affine[1]
        actual = encode(record.texts, show_progress_bar=False, convert_to_numpy=True)
        products = (expected * actual).sum(1)
        cosine = products / np.linalg.norm(expected, axis=1) / np.linalg.norm(actual, axis=1)
        if not cosine.min() >= LEAST_COSINE:  # also refuses NaN
            raise IntegrityError(
                f"The folder encodes the canary texts differently from the lineage "
                f"({encode.__name__}): the lowest cosine is {cosine.min():.7f}, but must be at "
                f"least {LEAST_COSINE}. Nothing was written."
            )


def folder_card(name: str, about: str, dim: int, address: str) -> str:
    """Return a model card in Markdown."""
    return f"""---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- evergram
---

# {name}

{about}

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{address}")
vectors = model.encode_document(["a text"])  # [1, {dim}]
queries = model.encode_query(["a question"])
```

Before version 5 of the library, use `model.encode(texts)`, and
`model.encode(texts, prompt_name="query")` if the model has a query prompt.

This model is a text encoder followed by one matrix, which maps its vectors to the space of an
earlier model. After the next upgrade, export it again.
"""
