"""GGUF files are read once a process: transformers reads one for the configuration, the tokenizer and the weights each.

Imported for that by the processes that have imported the trainers. The names of tensors, which are looked up for each
module of a model, are those of the architecture and so the same each time.
"""

from __future__ import annotations

from functools import cache

import gguf

vars(gguf).update(GGUFReader=cache(gguf.GGUFReader), get_tensor_name_map=cache(gguf.get_tensor_name_map))
