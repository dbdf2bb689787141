"""The side channel between guards, over ZeroMQ: who moves the authenticated messages of the core.

The producer's end is one thread that answers; the consumer's end one thread that asks for many
requests at once, so that no step of an engine ever waits for the network. Sizes, times and numbers
are bounded; whoever lacks the fleet's secret gets nothing out of either end."""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Any

import zmq

from .core import GuardFault, Producer, Reference, Secret, Statement, claim_message, read_claim

# A claim is under 200 bytes; a statement over the most blocks under 4 MiB.
CLAIM_BYTES_MAX, ANSWER_BYTES_MAX = 4096, 4 << 20
# An unanswered or not yet answerable claim is repeated after this long.
RETRY_S = 0.02
# Addresses kept connected; claims in flight.
PEERS_MAX, CLAIMS_MAX = 256, 4096


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class ClaimServer:
    """The producer's end: answers claims from one rank's statements."""

    def __init__(
        self, secret: Secret, producer: Producer, host: str, port: int, lock: threading.Lock
    ) -> None:
        self._secret, self._producer, self._lock = secret, producer, lock
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, CLAIM_BYTES_MAX)
        try:
            self._socket.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as fault:
            self._socket.close(0)
            self._context.term()
            raise OSError(fault.errno, os.strerror(fault.errno)) from fault
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="cofferdam-claims", daemon=True)
        self._thread.start()

    def replace(self, producer: Producer) -> None:
        with self._lock:
            self._producer = producer

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self._socket.poll(200):
                continue
            parts = self._socket.recv_multipart()
            if len(parts) != 2:
                continue
            with self._lock:
                answer, _ = self._producer.answer(self._secret, parts[1], now_ms())
            try:
                self._socket.send_multipart([parts[0], answer], zmq.NOBLOCK)
            except zmq.ZMQError:
                continue  # the peer has gone or does not read: it asks again

    def close(self) -> None:
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(2)
        self._socket.close(0)
        self._context.term()


class _Claim:
    def __init__(self, key: str, reference: Reference, address: str, until: float) -> None:
        self.key, self.reference, self.address, self.until = key, reference, address, until
        self.nonce = os.urandom(16)
        self.since = time.monotonic()
        self.next_at = 0.0
        # How often it was asked, and answered that the statement is not there yet.
        self.asked = self.not_yet = 0

    def unanswered(self) -> tuple[str, str]:
        """Reason and detail when its time is over: who kept whom waiting."""
        waited = time.monotonic() - self.since
        if self.not_yet:
            return "not_stated", (
                f"the producer's guard at {self.address} answered {self.not_yet} times in "
                f"{waited:.1f} s that its blocks are not computed yet"
            )
        return "silent", (
            f"the producer's guard at {self.address} answered none of {self.asked} questions in "
            f"{waited:.1f} s: it is gone, out of reach, or gets no processor time"
        )


