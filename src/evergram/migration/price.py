"""What encoding costs: a file of rates, with tokens and speed measured on sample texts."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from evergram.data.reading.interactions import read_texts
from evergram.errors import DataError
from evergram.lineage.record import StrictRecord
from evergram.texts.addresses import open_text_encoder
from evergram.texts.text_encoder import TextEncoder, after_prompt
from evergram.validation import sentence_of

# Bytes of UTF-8 per token without a tokenizer; most sample texts; seconds to measure an encoder.
BYTES_A_TOKEN, MOST_TEXTS, SECONDS = 4, 20_000, 20.0
Count = Annotated[int, Field(gt=0, le=10**12)]
Rate = Annotated[float, Field(gt=0, le=1e12)]
Price = Annotated[float, Field(ge=0, le=1e12)]


class Rates(StrictRecord):
    """The size of a collection, and what encoding it costs, in the currency of the prices."""

    # All texts, and different queries until these are encoded; by default those of the plan.
    texts: Count | None = None
    queries: Count | None = None
    # A file of texts on which the new model, by its address, is measured.
    sample: str | None = None
    encoder: str | None = None
    # If given, these are not measured.
    tokens_per_text: Rate | None = None
    texts_per_second: Rate | None = None
    # If both are given, both are paid.
    price_per_million_tokens: Price | None = None
    price_per_hour: Price | None = None

    @model_validator(mode="after")
    def _enough(self) -> Self:
        counted = self.tokens_per_text or self.sample
        timed = self.texts_per_second or (self.encoder and self.sample)
        if self.encoder and not self.sample:
            raise ValueError("encoder needs the key sample, a file of texts")
        if self.price_per_million_tokens is not None and not counted:
            raise ValueError("price_per_million_tokens needs the key tokens_per_text or sample")
        if self.price_per_hour is not None and not timed:
            raise ValueError("price_per_hour needs the key texts_per_second, or encoder and sample")
        return self

    @classmethod
    def load(cls, path: Path) -> Rates:
        """Read a TOML file; its `sample` is relative to its folder. Raises: DataError: it is not
        valid. OSError: it cannot be read."""
        try:
            rates = cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            raise DataError(f"{path}: {sentence_of(error, cls)}") from None
        except (UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError) as error:
            raise DataError(f"{path} is not TOML (docs/migrate.md): {error}.") from error
        sample = rates.sample and str(path.parent / rates.sample)
        return rates.model_copy(update={"sample": sample})


def measure_rates(rates: Rates, texts: int) -> dict[str, Any]:
    """Return the rates, by default for this number of texts, with `tokens_per_text` and
    `texts_per_second` measured if need be, and how in `tokens_by` and `speed_by`.

    Raises: DataError, ServiceError: the rates are of fewer texts; the sample or the encoder fails.
    """
    known: dict[str, Any] = {"texts": texts, **rates.model_dump(exclude_none=True)}
    if known["texts"] < texts:
        raise DataError(f"The key texts of the rates is {rates.texts}; {texts} texts have vectors.")
    if rates.sample is None:
        return known
    sample = read_texts(Path(rates.sample))[1]
    sample = Random(0).sample(sample, min(MOST_TEXTS, len(sample)))
    encoder = None if rates.encoder is None else open_text_encoder(rates.encoder)
    if rates.tokens_per_text is None:
        count, known["tokens_by"] = _tokens(encoder, sample)
        known["tokens_per_text"] = count / len(sample)
    if encoder is not None and rates.texts_per_second is None:
        encoder.encode(sample[: encoder.batch])  # may load or compile the model
        start, done, seconds = time.perf_counter(), 0, 0.0
        while done < len(sample) and seconds < SECONDS:
            done += len(encoder.encode(sample[done : done + encoder.batch]))
            seconds = time.perf_counter() - start
        known |= {"texts_per_second": done / seconds, "speed_by": f"measured on {done} texts"}
    return known


def _tokens(encoder: TextEncoder | None, texts: list[str]) -> tuple[float, str]:
    """Count tokens of texts with the encoder's prompt, also those that it would cut off."""
    prompted = texts if encoder is None else after_prompt(texts, encoder.prompts.document)
    tokenizer: Any = None if encoder is None else encoder.tokenizer
    if not hasattr(tokenizer, "encode_batch"):
        size = sum(len(text.encode()) for text in prompted)
        return size / BYTES_A_TOKEN, f"estimated, {BYTES_A_TOKEN} bytes a token"
    own = type(tokenizer).from_str(tokenizer.to_str())  # padding and truncation are its state
    own.no_padding()
    own.no_truncation()
    count = sum(len(encoding.ids) for encoding in own.encode_batch(prompted))
    return count, f"counted in {len(texts)} texts"


def cost_of(texts: int, rates: Mapping[str, Any]) -> dict[str, float]:
    """Return `texts` and, as far as the rates say, their `tokens`, `hours` and `money`."""
    cost: dict[str, float] = {"texts": texts}
    if "tokens_per_text" in rates:
        cost["tokens"] = texts * rates["tokens_per_text"]
    if "texts_per_second" in rates:
        cost["hours"] = texts / rates["texts_per_second"] / 3600
    paid = (("tokens", "price_per_million_tokens", 1e6), ("hours", "price_per_hour", 1))
    prices = [cost[unit] / size * rates[key] for unit, key, size in paid if key in rates]
    return cost | ({"money": sum(prices)} if prices else {})
