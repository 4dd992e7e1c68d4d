"""A run as a page shows it: planes of metrics over layers and steps, curves, distributions, queries."""
