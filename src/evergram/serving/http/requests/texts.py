"""Whether the strings of a request are texts to encode, and which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evergram.lineage.lineage import Lineage
from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.requests.schemas import LONGEST_ID, EmbeddingsOptions
from evergram.serving.object_features import Features
from evergram.serving.settings import ServiceSettings
from evergram.texts.text_encoder import Role


def strings_are_texts(lineage: Lineage) -> bool:
    """Return whether strings are texts where a request does not say.

    The first version decides, so that nothing that is published later changes what a client sends.
    """
    return lineage.versions[0].text_encoder is not None


def text_role(
    inputs: Any, options: EmbeddingsOptions, lineage: Lineage, settings: ServiceSettings
) -> Role | None:
    """Return whether the inputs of a request are queries or documents; None if they are ids, or
    objects with features.

    Args:
        inputs: a list of one kind, or the ids of an Arrow stream.
    Raises: RefusedError: a text is empty or too long; or whole numbers were sent where texts are
        expected; or a side was said of texts; or ids are too long.
    """
    if not isinstance(inputs, list) or isinstance(inputs[0], Features):
        if options.input_type in ("query", "document"):
            what = "texts are sent as strings in JSON; leave 'input_type' out."
            raise RefusedError(400, "request", f"'input' holds no texts: {what}", "input_type")
        return None
    strings = isinstance(inputs[0], str)
    role = options.input_type
    if role is None:
        role = "document" if strings_are_texts(lineage) else "id"
    if role == "id":
        if strings and max(map(len, inputs)) > LONGEST_ID:
            what = f"an id has at most {LONGEST_ID} characters; a longer one was sent."
            raise RefusedError(400, "request", f"'input' is wrong: {what}", "input")
        return None
    if not strings:
        raise RefusedError(
            400,
            "request",
            "'input' holds whole numbers, and texts are expected: tokens belong to one model's "
            "tokenizer, so send the texts themselves; for ids, set 'input_type' to 'id'.",
            "input",
        )
    if options.side is not None:
        raise RefusedError(
            400,
            "request",
            "'side' is of ids and of objects with features; for texts, say with 'input_type' "
            "whether they are a 'query' or a 'document'.",
            "side",
        )
    check_texts(inputs, settings)
    return role


def check_texts(texts: Sequence[str], settings: ServiceSettings) -> None:
    """Refuse texts that are not encoded.

    Raises: RefusedError: one is empty, of white space alone, or too long.
    """
    for number, text in enumerate(texts):
        if not text.strip():
            raise RefusedError(
                400, "request", f"'input' has an empty text at {number}; leave it out.", "input"
            )
        if len(text) > settings.max_text:
            raise RefusedError(
                413,
                "limit",
                f"The text at {number} has {len(text)} characters; at most {settings.max_text} are "
                "encoded. Cut it into parts.",
                "input",
            )
