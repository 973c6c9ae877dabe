"""The table [split]: which interactions a version is trained on, and which are held out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from evergram.kinds import Kinds, KindSettings, Needs, Share, Trait, traits_where

VERSIONS = [0.8, 0.9]


class SplitSettings(KindSettings):
    """The split into training, selection and test; see `evergram.data.split`."""

    @property
    def selects_by(self) -> Literal["strict", "paper"]:
        """Whether queries select or test ("strict"), or all do both, as in [BC]."""
        return "strict"

    @property
    def traits(self) -> frozenset[Trait]:
        return traits_where(
            {
                Trait.GIVEN_SPLIT: self.kind == "given",
                Trait.SEPARATE_SELECTION: self.selects_by == "strict",
            }
        )


class RandomSplit(SplitSettings):
    """`share` of the pairs are held out."""

    kind: Literal["random"] = "random"
    share: Share = 0.1


class GivenSplit(SplitSettings):
    """The test pairs are in a file; `share` of the training pairs select epochs."""

    kind: Annotated[Literal["given"], Needs(Trait.TEST_FILE, values=("given",))] = "given"
    share: Share = 0.1


class TimeSplit(SplitSettings):
    """Version n has seen versions[n] of all interactions, in order of time; or, with `last`, all
    but the last "5 %", or "7 days"."""

    kind: Literal["time"] = "time"
    versions: Annotated[list[Share], Field(min_length=1)] = Field(default=VERSIONS)
    last: str | None = None

    @model_validator(mode="after")
    def _ascending(self) -> TimeSplit:
        if sorted(set(self.versions)) != self.versions:
            raise ValueError("split.versions must be one or more ascending shares")
        if self.last is not None:
            # It imports torch, which few recipes need to be checked.
            from evergram.data.rolling_window import RollingWindow

            RollingWindow.parse(self.last)
            # By value, as the recipe that a lineage stores has every key.
            if self.versions != VERSIONS:
                raise ValueError(
                    "split.last and split.versions exclude each other: either "
                    "every version sees all but the last part, or each has a share of its own"
                )
        return self

    @property
    def ends(self) -> list[float]:
        """The start of each interval of time, and the end of the last one: as far again as the one
        before it, or the end of the data."""
        if len(self.versions) == 1:
            return [*self.versions, 1.0]
        return [*self.versions, min(1.0, 2 * self.versions[-1] - self.versions[-2])]


SPLITS: Kinds[SplitSettings] = Kinds("split", (RandomSplit, TimeSplit, GivenSplit))
