"""A run while it is being written: what is known of it now, read from its newest files alone."""

from fp8debug.analysis.live.follow import Follower
from fp8debug.analysis.live.records import LiveEvent, LiveOperand, LiveStep, NonFinite, Snapshot, Waiting

__all__ = ["Follower", "LiveEvent", "LiveOperand", "LiveStep", "NonFinite", "Snapshot", "Waiting"]
