"""Better than chance: it needs moments alone, so it lives with them, in `compatibility.chance`."""

from __future__ import annotations

from evergram.compatibility.chance import Chance, beside_chance

__all__ = ["Chance", "beside_chance"]
