"""Reading the files of checkpoints: headers first, bytes on demand, nothing executed."""

from fp8debug.analysis.checkpoint.store.base import BITS, CHUNK_BYTES, Store, n_bytes_of
from fp8debug.analysis.checkpoint.store.opening import open_store

__all__ = ["BITS", "CHUNK_BYTES", "Store", "n_bytes_of", "open_store"]
