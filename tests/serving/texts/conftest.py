"""The command."""

from tests.support.command import evergram

__all__ = ["evergram"]
