"""The README.md of an encoder: what it is, how it is used, and what was measured of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evergram.encoders.kinds import ENCODERS
from evergram.kinds import kinds_where
from evergram.lineage.disk.manifest import EncoderRecord
from evergram.lineage.sampled_metrics import sample_sentence, standard_errors, with_error
from evergram.retrieval.pretrained.encoder_folder import EncoderFacts


def model_card(record: EncoderRecord, facts: EncoderFacts, metrics: Mapping[str, Any]) -> str:
    """Return a model card in Markdown, with its facts and metrics as they were published."""
    sides = "\n".join(
        f"| {side} | {', '.join(f'`{name}`' for name in inputs)} |"
        for side, inputs in record.inputs.items()
    )
    measured = "\n".join(_measured(metrics)) or "Nothing was measured when it was published."
    return f"""---
library_name: evergram
tags:
- embeddings
- {record.kind}
---

# {facts.name}

An embedding model of kind `{record.kind}` with {facts.dim} dimensions, published on
{facts.created}. Its vectors are in the space `{facts.fingerprint}`.

```python
from evergram import PretrainedEncoder

encoder = PretrainedEncoder.from_pretrained("PATH OF THIS FOLDER")
{_calls(record)}
```

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
