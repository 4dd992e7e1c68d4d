"""The same records as one self-contained page: no network, opens from disk."""
