"""Rules that hold interactions out, applied block by block: `rules`."""
