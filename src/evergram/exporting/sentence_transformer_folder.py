"""The newest encoder with the backward transform behind it, as a folder of sentence-transformers.

Settings of standard modules are written as every release reads them that has the module: since 3,
and StaticEmbedding since 3.2. Releases since 5.4 write other names and keys, which earlier ones and
text-embeddings-inference do not read: the latter then leaves all Dense modules out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evergram.atomic_files import new_folder
from evergram.errors import DataError, IntegrityError
from evergram.exporting.affine_map import AffineMap
from evergram.exporting.encoder_folder import CardPlace
from evergram.texts.package_encoders import SentenceTransformerEncoder
from evergram.texts.record import TextEncoderRecord, canary_vectors, prompts_of
from evergram.texts.text_encoder import Role, Vectors

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
    that says the same; those of other modules stay.

    Args:
        modules: those of the folder, in their order.
    """
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


# Of the report on held-out objects, as the card calls them.
_READINGS = {
    "cosine": "cosine",
    "relative_error": "relative error",
    "overlap@10": "overlap@10",
    "overlap@10_own_queries": "overlap@10 of old queries among new vectors",
}


def folder_card(way: AffineMap, version: int, metrics: Mapping[str, Any], place: CardPlace) -> str:
    """Return a model card in Markdown, with what the newest version's record has measured.

    Args:
        way: from the newest version to the past one.
        version: j, the past one.
        metrics: of the newest version.
    """
    measured = "\n".join(_measured(metrics, version)) or "The record has no measurement of it."
    return f"""---
library_name: sentence-transformers
{place.license_line}pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- evergram
---

# {way.name}

{way.about}

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{place.address}")
vectors = model.encode_document(["a text"])  # [1, {way.dim}]
queries = model.encode_query(["a question"])
```

Before version 5 of the library these are `model.encode(texts)` and
`model.encode(texts, prompt_name="query")`, where the model has a prompt of queries.

It is an encoder of text and behind it one matrix, which reads its vectors in the space of an
earlier model. After the next upgrade it has to be written again.

## Measured at publication

{measured}
"""


def _measured(metrics: Mapping[str, Any], version: int) -> Iterator[str]:
    """Yield the lines of the certificate and of held-out objects that the record has."""
    alignment = metrics.get("alignment", {})
    error = alignment.get("certificate", {}).get(str(version), {}).get("relative")
    held_out = alignment.get("held_out", {}).get("transformed", {})
    lines = []
    if isinstance(error, int | float):
        lines.append(f"| relative error as version {version}, by the certificate | {error:.4g} |")
    lines += [
        f"| {label}, held-out objects, as the version before | {held_out[name]:.4g} |"
        for name, label in _READINGS.items()
        if isinstance(held_out.get(name), int | float)
    ]
    if lines:
        yield from ("| | value |", "|---|---|", *lines)


KIND = "sentence-transformers:"
# The settings that version 3 of the library reads.
DENSE = ("in_features", "out_features", "bias", "activation_function")
# Of the lengths of vectors, how far from 1 they may be to be called normalised.
UNIT = 1e-3
# The least cosine of a canary that the folder encodes and the same one read through the chain.
LEAST_COSINE = 0.999999


def write_sentence_transformer(
    path: Path,
    way: AffineMap,
    newest: TextEncoderRecord | None,
    past: TextEncoderRecord | None,
    card: str,
) -> None:
    """Write the recorded encoder's own files, a Dense module with W and b, and Normalize if the
    past version's vectors are normalised. The folder is loaded again and tried on the canary texts
    before it is put in its place.

    Args:
        newest, past: the records of the encoders of versions k and j.
        card: the text of README.md, in place of the encoder's own.
    Raises: DataError: there is no record, or its encoder is of another library or not the recorded
        one; or sentence-transformers is not installed. IntegrityError: the folder's vectors are
            others than the chain's.
    """
    try:
        from sentence_transformers.sentence_transformer.modules import Dense, Normalize
    except ModuleNotFoundError:
        raise DataError(
            "A folder of sentence-transformers needs that library: pip install 'evergram[text]'."
        ) from None
    if newest is None or not newest.address.startswith(KIND):
        reason = "records no encoder of text" if newest is None else f"has {newest.address}"
        raise DataError(
            f"The newest version {reason}, and a folder of sentence-transformers holds a model of "
            "that library (sentence-transformers:…); choose another format."
        )
    encoder = SentenceTransformerEncoder(newest.address.removeprefix(KIND), prompts_of(newest))
    if why := newest.mismatch(encoder):
        raise DataError(f"{newest.address} is not the encoder that was recorded: {why}.")
    dense = Dense(
        *(way.source_dim, way.dim, True, torch.nn.Identity()),
        init_weight=torch.from_numpy(way.weight),
        init_bias=torch.from_numpy(way.offset),
    )
    behind: list[torch.nn.Module] = [dense]
    if past is not None and _normalised(canary_vectors(past)):
        behind.append(Normalize())
    place = Path(newest.address.removeprefix(KIND))
    with new_folder(path) as part:
        _write_own_files(encoder, place, part)
        use_common_settings(part, encoder.modules())
        _append(part, behind)
        _set_prompts(part, newest)
        (part / "README.md").write_text(card, encoding="utf-8")
        _check(part, way, newest, encoder)


def _write_own_files(encoder: SentenceTransformerEncoder, place: Path, folder: Path) -> None:
    """Copy a model's folder; one that is known by a name, and lies in a cache, is saved anew."""
    from sentence_transformers import SentenceTransformer

    if (place / LISTED).is_file():
        shutil.copytree(place, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    else:
        SentenceTransformer(modules=encoder.modules(), device="cpu").save(str(folder))


def _append(folder: Path, behind: list[torch.nn.Module]) -> None:
    """Add modules behind those of a model's folder, as all versions of the library since 3 read
    them."""
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


def _normalised(vectors: Vectors) -> bool:
    return bool(np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < UNIT)


def _check(
    folder: Path, way: AffineMap, record: TextEncoderRecord, encoder: SentenceTransformerEncoder
) -> None:
    """Raises: IntegrityError: the folder does not encode canaries as encoder and map do."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), trust_remote_code=False)
    # As the documentation and the card have it.
    calls: tuple[tuple[Callable[..., Any], Role], ...] = (
        *((model.encode, "document"), (model.encode_document, "document")),
        (model.encode_query, "query"),
    )
    for encode, role in calls:
        own = encoder.encode(record.texts, role) @ way.weight.T + way.offset
        read = encode(record.texts, show_progress_bar=False, convert_to_numpy=True)
        products = (own * read).sum(1)
        cosine = products / np.linalg.norm(own, axis=1) / np.linalg.norm(read, axis=1)
        if not cosine.min() >= LEAST_COSINE:  # and not if one is NaN
            raise IntegrityError(
                f"The folder does not encode the canary texts as the chain does "
                f"({encode.__name__}): the lowest cosine is {cosine.min():.7f}, and {LEAST_COSINE} "
                "is needed. Nothing was written."
            )
