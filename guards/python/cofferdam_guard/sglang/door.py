"""Rejected is terminal: at the door of either side, before anything is taken, and told to the peer.

SGLang to 0.5.20 only notes a rejection and lets a one-token placeholder through; later versions
reject, and do not tell the peer, which then waits five minutes for pages that will never come. Here
the side that rejects answers its client with the original error and sends it to the other side,
which ends its half with the same error.

Prefill tells decode as soon as decode has shown where it can be reached (with its metadata message,
that may come before or after the rejection). Decode tells prefill by a metadata message that offers
no pages and carries the rejection.
"""

import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from . import wire
from .state import here, is_fake, logger_of

_CHANNEL = b"cofferdam"
_PEERS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cofferdam-door")
# How many rejections are remembered for a peer that has not asked yet; the oldest go first.
MOST_REJECTED = 65536
_WAITING = threading.BoundedSemaphore(256)


def _aborted(req):
    """The engine's verdict on a request, wherever this version keeps it."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    for reason in (req.finished_reason, req.to_finish):
        if isinstance(reason, FINISH_ABORT):
            return reason
    return None


def _ended(req):
    """The verdict with which a request has ended here; none if it goes on, or is to end later."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    return req.finished_reason if isinstance(req.finished_reason, FINISH_ABORT) else None


def _holds_nothing(req) -> bool:
    """Only a request that has acquired nothing is the door's; the others have owners."""
    return not (
        req.is_retracted
        or req.kv.holds_kv
        or req.kv.holds_mamba
        or req.metadata_buffer_index >= 0
        or getattr(req.kv, "retraction_backup", None) is not None
    )


def _retire(scheduler, req) -> None:
    """Ends a rejected request with the engine's own error. Nothing was taken for it."""
    retire = getattr(scheduler, "retire_unadmitted_request", None)
    if retire is not None:
        retire(req)
        return
    if req.session is not None and getattr(req.session, "streaming", False):
        req.session.abort_req()
        req.session = None
    scheduler.beam_coordinator.retire_group(req)
    if scheduler.enable_hicache_storage:
        scheduler.tree_cache.release_aborted_request(req.rid)
    req.update_finish_state()
    # With log-probabilities, of which there are none: a rejected request says that it wants none, SGLang sends no
    # place for them then, and its front end, which knows what the client asked for, ends the server for want of it.
    scheduler.output_streamer.stream_output([req], True)


def _note(req, reason) -> None:
    """Counts a rejection and writes it down."""
    record = here().record
    record.count("rejected_total")
    record.audit(
        "rejected",
        room=req.bootstrap_room,
        rid=req.rid,
        status=reason.status_code,
        why=reason.message,
    )


def _rejection(req, reason) -> wire.Rejection:
    status = int(getattr(reason, "status_code", None) or HTTPStatus.BAD_REQUEST)
    return wire.Rejection(req.bootstrap_room, status, reason.message)


def prefill_add(original, self, req, num_kv_heads):
    """`PrefillBootstrapQueue.add`."""
    if _aborted(req) and _holds_nothing(req):
        _retire(self.scheduler, req)
    else:
        original(self, req, num_kv_heads)
    sender = getattr(req, "disagg_kv_sender", None)
    if sender is not None and not is_fake(req):
        sender.cofferdam_req = req
    reason = _ended(req)
    if reason is None or is_fake(req) or req.bootstrap_room is None:
        return
    _note(req, reason)
    reject_at_prefill(self.kv_manager, _rejection(req, reason))


def reject_at_prefill(kv_manager, rejection: wire.Rejection) -> None:
    """Tells decode if it has asked already; whoever asks later is told then."""
    guard = here()
    with guard.lock:
        while len(guard.rejected) >= MOST_REJECTED:
            guard.rejected.pop(next(iter(guard.rejected)))
        guard.rejected[rejection.room] = (rejection, time.monotonic())
        asked = guard.asked.pop(rejection.room, None)
    if asked is not None:
        tell_decode(kv_manager, asked[0], rejection)


def tell_decode(kv_manager, info, rejection: wire.Rejection) -> None:
    """Sends a rejection over SGLang's control channel; an unguarded decode gets a plain failure."""
    from sglang.srt.utils.network import NetworkAddress

    address = NetworkAddress(info.endpoint, info.dst_port)
    room = str(rejection.room).encode()
    if getattr(info, "cofferdam", None) is not None:
        frame = rejection.encode(here().config.key)
        parts = [b"AUX_DATA", room, _CHANNEL, b"0", struct.pack(">I", len(frame)), frame]
    else:
        parts = [room, b"0", str(kv_manager._prefill_unique_rank()).encode()]
    try:
        kv_manager._send_multipart_locked(address.to_tcp(), parts, is_ipv6=address.is_ipv6)
    except Exception as fault:  # the peer is gone: it has deadlines of its own
        logger_of().warning("cofferdam-guard: decode could not be told of a rejection: %s", fault)


