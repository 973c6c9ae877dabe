"""Fixtures of files: the command."""

from tests.support.command import evergram

__all__ = ["evergram"]
