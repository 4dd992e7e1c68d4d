"""A stand-in for Transformer Engine: its names, its debug protocol and its FP8 state, with arithmetic on the CPU.

Written for tests from what its public sources do; none of its code is in here.
"""
