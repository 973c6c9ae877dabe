"""Readings, i.e. measurements taken while a training runs, one file each."""
