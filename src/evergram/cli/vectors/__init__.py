"""The commands of `evergram vectors`, for files of vectors, whatever model made them."""

from evergram.cli.vectors import alignments, encoding, files, finishing, migrations, sidecars

__all__ = ["alignments", "encoding", "files", "finishing", "migrations", "sidecars"]
