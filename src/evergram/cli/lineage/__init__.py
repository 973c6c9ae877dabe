"""The commands of `evergram lineage`: its versions, and which of them may be read."""

from evergram.cli.lineage import releases, versions

__all__ = ["releases", "versions"]
