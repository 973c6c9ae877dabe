"""The newest encoder with the way back behind it, as a folder of sentence-transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evergram.atomic_files import new_folder
from evergram.errors import DataError, IntegrityError
from evergram.retrieval.portable.affine_map import AffineMap
from evergram.retrieval.portable.library_settings import LISTED, use_common_settings
from evergram.texts.record import TextEncoderRecord, canary_vectors, prompts_of
from evergram.texts.sentence_transformer import SentenceTransformerEncoder
from evergram.texts.text_encoder import Role, Vectors

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
