"""Read tables from files and from memory by one set of rules for types, times and missing cells."""
