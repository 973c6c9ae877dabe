"""An object described by its features, for encoders to embed without a store."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidatorFunctionWrapHandler,
    field_validator,
)

Int64 = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
LONGEST_VALUE = 1024
Text = Annotated[StrictStr, Field(max_length=LONGEST_VALUE)]
Id = Int64 | Text
# Features of one object.
MOST_FEATURES = 256


class Features(BaseModel):
    """An object that an encoder embeds on the spot.

    Args:
        features: feature name to a number, a time as text, a key or several; null is missing.
        id: the object's id, which the encoder uses where it knows it; no store is asked for it.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False
    )

    features: Annotated[
        dict[str, Id | StrictFloat | Annotated[list[Id], Field(fail_fast=True)] | None],
        Field(max_length=MOST_FEATURES),
    ]
    id: Id | None = None

    @field_validator("features", mode="wrap")
    @classmethod
    def _stop_at_first_error(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        """Validate only the first wrong feature of many.

        The errors of all would take far more memory than the features themselves.
        """
        if isinstance(value, dict):
            if len(value) > MOST_FEATURES:
                raise ValueError(f"an object has at most {MOST_FEATURES} features")
            for name, keys in value.items():
                if type(keys) not in (int, float, str, list, type(None)):
                    return check({name: keys})
        return check(value)
