"""Apply a view to whole tables in engines that run elsewhere: `arrow_function`, `id_lookup`; give its
vectors to MLflow (`mlflow_model`) and to Feast (`feast_source`)."""