def handle_aux_data(original, self, msg):
    """`MooncakeKVManager._handle_aux_data`, decode: what prefill's guard says comes this way."""
    if len(msg) < 6 or msg[2] != _CHANNEL:
        return original(self, msg)
    guard = here()
    try:
        room = int(msg[1])
        said = wire.decode(msg[5], room, guard.config.key)
    except (ValueError, wire.Malformed) as fault:
        guard.record.refusal("malformed", detail=str(fault))
        return None
    if isinstance(said, wire.Rejection) and room in self.request_status:
        guard.decide(room, said.message, said.status)
        self.record_failure(room, said.message)
        from sglang.srt.disaggregation.base import KVPoll

        self.update_status(room, KVPoll.Failed)
    return None


def decode_add(original, self, req, is_retracted=False, is_rebootstrap=False):
    """`DecodePreallocQueue.add`."""
    fresh = not is_retracted and not is_rebootstrap
    if fresh and _aborted(req) and _holds_nothing(req):
        _retire(self.scheduler, req)
    else:
        original(self, req, is_retracted=is_retracted, is_rebootstrap=is_rebootstrap)
    reason = _ended(req) if fresh else None
    if reason is None or is_fake(req) or req.bootstrap_room is None:
        return
    _note(req, reason)
    _tell_prefill(self, req, _rejection(req, reason))


def _tell_prefill(queue, req, rejection: wire.Rejection) -> None:
    """From a thread of its own: finding prefill may take a round trip over HTTP."""
    if not _WAITING.acquire(blocking=False):
        return  # prefill then ends by its own deadline; its pages are not taken yet
    from sglang.srt.disaggregation.decode import _bootstrap_addr

    address, key = _bootstrap_addr(req), here().config.key

    def send():
        try:
            _send_rejection(queue, req, address, rejection, key)
        except Exception as fault:
            logger_of().warning(
                "cofferdam-guard: prefill could not be told of a rejection: %s", fault
            )
        finally:
            _WAITING.release()

    _PEERS.submit(send)


def _send_rejection(queue, req, address: str, rejection: wire.Rejection, key: bytes) -> None:
    """To the data-parallel rank of prefill that has the request. Where decode cannot know which, to each: the
    others know of no such room, and forget it."""
    kv_manager = queue.kv_manager
    if not kv_manager.try_ensure_parallel_info(address):
        return
    known = queue._resolve_prefill_dp_rank(req)
    every = range(kv_manager.prefill_info_table[address].dp_size)
    for rank in every if known is None else [known]:
        _offer_nothing(kv_manager, queue.transfer_backend, address, rank, rejection, key)


def _offer_nothing(
    kv_manager, backend, address: str, rank: int, rejection: wire.Rejection, key: bytes
) -> None:
    """A metadata message without pages. The room exists on this side only while it is sent."""
    from sglang.srt.disaggregation.utils import KVClassType, get_kv_class

    receiver = get_kv_class(backend, KVClassType.RECEIVER)(
        mgr=kv_manager, bootstrap_addr=address, bootstrap_room=rejection.room
    )
    try:
        receiver.init(rank)
        room = str(rejection.room).encode()
        for info in receiver.bootstrap_infos or []:
            sock, lock = receiver._connect_to_bootstrap_server(info)
            with lock:
                sock.send_multipart(
                    [
                        room,
                        kv_manager.local_ip.encode(),
                        str(kv_manager.rank_port).encode(),
                        kv_manager.get_session_id().encode(),
                        b"",
                        b"",
                        b"",
                        str(receiver.required_dst_info_num).encode(),
                        b"0",
                        b"",
                        rejection.encode(key),
                    ]
                )
    finally:
        receiver.clear()
        kv_manager.addr_to_rooms_tracker[address].discard(rejection.room)


def prepare_abort(original, req, error_message, status_code=None):
    """`prepare_abort`: the first reason is the one that the client is told."""
    verdict = (
        here().verdicts.pop(req.bootstrap_room, None) if req.bootstrap_room is not None else None
    )
    if verdict is not None:
        error_message, status_code = verdict[0], HTTPStatus(verdict[1])
    return original(req, error_message, status_code)
