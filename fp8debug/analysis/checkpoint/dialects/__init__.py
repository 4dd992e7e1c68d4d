"""Conventions of writing quantised checkpoints, one file of data each."""
