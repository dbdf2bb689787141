"""What prefill and decode tell each other, beside what SGLang tells.

* `Ticket`, decode -> prefill, one more frame behind SGLang's metadata message: what decode has
  reserved (count of pages and tokens, the prompt's lineage), a nonce that decode has never used
  before, and where the page tags go.
* `Rejection`, in either direction: why a request will not be handed over, with the original
  status.
* the statement, prefill -> decode, in nine spare integers of SGLang's metadata row: how many pages
  and tokens prefill sent, under which nonce.

All three carry a keyed digest. Lengths are fixed or bounded, so nothing is parsed that was not
measured first.
"""

import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass

MAGIC = b"CFDG\x03"
_TICKET = struct.Struct("<5sBQIIIIQIHHH32s")
_REJECT = struct.Struct("<5sBHH")
_MAC = 16
_MAX_MESSAGE = 2048
KIND_TICKET = 1
KIND_REJECT = 2

# Where in `cached_tokens` (sixteen int32, 7..15 unused by the engine) the statement lies.
STATEMENT = slice(7, 16)
_STATEMENT_MAGIC = 0x43464401


class Malformed(Exception):
    """A frame that says it is ours and is not."""


def mac(key: bytes, *parts: bytes) -> bytes:
    """Keyed digest over parts, each preceded by its length."""
    digest = hashlib.blake2b(key=key, digest_size=_MAC)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def fresh_nonce() -> int:
    """63 random bits, never zero: zero is what an unwritten tag holds."""
    return secrets.randbits(63) | 1


@dataclass(frozen=True)
class Ticket:
    """Leave to write: these pages, this prompt, this nonce, and the tags there."""

    room: int
    nonce: int
    pages: int
    tokens: int
    prefix: int
    page_size: int
    tag_base: int
    tag_stride: int
    lineage: bytes
    # Whose share of each page this is.
    rank: int = 0
    ranks: int = 1
    # Which of prefill's data-parallel ranks decode has asked.
    asked: int = 0

    def encode(self, key: bytes) -> bytes:
        body = _TICKET.pack(
            MAGIC,
            KIND_TICKET,
            self.nonce,
            self.pages,
            self.tokens,
            self.prefix,
            self.page_size,
            self.tag_base,
            self.tag_stride,
            self.rank,
            self.ranks,
            self.asked,
            self.lineage,
        )
        return body + mac(key, b"ticket", self.room.to_bytes(8, "little"), body)


@dataclass(frozen=True)
class Rejection:
    """This room will not be handed over, and what the client is to be told."""

    room: int
    status: int
    message: str

    def encode(self, key: bytes) -> bytes:
        text = self.message.encode("utf-8")[:_MAX_MESSAGE]
        body = _REJECT.pack(MAGIC, KIND_REJECT, self.status, len(text)) + text
        return body + mac(key, b"reject", self.room.to_bytes(8, "little"), body)


def is_ours(frame: bytes) -> bool:
    """Whether a frame was written by a guard."""
    return frame[: len(MAGIC)] == MAGIC


def decode(frame: bytes, room: int, key: bytes) -> "Ticket | Rejection":
    """The ticket or rejection in a frame; raises `Malformed`."""
    if len(frame) < len(MAGIC) + 1 + _MAC or not is_ours(frame):
        raise Malformed(f"a guard's frame of {len(frame)} bytes")
    body, given = frame[:-_MAC], frame[-_MAC:]
    kind = body[len(MAGIC)]
    label = {KIND_TICKET: b"ticket", KIND_REJECT: b"reject"}.get(kind)
    if label is None:
        raise Malformed(f"a guard's frame of unknown kind {kind}")
    if not hmac.compare_digest(given, mac(key, label, room.to_bytes(8, "little"), body)):
        raise Malformed(
            "a guard's frame with a wrong digest: "
            "do both sides have the same COFFERDAM_GUARD_SECRET?"
        )
    if kind == KIND_TICKET:
        if len(body) != _TICKET.size:
            raise Malformed(f"a ticket of {len(body)} bytes, expected {_TICKET.size}")
        _, _, *numbers, rank, ranks, asked, lineage = _TICKET.unpack(body)
        return Ticket(room, *numbers, lineage, rank, ranks, asked)
    _, _, status, length = _REJECT.unpack_from(body)
    text = body[_REJECT.size :]
    if len(text) != length:
        raise Malformed(f"a rejection with {len(text)} bytes of text, expected {length}")
    return Rejection(room, status, text.decode("utf-8", "replace"))


def statement(key: bytes, room: int, nonce: int, pages: int, tokens: int) -> list[int]:
    """Nine integers for the metadata row: sent so many pages of so many tokens under this nonce."""
    head = struct.pack("<iii", _STATEMENT_MAGIC, pages, tokens)
    body = head + struct.pack("<Q", nonce)
    seal = mac(key, b"statement", room.to_bytes(8, "little"), body)
    return list(struct.unpack("<9i", body + seal))


@dataclass(frozen=True)
class Stated:
    """What a metadata row says that prefill sent."""

    nonce: int
    pages: int
    tokens: int


def read_statement(key: bytes, room: int, values: list[int]) -> Stated | None:
    """The statement in nine integers; none when there is none or it is not from our peer."""
    raw = struct.pack("<9i", *values)
    body, given = raw[:20], raw[20:]
    magic, pages, tokens, nonce = struct.unpack("<iiiQ", body)
    if magic != _STATEMENT_MAGIC:
        return None
    if not hmac.compare_digest(given, mac(key, b"statement", room.to_bytes(8, "little"), body)):
        return None
    return Stated(nonce, pages, tokens)
