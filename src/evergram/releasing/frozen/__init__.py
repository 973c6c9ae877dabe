"""Upgrades that keep the model of the version before and apply it to new data: nothing is trained,
so the version has vectors only of objects that the model knows."""
