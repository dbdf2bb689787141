"""Until when pages are kept, and what a step may attend to, on stand-ins of the engine."""

import sys
import types
import unittest

try:
    import torch
except ImportError:  # torch comes with the engine, not with the package
    torch = None


class KVPoll:
    Failed, Bootstrapping, WaitingForInput, Transferring, Success = range(5)


class FinishAbort:
    def __init__(self, message, status_code=None, err_type=None):
        self.message, self.status_code = message, status_code


class Queue:
    """SGLang's transfer queue, without waiting."""

    def __init__(self):
        self.items = []

    def put(self, item):
        self.items.append(item)

    def get(self):
        return self.items.pop(0) if self.items else None


def stand_in():
    base = types.ModuleType("sglang.srt.disaggregation.base")
    base.KVPoll = KVPoll
    utils = types.ModuleType("sglang.srt.disaggregation.utils")
    utils._is_fake_transfer = lambda req: False
    batch = types.ModuleType("sglang.srt.managers.schedule_batch")
    batch.FINISH_ABORT = FinishAbort
    return {module.__name__: module for module in (base, utils, batch)}


@unittest.skipUnless(torch, "torch is not installed")
class Lifetime(unittest.TestCase):
    def setUp(self):
        from cofferdam_guard import core
        from cofferdam_guard.sglang import (
            config,
            decode,
            door,
            pages,
            prefill,
            record,
            source,
            state,
            step,
            wire,
        )

        self.decode, self.prefill, self.source, self.step = decode, prefill, source, step
        self.door = door
        self.config = config
        self.pages, self.wire = pages, wire
        self.modules = stand_in()
        sys.modules.update(self.modules)
        secret = core.Secret(b"s" * 32)
        chosen = config.Config(secret, b"k" * 64, "", 0.5, True, True, False, False, "")
        self.guard = state.Guard(chosen, "decode", record.Record("decode", "", False))
        self.guard.table = pages.TagTable(10, "cpu")
        self.guard.ledger = core.Ledger(10, 1)
        self.guard.kv = types.SimpleNamespace(pages=10, device="cpu")
        self.guard.staging = {__import__("threading").get_ident(): None}
        state.put(self.guard)
        self.state = state

    def tearDown(self):
        for name in self.modules:
            sys.modules.pop(name, None)

    # -- prefill ------------------------------------------------------------------------------

    def chunk(self, room):
        return types.SimpleNamespace(room=room)

    def test_a_failure_is_told_when_no_write_reads_the_pages_any_more(self):
        queue = self.source.counting_queue(Queue)()
        sender = types.SimpleNamespace(bootstrap_room=7)
        failed = lambda sender: KVPoll.Failed
        queue.put(self.chunk(7))
        queue.put(self.chunk(7))
        for _ in range(2):  # waiting, then under way
            self.assertEqual(self.source.sender_poll(failed, sender), KVPoll.Transferring)
            queue.get()
        self.assertEqual(self.source.sender_poll(failed, sender), KVPoll.Transferring)
        queue.get()  # the worker comes back: the last one has ended
        self.assertEqual(self.source.sender_poll(failed, sender), KVPoll.Failed)
        self.assertEqual(self.guard.outstanding, {})

    def test_another_rooms_writes_hold_nothing_up(self):
        queue = self.source.counting_queue(Queue)()
        queue.put(self.chunk(8))
        sender = types.SimpleNamespace(bootstrap_room=7)
        self.assertEqual(self.source.sender_poll(lambda s: KVPoll.Failed, sender), KVPoll.Failed)

    def test_a_write_that_ended_without_saying_so_is_never_proven(self):
        ticket = types.SimpleNamespace(pages=3)
        handoff = self.state.Handoff(7, ticket, types.SimpleNamespace(rid="r"), None)
        self.guard.handoffs[7] = handoff
        self.guard.local.chunk = self.chunk(7)
        self.assertEqual(self.prefill.transfer_data(lambda *a: -1, object(), "s", [(1, 2, 3)]), -1)
        acks = []
        self.source.send_abort_ack_by_address(lambda *a: acks.append(a), object(), "ip", 1, 7)
        self.assertEqual(acks, [])
        self.source.send_abort_ack_by_address(lambda *a: acks.append(a), object(), "ip", 1, 8)
        self.assertEqual(len(acks), 1)
        sender = types.SimpleNamespace(bootstrap_room=7)
        self.assertEqual(
            self.source.sender_poll(lambda s: KVPoll.Failed, sender), KVPoll.Transferring
        )

    # -- decode -------------------------------------------------------------------------------

    def receiver(self, room, pages):
        import numpy as np

        manager = types.SimpleNamespace(
            record_failure=lambda room, why: failures.append(why),
            update_status=lambda *a: None,
            attn_tp_rank=0,
            attn_tp_size=1,
        )
        failures = []
        req = types.SimpleNamespace(
            rid=f"r{room}", origin_input_ids=list(range(len(pages))), bootstrap_room=room
        )
        receiver = types.SimpleNamespace(
            bootstrap_room=room,
            cofferdam_req=req,
            kv_mgr=manager,
            failures=failures,
            conclude_state=None,
            prefill_dp_rank=5,
        )
        receiver.frame = self.decode._reserve(
            self.guard, receiver, np.array(pages, dtype=np.int32), 0, 0
        )
        return receiver

    def test_pages_that_somebody_may_still_write_get_no_new_reader(self):
        first = self.receiver(1, [2, 3, 4])
        self.assertIsNotNone(first.frame)
        second = self.receiver(2, [4, 5])
        self.assertIsNone(second.frame)
        self.assertEqual(second.conclude_state, KVPoll.Failed)
        self.assertIn("held", second.failures[0])
        self.decode._proven(self.guard, first.cofferdam)
        self.assertIsNotNone(self.receiver(3, [4, 5]).frame)

    def test_a_reservation_begins_without_tags(self):
        self.guard.table.rows[3] = 99
        receiver = self.receiver(1, [2, 3])
        self.assertEqual(self.guard.table.rows[3].tolist(), [0] * 8)
        ticket = self.wire.decode(receiver.frame, 1, self.guard.config.key)
        self.assertEqual((ticket.pages, ticket.asked), (2, 5), "it names the rank of prefill that was asked")

    def test_only_a_proof_ends_the_hold(self):
        receiver = self.receiver(1, [2, 3])
        decode_req = types.SimpleNamespace(
            req=receiver.cofferdam_req,
            kv_receiver=types.SimpleNamespace(_send_abort_notification=lambda: asked.append(1)),
        )
        asked = []
        queue = types.SimpleNamespace(_deferred_releases=[(decode_req, 0.0, float("inf"), 0, 1)])
        self.decode.resolve_deferred_releases(lambda q: None, queue)
        decode_req.cofferdam_since -= 100
        decode_req.cofferdam_asked -= 100
        self.decode.resolve_deferred_releases(lambda q: None, queue)
        self.assertEqual(asked, [1])
        self.assertEqual(self.guard.held_pages, 2)
        self.assertIsNone(self.receiver(2, [3]).frame)

    def test_too_many_unproven_pages_stop_the_worker(self):
        receiver = self.receiver(1, [1, 2, 3, 4, 5, 6])
        decode_req = types.SimpleNamespace(
            req=receiver.cofferdam_req, cofferdam_since=-100.0, cofferdam_asked=float("inf")
        )
        queue = types.SimpleNamespace(_deferred_releases=[(decode_req, 0.0, float("inf"), 0, 1)])
        with self.assertRaisesRegex(RuntimeError, "6 pages of 10 .* this worker stops"):
            self.decode.resolve_deferred_releases(lambda q: None, queue)

    def test_what_does_not_come_in_time_is_refused_as_slow_and_no_later(self):
        receiver = self.receiver(1, [2, 3])
        room = torch.zeros((1, 1), dtype=torch.int64)
        self.guard.scheduler = types.SimpleNamespace(
            disagg_metadata_buffers=types.SimpleNamespace(bootstrap_room=room)
        )
        receiver.init_time, receiver.abort_notified = 1.0, True
        arrived = lambda receiver: KVPoll.Success
        self.assertEqual(self.decode.receiver_poll(arrived, receiver), KVPoll.Transferring)
        self.assertEqual(receiver.failures, [])
        receiver.cofferdam.arrived_at -= self.guard.config.wait_s
        with self.assertLogs("cofferdam_guard.sglang") as logged:
            self.assertEqual(self.decode.receiver_poll(arrived, receiver), KVPoll.Failed)
        self.assertRegex(receiver.failures[0], "refused: late: .*nothing wrong was seen")
        self.assertIn('"cause":"slow"', logged.output[0])
        self.assertEqual(self.guard.verdicts[1][1], 503)
        self.assertIsNotNone(receiver.cofferdam.hold, "its pages stay held")

    def test_a_write_that_ended_without_saying_so_is_answered_503(self):
        told = []
        utils = self.modules["sglang.srt.disaggregation.utils"]
        utils.prepare_abort = lambda req, message, status_code: told.append((message, status_code))
        parent = types.ModuleType("sglang.srt.disaggregation")
        parent.utils = utils
        sys.modules[parent.__name__] = self.modules[parent.__name__] = parent
        req = types.SimpleNamespace(rid="r", finished_output=False, return_logprob=False)
        handoff = self.state.Handoff(7, types.SimpleNamespace(pages=3), req, None, unsettled=True)
        streamer = types.SimpleNamespace(stream_output=lambda *a: None)
        scheduler = types.SimpleNamespace(output_streamer=streamer)
        for _ in range(2):
            self.source._answer_unsettled(self.guard, scheduler, [handoff])
        self.assertEqual([int(status) for _, status in told], [503], "once")
        self.assertIn("cofferdam-guard: refused: unsettled", told[0][0])

    def test_a_request_that_was_aborted_with_writes_under_way_stays_in_the_queue_of_those_in_flight(self):
        """In none, SGLang takes itself for idle, and what is held for lost memory: it ends."""
        sender, told = types.SimpleNamespace(abort=lambda: told.append("abort")), []
        req = types.SimpleNamespace(disagg_kv_sender=sender, bootstrap_room=7)
        scheduler = types.SimpleNamespace(disagg_prefill_inflight_queue=[])
        self.guard.handoffs[7] = self.state.Handoff(7, None, req, None, unsettled=True)
        for _ in range(2):
            freed = self.source.retire_aborted_prefill_result(lambda *_: True, scheduler, req)
            self.assertFalse(freed)
        self.assertEqual(scheduler.disagg_prefill_inflight_queue, [req], "once")
        self.assertEqual(told, ["abort"] * 2)
        self.guard.handoffs.clear()
        self.assertTrue(self.source.retire_aborted_prefill_result(lambda *_: True, scheduler, req))

    def test_a_rejected_request_leaves_with_a_place_for_the_log_probabilities_that_its_client_asked_for(self):
        """SGLang has said by then that it wants none; its front end asks for them all the same, and ends the server."""
        sent, nothing = [], lambda *_: None
        scheduler = types.SimpleNamespace(
            beam_coordinator=types.SimpleNamespace(retire_group=nothing),
            enable_hicache_storage=False,
            output_streamer=types.SimpleNamespace(stream_output=lambda *words: sent.append(words)),
        )
        req = types.SimpleNamespace(session=None, return_logprob=False, update_finish_state=nothing)
        self.door._retire(scheduler, req)
        self.assertEqual(sent, [([req], True)])

    def batch(self, *reservations):
        reqs = [
            types.SimpleNamespace(
                cofferdam=r.cofferdam,
                rid=r.cofferdam.rid,
                bootstrap_room=r.bootstrap_room,
                output_ids=[5, 6],
                finished=lambda: False,
                to_finish=None,
                finished_len=None,
            )
            for r in reservations
        ]
        table = torch.zeros((4, 4), dtype=torch.int32)
        for i, r in enumerate(reservations):
            table[i, : len(r.cofferdam.pages)] = r.cofferdam.indices
            self.guard.table.stamp(r.cofferdam.indices, torch.tensor(r.cofferdam.nonce))
        lengths = torch.tensor([len(r.cofferdam.pages) for r in reservations])
        scheduler = types.SimpleNamespace(
            req_to_token_pool=types.SimpleNamespace(req_to_token=table)
        )
        batch = types.SimpleNamespace(
            reqs=reqs,
            seq_lens=lengths,
            seq_lens_cpu=lengths,
            req_pool_indices=torch.arange(len(reqs)),
            out_cache_loc=torch.tensor([], dtype=torch.int32),
            forward_mode=types.SimpleNamespace(is_decode=lambda: True),
        )
        return scheduler, batch

    def append(self, scheduler, batch, pages):
        """The engine gives each sequence a page for its next token."""
        batch.out_cache_loc = torch.tensor(pages, dtype=torch.int32)
        for at, number in enumerate(pages):
            scheduler.req_to_token_pool.req_to_token[at, batch.seq_lens[at]] = number
        batch.seq_lens = batch.seq_lens_cpu = batch.seq_lens + 1
        self.step.prepare_for_decode(lambda batch: None, batch)

    def pass_(self, scheduler, batch):
        """One pass: what the sequences' ends were while it ran, and its result."""
        result, seen = types.SimpleNamespace(), []

        def original(scheduler, batch):
            seen.extend(req.to_finish for req in batch.reqs)
            return result

        self.assertIs(self.step.run_batch(original, scheduler, batch), result)
        return seen, result

    def read(self, scheduler, batch, result):
        """The engine reads the pass's tokens."""
        return self.step.process_batch_result(lambda *a: "read", scheduler, batch, result)

    def with_output(self):
        """As on CUDA: a check's result is read with the step's output."""
        import dataclasses

        late = dataclasses.replace(self.guard.config, step_check=self.config.WITH_OUTPUT)
        self.guard.config = late

    def test_a_late_write_ends_its_reader_before_the_next_pass_and_nobody_else(self):
        scheduler, batch = self.batch(self.receiver(1, [2, 3, 4]), self.receiver(2, [5, 6]))
        self.append(scheduler, batch, [7, 8])
        self.assertEqual(self.pass_(scheduler, batch)[0], [None, None])
        self.guard.table.rows[6, self.pages.NONCE] = 12345
        ended, result = self.pass_(scheduler, batch)
        self.assertIsNone(ended[0])
        self.assertIn("step: 1 pages", ended[1].message)
        self.assertEqual(batch.reqs[1].finished_len, 2)
        self.assertEqual(self.read(scheduler, batch, result), "read")

    def test_from_a_device_the_result_is_read_with_the_steps_output(self):
        self.with_output()
        scheduler, batch = self.batch(self.receiver(1, [2, 3, 4]), self.receiver(2, [5, 6]))
        self.append(scheduler, batch, [7, 8])
        self.guard.table.rows[6, self.pages.NONCE] = 12345
        ended, result = self.pass_(scheduler, batch)
        self.assertEqual(ended, [None, None])
        # The next step has been launched by then; it finds what it finds by itself.
        self.guard.table.rows[6, self.pages.NONCE] = batch.reqs[1].cofferdam.nonce
        ended, following = self.pass_(scheduler, batch)
        tokens = lambda *a: self.assertIsNotNone(batch.reqs[1].to_finish)
        self.step.process_batch_result(tokens, scheduler, batch, result)
        self.assertIsNone(batch.reqs[0].to_finish)
        self.assertIn("step: 1 pages", batch.reqs[1].to_finish.message)
        self.assertEqual(batch.reqs[1].finished_len, 2)
        self.read(scheduler, batch, following)
        self.assertIsNone(batch.reqs[0].to_finish)

    def test_what_lies_behind_a_sequence_is_not_looked_at(self):
        scheduler, batch = self.batch(self.receiver(1, [2, 3]), self.receiver(2, [5]))
        self.append(scheduler, batch, [4, 6])
        scheduler.req_to_token_pool.req_to_token[1, 2:] = 9
        self.assertEqual(self.pass_(scheduler, batch)[0], [None, None])

    def test_an_appended_page_that_somebody_may_write_ends_the_sequence(self):
        for late in (False, True):
            first, second = self.receiver(10 + late, [2]), self.receiver(20 + late, [3])
            writing = self.receiver(30 + late, [7])  # its prefill may write page 7
            scheduler, batch = self.batch(first, second)
            if late:
                self.with_output()
            self.append(scheduler, batch, [8, 7])
            _, result = self.pass_(scheduler, batch)
            self.read(scheduler, batch, result)
            self.assertIsNone(batch.reqs[0].to_finish)
            self.assertIn("held", batch.reqs[1].to_finish.message)
            for receiver in (first, second, writing):
                self.decode._proven(self.guard, receiver.cofferdam)

    def test_a_page_of_a_sequence_that_ended_meanwhile_may_be_anothers(self):
        self.with_output()
        for how in ("finished", "retracted"):
            first = self.receiver(1, [2])
            scheduler, batch = self.batch(first)
            self.append(scheduler, batch, [7])
            _, result = self.pass_(scheduler, batch)
            if how == "finished":
                batch.reqs[0].finished = lambda: True
            else:
                batch.reqs[0].is_retracted = True
            other = self.receiver(2, [7])  # freed, reserved, and written
            self.assertIsNotNone(other.frame)
            self.decode._proven(self.guard, other.cofferdam)
            tags = self.guard.ledger.tags([7])
            self.read(scheduler, batch, result)
            self.assertIsNone(batch.reqs[0].to_finish)
            self.assertEqual(self.guard.ledger.tags([7]), tags)
            self.decode._proven(self.guard, first.cofferdam)

    def test_what_a_failed_step_leaves_to_a_retraction_is_never_its_own_again(self):
        self.with_output()
        scheduler, batch = self.batch(self.receiver(1, [2, 3]))
        self.append(scheduler, batch, [4])
        self.guard.table.rows[3, self.pages.NONCE] = 12345
        _, result = self.pass_(scheduler, batch)
        batch.reqs[0].is_retracted = True
        self.read(scheduler, batch, result)
        batch.reqs[0].is_retracted = False
        self.step._own(self.guard, batch.reqs[0], torch.tensor([5, 6, 7]))
        scheduler.req_to_token_pool.req_to_token[0, :3] = torch.tensor([5, 6, 7])
        self.append(scheduler, batch, [8])
        _, result = self.pass_(scheduler, batch)
        self.read(scheduler, batch, result)
        self.assertIn("step: 3 pages", batch.reqs[0].to_finish.message)

    def test_pages_of_several_tokens_are_stamped_when_they_begin(self):
        self.guard.page_size = 2
        scheduler, batch = self.batch(self.receiver(1, [2]), self.receiver(2, [3]))
        table = torch.zeros((2, 8), dtype=torch.int32)
        table[0, :4] = torch.tensor([4, 5, 8, 9])
        table[1, :3] = torch.tensor([6, 7, 10])
        scheduler.req_to_token_pool.req_to_token = table
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor([3, 3])
        batch.out_cache_loc = torch.tensor([8, 10], dtype=torch.int32)  # both begin a page
        self.step.prepare_for_decode(lambda batch: None, batch)
        self.assertEqual(self.pass_(scheduler, batch)[0], [None, None])
        self.guard.table.rows[5, self.pages.NONCE] = 12345
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor([4, 4])
        table[1, 3] = 11
        batch.out_cache_loc = torch.tensor([9, 11], dtype=torch.int32)  # both go on in theirs
        self.step.prepare_for_decode(lambda batch: None, batch)
        ended, _ = self.pass_(scheduler, batch)
        self.assertIsNone(ended[0])
        self.assertIn("step: 1 pages", ended[1].message)

    def test_a_verdict_that_is_on_its_way_is_not_waited_for(self):
        receiver = self.receiver(1, [2, 3])
        reservation = receiver.cofferdam
        reservation.reasons = types.SimpleNamespace(ready=lambda: False)
        self.assertIs(self.decode._verify_pages(self.guard, reservation), self.decode._NOT_YET)
        self.assertFalse(reservation.verified)
        reservation.reasons = types.SimpleNamespace(
            ready=lambda: True, read=lambda: [self.pages.OK, self.pages.FOREIGN]
        )
        refused = self.decode._verify_pages(self.guard, reservation)
        self.assertEqual(refused, ("foreign", "page 1 of 2 (1 pages in all)"))
        self.assertFalse(reservation.verified)


if __name__ == "__main__":
    unittest.main()
