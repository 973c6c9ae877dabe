"""Apply a view to whole tables in engines that run elsewhere: `arrow_function`.

`mlflow_model` and `feast_source` give its vectors to MLflow and to Feast.
"""
