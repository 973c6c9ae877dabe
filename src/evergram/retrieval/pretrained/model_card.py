"""The README.md of an encoder: what it is, how it is used, and what was measured of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evergram.encoders.kinds import ENCODERS
from evergram.errors import DataError
from evergram.kinds import kinds_where
from evergram.lineage.disk.manifest import EncoderRecord
from evergram.lineage.sampled_metrics import sample_sentence, standard_errors, with_error
from evergram.retrieval.pretrained.encoder_folder import EncoderFacts

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
