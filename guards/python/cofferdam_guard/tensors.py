"""Tags, step checks and checksums on plain tensors.

The same few lines serve numpy (tests), torch on a CPU and torch on CUDA: index, compare, multiply,
sum. No kernel of ours, no attention backend, and no synchronisation with the device: results are
tensors, and whoever uses them reads them together with the step's own output.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .core import Secret

_LOW_32 = 0xFFFFFFFF
# Odd multipliers of a 64-bit finaliser, as signed 64-bit numbers.
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
# Bytes of products that one piece of a checksum may need at once.
_PIECE_BYTES = 64 << 20


def _torch() -> Any:
    """torch if somebody has imported it already: the guard itself never does."""
    return sys.modules.get("torch")


def is_torch(array: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(array, torch.Tensor)


class TagTable:
    """The present tag of every block, as a tensor beside the KV cache.

    Block numbers and tags come from the ledger (``core.Ledger``), which alone mints tags. A block
    without a tag stands as -1, which nobody ever expects.
    """

    def __init__(self, blocks: int, like: Any = None) -> None:
        if like is not None and is_torch(like):
            torch = _torch()
            self.tags = torch.full((blocks,), -1, dtype=torch.int64, device=like.device)
        else:
            self.tags = np.full(blocks, -1, dtype=np.int64)

    def set(self, blocks: Sequence[int], tags: Sequence[int]) -> None:
        """These blocks stand under these tags from now on (0: under none)."""
        if not len(blocks):
            return
        at = np.asarray(list(blocks), dtype=np.int64)
        to = np.asarray(list(tags), dtype=np.int64)
        to[to == 0] = -1
        if is_torch(self.tags):
            at, to = to_device(at, self.tags.device), to_device(to, self.tags.device)
        self.tags[at] = to

    def stale(self, block_table: Any, expected: Any, used: Any) -> Any:
        """How many entries of each sequence name a block under another tag than expected.

        ``block_table`` and ``expected`` are [sequences, entries] (block numbers, tags), ``used`` is
        [sequences]: entries beyond it are not looked at. Gives [sequences] counts on the same
        device, unread: a sequence with a count above 0 must not release its token.
        """
        entries, last = block_table.shape[1], self.tags.shape[0] - 1
        if is_torch(self.tags):
            torch = _torch()
            places = torch.arange(entries, device=self.tags.device)
            # Entries behind `used` may hold anything: made harmless here, not counted below.
            blocks = block_table.clamp(0, last).reshape(-1)
            present = self.tags.index_select(0, blocks).reshape(block_table.shape)
        else:
            places = np.arange(entries)
            present = self.tags.take(block_table, mode="clip")
        wrong = present != expected
        # A number that names no block at all is wrong wherever it is used.
        wrong |= (block_table < 0) | (block_table > last)
        wrong &= places[None, :] < used[:, None]
        return wrong.sum(1)


class BlockSums:
    """64-bit checksums of whole blocks over all layers, the same on CPU and CUDA.

    Each layer's bytes are read as 32-bit words and multiplied with secret odd 64-bit coefficients,
    the products summed modulo 2**64 (multilinear hashing); the layers' sums are mixed with the
    layer's number and added. A single changed word or layer is always noticed, any other change
    with a chance of at most 2**-32 of being missed by somebody who does not know the secret.

    Chosen over CRC-32C (what Cofferdam's own engine uses) because it can be made of tensor
    operations that every device has, so nothing is copied to the host and no kernel is compiled;
    and because its coefficients are secret. In the memory of a CPU, where tensor operations would
    go over every byte several times, the same sums come from one loop in Rust.
    """

    def __init__(self, secret: Secret, layers: Sequence[Any], block_dims: Sequence[int] | int = 0):
        """``layers`` are the KV tensors; dimension ``block_dims`` of each counts the blocks."""
        if not layers:
            raise ValueError("no KV tensors")
        dims = [block_dims] * len(layers) if isinstance(block_dims, int) else list(block_dims)
        self.layers = [
            layer.movedim(dim, 0) if is_torch(layer) else np.moveaxis(layer, dim, 0)
            for layer, dim in zip(layers, dims, strict=True)
        ]
        sizes = [_block_bytes(layer) for layer in self.layers]
        self.block_bytes = sum(sizes)
        self.blocks = self.layers[0].shape[0]
        words = max(size // _word_bytes(size) for size in sizes)
        self._on_cpu = not is_torch(self.layers[0]) or self.layers[0].device.type == "cpu"
        self._summer = secret.summer(words)
        coefficients = np.frombuffer(secret.coefficients(words), dtype="<i8").copy()
        if is_torch(self.layers[0]):
            torch = _torch()
            self.coefficients = torch.from_numpy(coefficients).to(self.layers[0].device)
        else:
            self.coefficients = coefficients

    def of(self, blocks: Sequence[int]) -> Any:
        """Checksums of these blocks in order, as a tensor of int64 on the layers' device."""
        return self.in_rust(blocks) if self._on_cpu else self.in_tensors(blocks)

    def in_rust(self, blocks: Sequence[int]) -> Any:
        """For layers in the memory of a CPU."""
        total = np.zeros(len(blocks), dtype=np.int64)
        at = np.asarray(list(blocks), dtype=np.int64)
        for number, layer in enumerate(self.layers):
            if not len(at):
                break
            size = _block_bytes(layer)
            if is_torch(layer):
                torch = _torch()
                gathered = layer[torch.from_numpy(at)].contiguous().view(torch.uint8).numpy()
            else:
                gathered = np.ascontiguousarray(layer[at])
            sums = np.frombuffer(self._summer.of(gathered.tobytes(), size), dtype="<i8")
            total += _mix(sums, number)
        return _torch().from_numpy(total) if is_torch(self.coefficients) else total

    def in_tensors(self, blocks: Sequence[int]) -> Any:
        """The same by tensor operations, on whatever device the layers are."""
        at = np.asarray(list(blocks), dtype=np.int64)
        if is_torch(self.coefficients):
            at = to_device(at, self.coefficients.device)
            total = _torch().zeros_like(at)
        else:
            total = np.zeros_like(at)
        for number, layer in enumerate(self.layers):
            size = _block_bytes(layer)
            step = max(1, _PIECE_BYTES // (2 * size + 1))
            for start in range(0, len(at), step):
                piece = _words(layer[at[start : start + step]], size)
                sums = (piece * self.coefficients[: piece.shape[1]]).sum(1)
                total[start : start + step] += _mix(sums, number)
        return total


class Unread:
    """Integers on their way from the device to the host. On a CPU they are there at once; from CUDA
    they are copied, behind what computes them, into pinned memory, with an event to say when: so
    nobody waits for the device who would not have waited anyway."""

    def __init__(self, values: Any) -> None:
        self._event = None
        if is_torch(values) and values.is_cuda:
            torch = _torch()
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            host.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
            values = host
        self._values = values

    def ready(self) -> bool:
        """Whether reading would wait for nothing."""
        return self._event is None or self._event.query()

    def read(self) -> list[int]:
        """The integers. Waits if need be: call it where the step's own output is read, or when
        ``ready``."""
        if self._event is not None:
            self._event.synchronize()
        return self._values.tolist()


def unsigned(values: Sequence[int]) -> list[int]:
    """Checksums as unsigned 64-bit numbers."""
    return [value & 0xFFFFFFFFFFFFFFFF for value in values]


def to_device(numbers: np.ndarray, device: Any) -> Any:
    """A tensor of these numbers. From pinned memory where the device has streams: a copy from pageable memory would wait for
    everything that the device has been given before."""
    tensor = _torch().from_numpy(numbers)
    if device.type != "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _block_bytes(layer: Any) -> int:
    one = layer[0]
    if is_torch(one):
        return one.numel() * one.element_size()
    return one.nbytes


def _word_bytes(size: int) -> int:
    return 4 if size % 4 == 0 else 2 if size % 2 == 0 else 1


def _words(blocks: Any, size: int) -> Any:
    """[blocks, words] signed integers over the bytes of each block, in logical order."""
    width = _word_bytes(size)
    if is_torch(blocks):
        torch = _torch()
        kind = {4: torch.int32, 2: torch.int16, 1: torch.int8}[width]
        return blocks.reshape(blocks.shape[0], -1).contiguous().view(torch.uint8).view(kind)
    kind = {4: "<i4", 2: "<i2", 1: "i1"}[width]
    words = np.ascontiguousarray(blocks).reshape(blocks.shape[0], -1).view(np.uint8).view(kind)
    return words.astype(np.int64)


def _mix(sums: Any, number: int) -> Any:
    """A bijection of 64-bit numbers, another for each layer."""
    x = sums ^ _signed((number + 1) * 0x9E3779B97F4A7C15)
    x = (x ^ ((x >> 32) & _LOW_32)) * _MIX_1
    x = (x ^ ((x >> 29) & ((1 << 35) - 1))) * _MIX_2
    return x ^ ((x >> 32) & _LOW_32)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value
