"""The fixture that every test of the command uses."""

from tests.support.command import evergram

__all__ = ["evergram"]
