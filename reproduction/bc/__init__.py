"""The experiments of [BC]: rows of the list, and the figures that the paper prints."""