class ClaimClient:
    """The consumer's end. ``submit`` and ``take`` never block."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._in: queue.SimpleQueue[_Claim] = queue.SimpleQueue()
        self._answers: dict[str, tuple[str, Statement | None, str]] = {}
        # Claims that have no answer yet, so that whoever waits in vain can say for whom.
        self._open: dict[str, _Claim] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._context = zmq.Context()
        # Wakes the thread as soon as a claim is submitted.
        self._wake = self._context.socket(zmq.PAIR)
        self._wake.bind("inproc://wake")
        self._thread = threading.Thread(target=self._ask, name="cofferdam-asks", daemon=True)
        self._thread.start()

    def submit(self, key: str, reference: Reference, rank: int, wait_s: float) -> None:
        """Asks for the statement of ``reference`` until ``wait_s`` from now; ``key`` names it."""
        host, _, port = reference.address.rpartition(":")
        address = f"tcp://{host}:{int(port) + rank}"
        claim = _Claim(key, reference, address, time.monotonic() + wait_s)
        with self._lock:
            self._open[key] = claim
        self._in.put(claim)
        self._call()

    def take(self, key: str) -> tuple[str, Statement | None, str] | None:
        """(kind, statement, detail) once it is known, None before."""
        with self._lock:
            return self._answers.pop(key, None)

    def waiting_for(self, key: str) -> tuple[str, str] | None:
        """Reason and detail of a claim that has no answer; None if it has one, or was never made."""
        with self._lock:
            claim = self._open.get(key)
        return claim.unanswered() if claim is not None else None

    def forget(self, key: str) -> None:
        """Nobody waits for this any more: it is not asked again."""
        with self._lock:
            self._answers.pop(key, None)
            claim = self._open.pop(key, None)
        if claim is not None:
            claim.until = 0.0

    def close(self) -> None:
        if self._stop.is_set():
            return
        self._stop.set()
        self._call()
        self._thread.join(2)
        self._wake.close(0)
        self._context.term()

    def _call(self) -> None:
        try:
            self._wake.send(b"", zmq.NOBLOCK)
        except zmq.Again:
            pass  # a thousand calls are waiting already: the thread will look

    def _settle(
        self, claim: _Claim, kind: str, statement: Statement | None = None, detail: str = ""
    ) -> None:
        with self._lock:
            if self._open.get(claim.key) is not claim:
                return  # nobody waits for it any more
            del self._open[claim.key]
            if len(self._answers) < CLAIMS_MAX:
                self._answers[claim.key] = (kind, statement, detail)

    def _ask(self) -> None:
        wake = self._context.socket(zmq.PAIR)
        wake.connect("inproc://wake")
        poller = zmq.Poller()
        poller.register(wake, zmq.POLLIN)
        peers: dict[str, zmq.Socket] = {}
        open_claims: dict[bytes, _Claim] = {}
        while not self._stop.is_set():
            wait_ms = RETRY_S * 1000 if open_claims else 500
            for socket, _ in poller.poll(wait_ms):
                if socket is wake:
                    wake.recv()
                else:
                    self._receive(socket.recv(), open_claims)
            self._accept(open_claims)
            now = time.monotonic()
            for nonce, claim in list(open_claims.items()):
                if now >= claim.until:
                    del open_claims[nonce]
                    reason, detail = claim.unanswered()
                    self._settle(claim, reason, detail=detail)
                elif now >= claim.next_at:
                    claim.next_at = now + RETRY_S
                    self._send(claim, peers, poller)
        for socket in [wake, *peers.values()]:
            socket.close(0)

    def _accept(self, open_claims: dict[bytes, _Claim]) -> None:
        while True:
            try:
                claim = self._in.get_nowait()
            except queue.Empty:
                return
            if len(open_claims) >= CLAIMS_MAX:
                text = f"{CLAIMS_MAX} claims are open on this instance, it takes no more"
                self._settle(claim, "timeout", detail=text)
            else:
                open_claims[claim.nonce] = claim

    def _receive(self, message: bytes, open_claims: dict[bytes, _Claim]) -> None:
        # The nonce stands behind the version; whether the message is genuine the core says.
        claim = open_claims.get(message[1:17])
        if claim is None:
            return
        try:
            answer = read_claim(self._secret, claim.nonce, message)
        except GuardFault:
            answer = ("malformed", None)
        if answer is None:
            return
        if answer[0] == "not_yet":
            claim.not_yet += 1
            return
        del open_claims[claim.nonce]
        self._settle(claim, *answer)

    def _send(self, claim: _Claim, peers: dict[str, Any], poller: zmq.Poller) -> None:
        socket = peers.get(claim.address)
        if socket is None:
            if len(peers) >= PEERS_MAX:
                old = peers.pop(next(iter(peers)))
                poller.unregister(old)
                old.close(0)
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, ANSWER_BYTES_MAX)
            socket.connect(claim.address)
            poller.register(socket, zmq.POLLIN)
            peers[claim.address] = socket
        claim.asked += 1
        message = claim_message(self._secret, claim.nonce, claim.reference)
        try:
            socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            pass  # repeated in RETRY_S


