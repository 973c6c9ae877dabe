"""Scores as a past version gave them: `score_map`, a monotone map with equal shares above."""
