"""The engines: torch_ops everywhere, numba_engine compiled for the CPU."""
