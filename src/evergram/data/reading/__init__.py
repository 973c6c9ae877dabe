"""Read tables from files and memory, with the same rules for types, times and missing cells."""
