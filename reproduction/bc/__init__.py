"""The experiments of [BC], one file per table or figure."""
