"""The commands of `evergram store`: stores that hold embeddings."""

from evergram.cli.stores import filling, searches

from evergram.cli.stores import backfills  # isort: skip  (after fill, index and check in the help)

__all__ = ["backfills", "filling", "searches"]
