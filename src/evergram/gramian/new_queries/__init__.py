"""A new query's vector, from the candidates that it met and a Gramian, without training."""
