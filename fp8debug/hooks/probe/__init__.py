"""The GEMM probe: what the result of a GEMM loses, on a sample of its rows and columns."""
