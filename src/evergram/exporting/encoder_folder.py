"""An encoder in a folder of its own, in safetensors and JSON, with its README.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from evergram.atomic_files import new_folder, remove_folder
from evergram.data.corpus import Vocabulary
from evergram.encoders.kinds import ENCODERS
from evergram.errors import DataError, FormatError, IntegrityError, reason_and_remedy
from evergram.kinds import kinds_where
from evergram.lineage.diagnosis import sample_sentence, standard_errors, with_error
from evergram.lineage.record import EncoderRecord, check_files, sha256
from evergram.lineage.version_files import load_tensors, plain_numbers, save_tensors
from evergram.validation import sentence_of

FORMAT_VERSION = 1
CONFIG, TENSORS, VOCABULARIES = "config.json", "model.safetensors", "vocabularies.json"
METRICS, CARD = "metrics.json", "README.md"
READ_FILES = (CONFIG, TENSORS, VOCABULARIES, METRICS)


class EncoderFacts(BaseModel):
    """The version that an encoder is of.

    Args:
        name: such as "shop@v3".
        fingerprint: of the space that its vectors are in.
        dim: D.
        created: when the version was published.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    name: str
    version: int
    fingerprint: str
    dim: int
    created: str


class _Config(BaseModel):
    """`config.json`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    format_version: int
    evergram: str
    encoder: EncoderRecord
    of: EncoderFacts
    # File name to SHA-256, of every other file that is read.
    files: dict[str, str]


@dataclass(frozen=True)
class EncoderFolder:
    """The contents of an encoder's folder.

    Args:
        record: how the encoder is built.
        facts, metrics: the version that it is of, and what was measured of that.
        state, vocabularies: its tensors, and the keys that their rows are for.
    """

    record: EncoderRecord
    facts: EncoderFacts
    metrics: Mapping[str, Any]
    state: Mapping[str, Tensor]
    vocabularies: Mapping[str, Vocabulary]


def write_encoder_folder(
    folder: Path, encoder: EncoderFolder, card: str, *, overwrite: bool
) -> None:
    """Write an encoder to a folder, whole or not at all.

    Args:
        card: the text of README.md.
    Raises: DataError: the folder is there already and may not be replaced, or cannot be written.
    """
    if folder.exists() and not overwrite:
        raise DataError(
            f"{folder} is there already and is not written over; give another folder, or "
            "overwrite=True."
        )
    if folder.exists() and not (folder / CONFIG).is_file():
        raise DataError(f"{folder} holds no encoder, so it is not replaced; give another folder.")
    # As text, which JSON has of every number and time; integers are what they are.
    keys = {
        name: (v.keys if pa.types.is_integer(v.keys.type) else v.keys.cast(pa.string())).to_pylist()
        for name, v in encoder.vocabularies.items()
    }
    try:
        with new_folder(folder) as part:
            save_tensors(encoder.state, part / TENSORS)
            _write_json(part / VOCABULARIES, keys)
            _write_json(part / METRICS, plain_numbers(encoder.metrics))
            (part / CARD).write_text(card, encoding="utf-8")
            config = _Config(
                format_version=FORMAT_VERSION,
                evergram=package_version("evergram"),
                encoder=encoder.record,
                of=encoder.facts,
                files={name: sha256(part / name) for name in (TENSORS, VOCABULARIES, METRICS)},
            )
            (part / CONFIG).write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
            if folder.exists():
                remove_folder(folder)
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {reason_and_remedy(error)}.") from error


def read_encoder_folder(folder: Path) -> EncoderFolder:
    """Return the encoder that `write_encoder_folder` wrote.

    Raises: DataError: there is no such folder. IntegrityError: it is damaged. FormatError: it was
        written by a later Evergram.
    """
    path = folder / CONFIG
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"{folder} is not a folder that save_pretrained wrote: {CONFIG} cannot be read "
            f"({reason_and_remedy(error)})."
        ) from error
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise IntegrityError(f"{path} is damaged: {error}.") from error
    try:
        version = raw.get("format_version") if isinstance(raw, dict) else None
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise FormatError(
                f"{path} has format_version {version}; this Evergram reads {FORMAT_VERSION}, so "
                "upgrade Evergram to read it."
            )
        config = _Config.model_validate(raw)
    except ValidationError as error:
        raise IntegrityError(f"{path} is damaged: {sentence_of(error, _Config)}") from error
    missing = {TENSORS, VOCABULARIES, METRICS} - config.files.keys()
    if missing:
        raise IntegrityError(f"{path} is damaged: it does not list {min(missing)}.")
    check_files(folder, {name: config.files[name] for name in (TENSORS, VOCABULARIES, METRICS)})
    vocabularies = _vocabularies(folder / VOCABULARIES, config.encoder)
    metrics = json.loads((folder / METRICS).read_text(encoding="utf-8"))
    state = load_tensors(folder / TENSORS)
    return EncoderFolder(config.encoder, config.of, metrics, state, vocabularies)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


def _vocabularies(path: Path, record: EncoderRecord) -> dict[str, Vocabulary]:
    """Return the vocabularies of an encoder. Raises: IntegrityError: one is missing or damaged."""
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Vocabulary(
                pa.array(keys[name], pa.int64() if kind == "int64" else pa.string()).cast(
                    pa.type_for_alias(kind)
                )
            )
            for name, kind in record.vocabularies.items()
        }
    except (ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise IntegrityError(
            f"{path} does not hold the encoder's vocabularies: {error}."
        ) from error


# As the Hub writes licences: apache-2.0, cc-by-nc-4.0, other.
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")


@dataclass(frozen=True)
class CardPlace:
    """What a card says that the version does not know.

    Args:
        address: the folder, or OWNER/NAME on the Hub, that `from_pretrained` is called with.
        license: in the Hub's words, such as "apache-2.0"; None if the owner said nothing.
    Raises: DataError: the licence is no such word.
    """

    address: str
    license: str | None = None

    def __post_init__(self) -> None:
        if self.license is not None and not _LICENSE.fullmatch(self.license):
            raise DataError(
                f"The licence {self.license[:80]!r} cannot stand in a model card; give the Hub's "
                "word for it, such as apache-2.0, cc-by-4.0 or other."
            )

    @property
    def license_line(self) -> str:
        """The licence as a line of the front matter; "" of none."""
        return "" if self.license is None else f"license: {self.license}\n"


def model_card(
    record: EncoderRecord, facts: EncoderFacts, metrics: Mapping[str, Any], place: CardPlace
) -> str:
    """Return a model card in Markdown, with its facts and metrics as they were published.

    The front matter is YAML, as huggingface_hub's `ModelCard` reads it.
    """
    sides = "\n".join(
        f"| {side} | {', '.join(f'`{name}`' for name in inputs)} |"
        for side, inputs in record.inputs.items()
    )
    measured = "\n".join(_measured(metrics)) or "Nothing was measured when it was published."
    return f"""---
