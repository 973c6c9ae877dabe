"""Fixtures of every test of the command."""

from tests.support.command import evergram
from tests.support.serving_process import two_versions

__all__ = ["evergram", "two_versions"]
