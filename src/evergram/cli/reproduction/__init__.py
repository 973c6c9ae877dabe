"""The command `reproduce`, which runs the package `reproduction` of a `checkout`."""

from evergram.cli.reproduction import reproduce

__all__ = ["reproduce"]
