"""Ranks merged into one training: which record stands for each piece of a tensor, and the scales that ranks share.

Nothing here runs in a training: ranks never talk to each other, they are merged when a run is read.
"""