library_name: evergram
{place.license_line}tags:
- embeddings
- {record.kind}
---

# {facts.name}

An embedding model of kind `{record.kind}` with {facts.dim} dimensions, published on
{facts.created}. Its vectors are in the space `{facts.fingerprint}`.

```python
from evergram import PretrainedEncoder

encoder = PretrainedEncoder.from_pretrained({json.dumps(place.address, ensure_ascii=False)})
{_calls(record)}
```

It needs `pip install evergram`. The files are safetensors and JSON, and each is compared with its
SHA-256 in `config.json` when it is loaded.

| side | what it reads of an object |
|---|---|
{sides}

## Measured at publication

{measured}
"""


def _calls(record: EncoderRecord) -> str:
    """Return a call of `encode` for each side, with all that the encoder reads of an object."""
    if record.kind in kinds_where(ENCODERS, "needs_graph"):
        return "\n".join(
            f'vectors = encoder.encode(corpus, side="{side}")  # an evergram.Corpus'
            for side in record.inputs
        )
    calls = []
    for side, inputs in record.inputs.items():
        features = [name for name in inputs if name != "id"]
        objects = ", ".join(f'"{name}": [KEYS]' for name in features)
        objects = f'[{{"id": ID, {objects}}}, ...]' if features else "[ID, ...]"
        calls.append(f'vectors = encoder.encode({objects}, side="{side}")')
    return "\n".join(calls)


def _measured(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the metrics that are numbers, and of the reading by past versions."""
    if isinstance(metrics.get("untested"), str):
        yield f"{metrics['untested']}\n"
    ranking = metrics.get("metrics", {}).get("model", {})
    if ranking:
        yield "| metric | value |"
        yield "|---|---|"
        errors = standard_errors(metrics.get("sampled"), "model")
        for name, value in ranking.items():
            yield f"| {name} | {with_error(_number(value), errors.get(name))} |"
        if (sentence := sample_sentence(metrics.get("sampled"))) is not None:
            yield f"\n{sentence}"
    past = metrics.get("compatibility", {})
    if not past:
        return
    yield "\nRead as past versions, through the backward transforms:\n"
    yield "| version | metric | by its own vectors then | by these |"
    yield "|---|---|---|---|"
    for version, reading in past.items():
        then, now = reading["ranking"]["past"], reading["ranking"]["chain"]
        before, after = (standard_errors(reading.get("sampled"), n) for n in ("past", "chain"))
        for name in now:
            was = with_error(_number(then.get(name)), before.get(name))
            value = with_error(_number(now[name]), after.get(name))
            yield f"| {version} | {name} | {was} | {value} |"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "not measured"
