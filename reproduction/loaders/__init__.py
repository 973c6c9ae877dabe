"""Loaders that only the papers' experiments need: Amazon reviews and Wikispeedia.

Each is an extension as described in docs/extend/loader.md; importing `reproduction` registers them
for recipes. Importing this module does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from evergram.data.loaders import LOADERS, PathData
from evergram.kinds import Positive

if TYPE_CHECKING:
    from evergram.data.corpus import Corpus


class AmazonData(PathData):
    """Amazon reviews, with their metadata in the same folder; see `amazon.load_amazon`."""

    kind: Literal["amazon"] = "amazon"
    minimum_products: Positive = 1
    described_only: bool = False

    def load(self, seed: int) -> Corpus:
        from reproduction.loaders.amazon import load_amazon

        return load_amazon(
            self.source,
            minimum_products=self.minimum_products,
            described_only=self.described_only,
        )


class WikispeediaData(PathData):
    """The folder of Wikispeedia; see `wikispeedia.load_wikispeedia`."""

    kind: Literal["wikispeedia"] = "wikispeedia"

    def load(self, seed: int) -> Corpus:
        from reproduction.loaders.wikispeedia import load_wikispeedia

        return load_wikispeedia(self.source)


LOADERS |= {"amazon": AmazonData, "wikispeedia": WikispeediaData}
