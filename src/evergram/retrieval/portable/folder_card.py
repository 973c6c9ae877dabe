"""The README.md of an exported folder of sentence-transformers, in place of the encoder's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evergram.retrieval.portable.affine_map import AffineMap
from evergram.retrieval.pretrained.model_card import CardPlace

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
