"""Apply a view to whole tables in engines that run elsewhere: `arrow_function`, `id_lookup`."""
