"""Every GEMM that really runs, forward and backward, seen below autograd and named by the weight that it reads."""
