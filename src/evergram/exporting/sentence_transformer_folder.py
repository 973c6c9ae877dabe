"""The newest encoder and the backward transform, as one folder of sentence-transformers.

Its settings are written as every release since 3 reads them. Releases since 5.4 write other names
and keys, which earlier ones and text-embeddings-inference do not read: the latter then leaves all
Dense modules out, so that a backward transform has no effect.
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
# Of the lengths of vectors, how far from 1 they may be to be called normalised.
UNIT = 1e-3
# The least cosine of a canary that the folder encodes and the same one read through the chain.
LEAST_COSINE = 0.999999

LISTED = "modules.json"
LIBRARY = "sentence_transformers."
Settings = Mapping[str, Any]
STANDARD = ("Transformer", "Pooling", "Normalize", "Dense", "StaticEmbedding")
TRANSFORMER = "sentence_bert_config.json"
# What releases since 5.4 write of a transformer that earlier ones can be told of.
TEXT_ALONE = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
# The earlier key of each way of pooling is "pooling_mode_" and this.
POOLING = {
    **{"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens"},
    **{"mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "lasttoken": "lasttoken"},
    "weightedmean": "weightedmean_tokens",
}


def write_sentence_transformer(
    path: Path, lineage: Lineage, view: View, name: str, about: str
) -> None:
    """Write the recorded encoder's own files, a Dense module with W and b, and Normalize if the
    past version's vectors are normalised. The folder is loaded again and tried on the canary texts
    before it is put in its place. `name` and `about` are for the model card."""
    try:
        from sentence_transformers.sentence_transformer.modules import Dense, Normalize
    except ModuleNotFoundError:
        raise DataError(
            "A folder of sentence-transformers needs that library: pip install 'evergram[text]'."
        ) from None
    newest, past = (lineage.manifest(v).text_encoder for v in (view.source, view.version))
    if newest is None or not newest.address.startswith(KIND):
        reason = "records no encoder of text" if newest is None else f"has {newest.address}"
        raise DataError(
            f"The newest version {reason}, and a folder of sentence-transformers holds a model of "
            "that library (sentence-transformers:…); choose another format."
        )
    place = newest.address.removeprefix(KIND)
    encoder = SentenceTransformerEncoder(place, prompts_of(newest))
    if why := newest.mismatch(encoder):
        raise DataError(f"{newest.address} is not the encoder that was recorded: {why}.")
    weight, offset = (part.to(torch.float32).contiguous() for part in view.affine())
    dense = Dense(
        *(weight.shape[1], len(weight), True, torch.nn.Identity()),
        init_weight=weight,
        init_bias=offset,
    )
    behind: list[torch.nn.Module] = [dense]
    if past is not None:
        lengths = np.linalg.norm(canary_vectors(past), axis=1)
        if np.abs(lengths - 1).max() < UNIT:
            behind.append(Normalize())
    with new_folder(path) as part:
        _write_own_files(encoder, Path(place), part)
        use_common_settings(part, encoder.modules())
        _append(part, behind)
        _set_prompts(part, newest)
        card = folder_card(name, about, view.dim, path.name)
        (part / "README.md").write_text(card, encoding="utf-8")
        _check(part, (weight.numpy(), offset.numpy()), newest, encoder)


def _write_own_files(encoder: SentenceTransformerEncoder, place: Path, folder: Path) -> None:
    """Copy a model's folder; one that is known by a name, and lies in a cache, is saved anew."""
    from sentence_transformers import SentenceTransformer

    if (place / LISTED).is_file():
        shutil.copytree(place, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    else:
        SentenceTransformer(modules=encoder.modules(), device="cpu").save(str(folder))


def _append(folder: Path, behind: list[torch.nn.Module]) -> None:
    """Add modules behind those of a model's folder, as all versions of the library since 3 do."""
    modules = json.loads((folder / LISTED).read_text())
    for number, module in enumerate(behind, len(modules)):
        kind = type(module).__name__
        own = folder / f"{number}_{kind}"
        own.mkdir()
        module.save(str(own))  # type: ignore[operator]
        if kind == "Dense":
            settings = json.loads((own / "config.json").read_text())
            (own / "config.json").write_text(json.dumps({key: settings[key] for key in DENSE}))
        named = {"idx": number, "name": str(number), "path": own.name}
        modules.append({**named, "type": f"sentence_transformers.models.{kind}"})
    (folder / LISTED).write_text(json.dumps(modules, indent=2))


def use_common_settings(folder: Path, modules: Sequence[torch.nn.Module]) -> None:
    """Rewrite the settings of a saved model's standard modules, where earlier releases have a form
    that says the same; those of other modules stay."""
    listed = json.loads((folder / LISTED).read_text())
    for entry, module in zip(listed, modules, strict=True):
        kind = entry["type"].rpartition(".")[2]
        if not entry["type"].startswith(LIBRARY) or kind not in STANDARD:
            continue
        own = folder / entry["path"]
        path = own / (TRANSFORMER if kind == "Transformer" else "config.json")
        # Early models have no such file, or one of another name; today's releases write it.
        if kind in ("Transformer", "Pooling") and path.is_file():
            form = _of_transformer if kind == "Transformer" else _of_pooling
            settings = form(json.loads(path.read_text()), module)
            if settings is None:
                continue
            path.write_text(json.dumps(settings, indent=2))
        entry["type"] = f"{LIBRARY}models.{kind}"
    (folder / LISTED).write_text(json.dumps(listed, indent=2))


def _of_transformer(settings: Settings, module: torch.nn.Module) -> Settings | None:
    """Return the earlier form of a module's settings; None where there is none."""
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


def _set_prompts(folder: Path, record: TextEncoderRecord) -> None:
    path = folder / "config_sentence_transformers.json"
    settings = json.loads(path.read_text()) if path.is_file() else {}
    prompts = {role: text for role, text in record.prompts.items() if text}
    plain = None
    if "document" in prompts:
        # `encode` alone reads documents. Queries need a prompt of their own then, if an empty one:
        # `encode_query` would take the default.
        plain = "document"
        prompts.setdefault("query", "")
    settings["prompts"] = prompts
    settings["default_prompt_name"] = plain
    path.write_text(json.dumps(settings, indent=2))


def _check(
    folder: Path,
    way: tuple[Vectors, Vectors],
    record: TextEncoderRecord,
    encoder: SentenceTransformerEncoder,
) -> None:
    """Refuse a folder that does not encode canaries as encoder and map do."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), trust_remote_code=False)
    # As the documentation and the card have it.
    calls: tuple[tuple[Callable[..., Any], Role], ...] = (
        *((model.encode, "document"), (model.encode_document, "document")),
        (model.encode_query, "query"),
    )
    for encode, role in calls:
        own = encoder.encode(record.texts, role) @ way[0].T + way[1]
        read = encode(record.texts, show_progress_bar=False, convert_to_numpy=True)
        products = (own * read).sum(1)
        cosine = products / np.linalg.norm(own, axis=1) / np.linalg.norm(read, axis=1)
        if not cosine.min() >= LEAST_COSINE:  # and not if one is NaN
            raise IntegrityError(
                f"The folder does not encode the canary texts as the chain does "
                f"({encode.__name__}): the lowest cosine is {cosine.min():.7f}, and {LEAST_COSINE} "
                "is needed. Nothing was written."
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

Before version 5 of the library these are `model.encode(texts)` and
`model.encode(texts, prompt_name="query")`, where the model has a prompt of queries.

It is an encoder of text and behind it one matrix, which reads its vectors in the space of an
earlier model. After the next upgrade it has to be written again.
"""
