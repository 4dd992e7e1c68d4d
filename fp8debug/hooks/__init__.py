"""Capture: from a training's tensors to Parquet parts. Knows torch and pyarrow, and nothing of analysis."""
