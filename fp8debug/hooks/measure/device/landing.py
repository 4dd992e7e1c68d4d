"""Numbers on their way from a device to the host: copied on a side stream, read on a thread of ours.

The side stream waits for the kernels by an event, so the tensor's own stream waits for nothing. The numbers on the
device are held until their copy has arrived: only then may the allocator, which knows of the tensor's stream alone,
give their memory to somebody else. Then nothing is kept.

At most `LIMIT_BYTES` are under way. Beyond that whoever sends one more waits until an older one is read; by then the
device has the work of some sixty tensors ahead, so it does not run dry, and the host could not have run much further.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fp8debug.hooks.measure.device.tally import Reading

LIMIT_BYTES = 32 << 20
_TYPICAL_BYTES = 10_000 * 12
"""A histogram's values and counts: tensors have 5,000 to 10,000 distinct values."""

Read = Callable[[npt.NDArray[np.int64]], Reading]
"""Turns numbers on the host into a reading; the array is used again afterwards."""


class Arriving:
    """A reading that may still be on its way."""

    def __init__(self, future: Future[Reading], n_bytes: int) -> None:
        self._future = future
        self.n_bytes = n_bytes
        """Rough memory that the reading will have, in bytes."""

    @property
    def is_here(self) -> bool:
        """Whether it has arrived, so that reading it waits for nothing."""
        return self._future.done()

    def reading(self) -> Reading:
        """The reading, waited for; raises what went wrong on the way."""
        return self._future.result()


class Landing:
    """Where the numbers of one device arrive; safe to call from several threads."""

    def __init__(self, device: torch.device, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._under_way = 0
        self._room = threading.Condition()
        self._free: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        """Pinned vectors that nobody uses, by length: pinning anew would stop the device."""
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="fp8debug-device")
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._side: Any = None if self._module is None else self._module.Stream(device=device)

    def send(self, numbers: torch.Tensor, read: Read) -> Arriving:
        """Start the copy of `numbers`, int64 (n,), which the current stream makes; nobody may change them later."""
        n_bytes = numbers.nbytes
        with self._room:
            self._room.wait_for(lambda: not self._under_way or self._under_way + n_bytes <= self._limit_bytes)
            self._under_way += n_bytes
            free = self._free[numbers.numel()]
            host = free.pop() if free else None
        try:
            if host is None:
                host = torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=self._side is not None)
            arrived = self._copy(numbers, host)
            future = self._reader.submit(self._read, numbers, host, arrived, read)
        except BaseException:
            self._let_go(n_bytes)
            raise
        return Arriving(future, min(_TYPICAL_BYTES, n_bytes))

    def _copy(self, numbers: torch.Tensor, host: torch.Tensor) -> Any:
        """Returns the event of the copy's end; None where it has ended."""
        if self._side is None:
            host.copy_(numbers)
            return None
        self._side.wait_stream(self._module.current_stream(numbers.device))
        with self._module.stream(self._side):
            host.copy_(numbers, non_blocking=True)
            return self._side.record_event()

    def _read(self, numbers: torch.Tensor, host: torch.Tensor, arrived: Any, read: Read) -> Reading:
        """On the reader's thread; `numbers` are an argument only to be held until then."""
        try:
            if arrived is not None:
                arrived.synchronize()
            return read(host.numpy())
        finally:
            self._let_go(numbers.nbytes, host)

    def _let_go(self, n_bytes: int, host: torch.Tensor | None = None) -> None:
        with self._room:
            self._under_way -= n_bytes
            if host is not None:
                self._free[host.numel()].append(host)
            self._room.notify()
