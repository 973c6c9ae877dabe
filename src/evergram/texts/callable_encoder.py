"""Any Python function as an encoder of text."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt

from evergram.errors import DataError
from evergram.texts.text_encoder import Prompts, TextEncoder, after_prompt

BATCH = 256
_PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", re.ASCII)


class CallableEncoder(TextEncoder):
    """A function that takes a list of texts and returns an array [n, D].

    Args:
        place: "package.module:function"; a module of the current folder will do.
        prompts: put before each text.
    Raises: DataError: there is no such function, or its module cannot be imported.
    """

    plain_prompts: ClassVar[bool] = True

    def __init__(self, place: str, prompts: Prompts | None = None) -> None:
        if not _PLACE.fullmatch(place):
            raise DataError(f"python:{place} is no function; write python:package.module:function.")
        name, _, attribute = place.partition(":")
        here = str(Path.cwd())
        if here not in sys.path and "" not in sys.path:
            sys.path.append(here)
        try:
            function: Any = getattr(import_module(name), attribute)
        except (ImportError, AttributeError) as error:
            raise DataError(
                f"python:{place} cannot be imported: {str(error).rstrip('.')}; name a function of "
                "a module that is installed, or that lies in this folder."
            ) from error
        except Exception as error:  # of whatever the module does when it is imported
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".: ")
            raise DataError(
                f"python:{place} cannot be imported, as the module fails: {why}; correct it."
            ) from error
        if not callable(function):
            raise DataError(f"python:{place} is no function; it is a {type(function).__name__}.")
        self._function: Callable[[list[str]], npt.ArrayLike] = function
        super().__init__(f"python:{place}", prompts or Prompts(), BATCH)

    def _encode(self, texts: Sequence[str], prompt: str) -> npt.ArrayLike:
        return self._function(after_prompt(texts, prompt))
