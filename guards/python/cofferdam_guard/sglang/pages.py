"""Page tags and page sums, in plain tensors: the same code for CPU and CUDA.

A tag is a row of eight 64-bit integers in a table of its own that decode registers with the
transfer engine; prefill writes it right behind the page's bytes, in the same batch. It says under
which nonce the page was written, which page of how many it is, in which room, and what the page's
bytes sum to; the last word seals the others.

The arithmetic is 64-bit and wraps. It is keyed, not cryptographic: it finds accidents and strangers
with a chance of error of 2^-63, and not somebody who may write into the process's memory anyway.
"""

from dataclasses import dataclass

import numpy as np
import torch

from ..tensors import BlockSums, to_device

WORDS = 8
STRIDE = WORDS * 8
NONCE, PLACE, ROOM, SUM, SEAL = range(5)

_LOW32 = 0xFFFFFFFF
_C1 = -0x61C8864680B583EB  # odd constants, as signed 64-bit integers
_C2 = -0x4B47D0C5A1BDDA1B

# Why a page was refused, in the order in which they are told.
OK, UNWRITTEN, FOREIGN, MISPLACED, TORN, ALTERED = range(6)
REASONS = ("ok", "unwritten", "foreign", "misplaced", "torn", "altered")


class Unreachable(Exception):
    """Memory that is to be transferred and that the guard cannot read."""


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = x * _C1
    x = x ^ ((x >> 32) & _LOW32)
    x = x * _C2
    return x ^ ((x >> 29) & 0x7FFFFFFFF)


class KvBytes:
    """All buffers that SGLang transfers, as rows of 64-bit words, one row a page."""

    def __init__(self, kv_args, pools, secret):
        by_pointer = {}
        for pool in pools:
            for name in ("k_buffer", "v_buffer", "kv_buffer"):
                for tensor in getattr(pool, name, None) or []:
                    by_pointer[tensor.data_ptr()] = tensor
        self.rows: list[torch.Tensor] = []
        for pointer, length, item in zip(
            kv_args.kv_data_ptrs, kv_args.kv_data_lens, kv_args.kv_item_lens
        ):
            if item % 8:
                raise Unreachable(f"a page of {item} bytes a buffer is no multiple of eight")
            pages = length // item
            tensor = by_pointer.get(pointer)
            if tensor is None:
                raise Unreachable("a transferred buffer that belongs to no known KV pool")
            flat = tensor.detach().view(torch.uint8).reshape(-1)
            if flat.data_ptr() != pointer:
                raise Unreachable("a KV buffer that is not contiguous")
            self.rows.append(flat[: pages * item].view(pages, item).view(torch.int64))
        if not self.rows:
            raise Unreachable("no KV buffers: nothing to guard")
        self.pages = self.rows[0].shape[0]
        if any(rows.shape[0] != self.pages for rows in self.rows):
            raise Unreachable("KV buffers with different numbers of pages")
        self.device = self.rows[0].device
        self._sums = BlockSums(secret, self.rows)

    def sums(self, pages: list[int]) -> torch.Tensor:
        """One 64-bit sum a page over all of its bytes in all buffers; waits for no device."""
        return self._sums.of(pages)

    def zero(self, pages: torch.Tensor) -> None:
        """Wipes pages, for readers of pages that nobody will write."""
        for rows in self.rows:
            rows.index_fill_(0, pages, 0)


def key_words(key: bytes) -> tuple[int, int]:
    """Two signed 64-bit words of key for the seals."""
    from . import wire

    raw = wire.mac(key, b"page seal")
    return tuple(int.from_bytes(raw[i : i + 8], "little", signed=True) for i in (0, 8))


@dataclass
class Tags:
    """The rows that one handoff's pages must carry."""

    key: tuple[int, int]
    nonce: int
    room: int
    count: int

    def rows(self, first: int, sums: torch.Tensor) -> torch.Tensor:
        """Rows of pages `first..` of this handoff."""
        n, device = sums.shape[0], sums.device
        rows = torch.zeros((n, WORDS), dtype=torch.int64, device=device)
        rows[:, NONCE] = self.nonce
        ordinals = torch.arange(first, first + n, dtype=torch.int64, device=device)
        rows[:, PLACE] = (ordinals << 32) | self.count
        rows[:, ROOM] = self.room
        rows[:, SUM] = sums
        rows[:, SEAL] = self._seal(rows)
        return rows

    def _seal(self, rows: torch.Tensor) -> torch.Tensor:
        x = _mix(rows[:, NONCE] ^ self.key[0])
        x = _mix(x + rows[:, PLACE])
        x = _mix(x ^ rows[:, ROOM])
        return _mix(x + rows[:, SUM]) ^ self.key[1]

    def judge(self, rows: torch.Tensor, sums: torch.Tensor | None) -> torch.Tensor:
        """One reason a page (`OK` when it is what it should be); nothing waits for a device."""
        n, device = rows.shape[0], rows.device
        reason = torch.zeros(n, dtype=torch.int8, device=device)
        if sums is not None:
            reason = reason.masked_fill(rows[:, SUM] != sums, ALTERED)
        reason = reason.masked_fill(rows[:, SEAL] != self._seal(rows), TORN)
        ordinals = torch.arange(n, dtype=torch.int64, device=device)
        reason = reason.masked_fill(rows[:, PLACE] != ((ordinals << 32) | self.count), MISPLACED)
        stranger = (rows[:, NONCE] != self.nonce) | (rows[:, ROOM] != self.room)
        reason = reason.masked_fill(stranger, FOREIGN)
        unwritten = (rows[:, NONCE] == 0) & (rows[:, SEAL] == 0)
        reason = reason.masked_fill(unwritten, UNWRITTEN)
        return reason


class TagTable:
    """Decode's table of tags, one row a page, written by prefill."""

    def __init__(self, pages: int, device):
        self.rows = torch.zeros((pages, WORDS), dtype=torch.int64, device=device)

    @property
    def region(self) -> tuple[int, int]:
        """Address and length in bytes, for the transfer engine."""
        return self.rows.data_ptr(), self.rows.numel() * 8

    def clear(self, pages: torch.Tensor) -> None:
        """No tag of an earlier reader may be taken for one of the next."""
        self.rows.index_fill_(0, pages, 0)

    def stamp(self, pages: torch.Tensor, nonces: torch.Tensor) -> None:
        """Pages that decode writes itself carry their reader's nonce."""
        self.rows[pages] = 0
        self.rows[pages, NONCE] = nonces

    def owners(self, pages: torch.Tensor) -> torch.Tensor:
        """Under which nonce each page was last written; any shape of indices."""
        return self.rows[:, NONCE][pages]


def page_tensor(indices, device) -> torch.Tensor:
    """SGLang's page indices (numpy or tensor, 32-bit) as 64-bit indices on the device."""
    if isinstance(indices, torch.Tensor):
        return indices.to(device=device, dtype=torch.int64)
    return to_device(np.ascontiguousarray(indices, dtype=np.int64), torch.device(device))


def runs(indices) -> list[tuple[int, int, int]]:
    """(offset, first page, pages) of each stretch of pages that follow one another."""
    pages = np.asarray(indices, dtype=np.int64)
    if not len(pages):
        return []
    cuts = np.flatnonzero(np.diff(pages) != 1) + 1
    starts = np.concatenate(([0], cuts))
    ends = np.concatenate((cuts, [len(pages)]))
    return [(int(a), int(pages[a]), int(b - a)) for a, b in zip(starts, ends)]
