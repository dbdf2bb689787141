"""Ranks of one server: they take the same decision at the same step, and none waits for ever."""

import dataclasses
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import types
import unittest
from pathlib import Path

try:
    import torch
    import torch.distributed as dist
except ImportError:  # torch comes with the engine, not with the package
    torch = None

from test_sglang_lifetime import KVPoll, stand_in

SIZE = 2


def run_ranks(body, wait_s=20.0):
    """`body(ranks)` in a process for each rank, over a real group; what each gave back, or its error."""
    with tempfile.TemporaryDirectory() as folder:
        method = multiprocessing.get_context("fork")
        children = [
            method.Process(target=_child, args=(folder, rank, body, wait_s)) for rank in range(SIZE)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
            if child.is_alive():
                child.kill()
        found = []
        for rank in range(SIZE):
            path = Path(folder, f"said-{rank}")
            found.append(json.loads(path.read_text()) if path.exists() else "no answer")
        return found


def _child(folder, rank, body, wait_s):
    from cofferdam_guard.sglang.ranks import Ranks

    store = dist.FileStore(os.path.join(folder, "store"), SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE)
    try:
        said = body(Ranks(dist.group.WORLD, wait_s))
    except Exception as fault:
        said = f"{type(fault).__name__}: {fault}"
    with open(os.path.join(folder, f"said-{rank}"), "w") as file:
        json.dump(said, file)
    os._exit(0)


def guard_of(ranks, role):
    from cofferdam_guard import core
    from cofferdam_guard.sglang import config, pages, record, state

    sys.modules.update(stand_in())
    chosen = config.Config(core.Secret(b"s" * 32), b"k" * 64, "", 0.5, True, True, False, False, "")
    guard = state.Guard(chosen, role, record.Record(role, "", False))
    guard.ranks = ranks
    guard.table = pages.TagTable(10, "cpu")
    guard.ledger = core.Ledger(10, 1)
    guard.kv = types.SimpleNamespace(pages=10, device="cpu")
    state.put(guard)
    return guard


class Poller:
    """A sender or receiver of which this rank says that it is in `state`."""

    def __init__(self, room, told=None):
        self.bootstrap_room, self.init_time = room, told
        self.abort_notified, self.bootstrap_infos = False, [1]
        self.cofferdam_req, self.armed = object(), False

    def ensure_abort_notified(self, force_arm):
        self.abort_notified = self.armed = True


def polled(guard, pollers, agreed):
    """The hook, over what the engine's own collective gave."""
    from cofferdam_guard.sglang import agree

    return agree.poll_and_all_reduce(lambda *a, **k: list(agreed), pollers, None)


@unittest.skipUnless(torch, "torch is not installed")
class Together(unittest.TestCase):
    def test_the_highest_number_and_what_each_says_reach_every_rank(self):
        def body(ranks):
            mine = [ranks.rank, 5 - ranks.rank]
            return [ranks.highest(mine), ranks.everyone({"rank": ranks.rank, "is": "x" * ranks.rank})]

        both = [[1, 5], [{"rank": 0, "is": ""}, {"rank": 1, "is": "x"}]]
        self.assertEqual(run_ranks(body), [both, both])

    def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_that(self):
        def body(ranks):
            if ranks.rank == 1:
                time.sleep(6)
                return "late"
            began = time.monotonic()
            try:
                ranks.highest([0])
            except RuntimeError as fault:
                return [str(fault), time.monotonic() - began]

        (told, seconds), late = run_ranks(body, wait_s=1.0)
        self.assertIn("rank 0 of 2 waited 1 s for what the other ranks found", told)
        self.assertLess(seconds, 4)
        self.assertEqual(late, "late")

    def test_why_one_rank_refused_is_told_to_rank_0_which_answers_the_client(self):
        def body(ranks):
            guard = guard_of(ranks, "decode")
            if ranks.rank == 1:
                guard.refuse(7, "r7", "altered", "page 2 of 3")
            one = Poller(7, told=1.0 if ranks.rank == 0 else None)
            polls = polled(guard, [Poller(6), one], [KVPoll.Success, KVPoll.Failed])
            # Both keep the pages until prefill has proven its end, though one was never told of them.
            return [polls, guard.verdicts[7][0], one.armed, 6 in guard.verdicts]

        for polls, message, armed, other in run_ranks(body):
            self.assertEqual(polls, [KVPoll.Success, KVPoll.Failed])
            self.assertIn("refused: altered: page 2 of 3", message)
            self.assertTrue(armed)
            self.assertFalse(other)

    def test_pages_that_one_rank_still_sends_are_kept_by_all(self):
        def body(ranks):
            guard = guard_of(ranks, "prefill")
            if ranks.rank == 1:
                guard.outstanding[7] = 1
            busy = polled(guard, [Poller(7)], [KVPoll.Failed])
            guard.outstanding.clear()
            return [busy, polled(guard, [Poller(7)], [KVPoll.Failed])]

        self.assertEqual(run_ranks(body), [[[KVPoll.Transferring], [KVPoll.Failed]]] * SIZE)

    def test_a_write_of_one_rank_that_never_ended_is_answered_by_rank_0(self):
        def body(ranks):
            from cofferdam_guard.sglang import state

            guard = guard_of(ranks, "prefill")
            ticket = types.SimpleNamespace(pages=3)
            guard.handoffs[7] = state.Handoff(7, ticket, types.SimpleNamespace(rid="r"), None)
            guard.handoffs[7].unsettled = ranks.rank == 1
            polls = polled(guard, [Poller(7)], [KVPoll.Failed])
            return [polls, guard.handoffs[7].unsettled]

        self.assertEqual(run_ranks(body), [[[KVPoll.Transferring], True]] * SIZE)

    def test_a_write_that_failed_on_one_rank_after_the_others_was_done_is_answered_by_rank_0(self):
        def body(ranks):
            from cofferdam_guard.sglang import agree, source, state

            guard = guard_of(ranks, "prefill")
            ticket = types.SimpleNamespace(pages=3)
            guard.handoffs[7] = state.Handoff(7, ticket, types.SimpleNamespace(rid="r"), None)
            guard.handoffs[7].unsettled = ranks.rank == 1
            mine = KVPoll.Failed if ranks.rank == 1 else KVPoll.Success

            def engine(pollers, group):
                said = source.sender_poll(lambda sender: mine, pollers[0])
                return [-ranks.highest([-said])[0]]  # the engine's: the lowest wins

            polls = agree.poll_and_all_reduce(engine, [Poller(7)], None)
            return [polls, guard.handoffs[7].unsettled]

        self.assertEqual(run_ranks(body), [[[KVPoll.Transferring], True]] * SIZE)

    def test_a_sequence_that_one_rank_convicts_ends_on_all_at_this_step(self):
        def body(ranks):
            from cofferdam_guard.sglang import step
            from cofferdam_guard.tensors import Unread

            guard = guard_of(ranks, "decode")
            reqs = [
                types.SimpleNamespace(
                    rid=f"r{at}", bootstrap_room=at, output_ids=[1], to_finish=None, finished=lambda: False
                )
                for at in range(3)
            ]
            wrong = torch.tensor([0, ranks.rank, 0])
            step._judge(guard, step.Checked(reqs, Unread(wrong), Unread(torch.tensor([-1] * 3))))
            counted = guard.record._evidence.take().get("refused_step_total", 0)
            return [[getattr(r.to_finish, "message", None) for r in reqs], counted]

        (first, counted), (second, counted_1) = run_ranks(body)
        self.assertEqual((first[0], first[2], second[0], second[2]), (None,) * 4)
        self.assertIn("another rank has found it", first[1])
        self.assertIn("1 pages of the block table", second[1])
        self.assertEqual((counted, counted_1), (0, 1), "counted where it was found")

    def test_aborted_pages_are_freed_when_every_rank_has_its_proof(self):
        def body(ranks):
            from cofferdam_guard.sglang import decode

            guard, freed = guard_of(ranks, "decode"), []
            manager = types.SimpleNamespace(
                is_abort_release_safe=lambda room, acks: room == 8 or ranks.rank == 0
            )
            request = lambda room: types.SimpleNamespace(
                req=types.SimpleNamespace(bootstrap_room=room),
                kv_receiver=types.SimpleNamespace(kv_mgr=manager),
            )
            queue = types.SimpleNamespace(
                _deferred_releases=[(request(7), 0.0, 0, 1), (request(8), 0.0, 1, 1)]
            )

            def original(queue):
                freed.extend(one[0].req.bootstrap_room for one in queue._deferred_releases)
                queue._deferred_releases = []

            decode._release_together(guard, queue, original)
            return [freed, [one[0].req.bootstrap_room for one in queue._deferred_releases]]

        self.assertEqual(run_ranks(body), [[[8], [7]]] * SIZE)


@unittest.skipUnless(torch, "torch is not installed")
class Shares(unittest.TestCase):
    """Prefill compares whose share of each page decode's ticket is for."""

    def test_unequal_tensor_parallelism_is_refused_with_both_shares_named(self):
        from cofferdam_guard.sglang import pages, prefill, ranks, wire

        guard = guard_of(ranks.Ranks(), "prefill")
        for name in stand_in():
            self.addCleanup(sys.modules.pop, name, None)
        req = types.SimpleNamespace(origin_input_ids=[1, 2, 3], bootstrap_room=7)
        for at, mine, fits in (((0, 1), (0, 1), True), ((1, 2), (1, 2), True), ((1, 2), (0, 1), False)):
            ticket = wire.Ticket(7, 5, 3, 3, 0, 1, 0, pages.STRIDE, guard.lineage(req, [1, 2, 3]), *at)
            ticket = wire.decode(ticket.encode(guard.config.key), 7, guard.config.key)
            info = types.SimpleNamespace(decode_prefix_len=0, dst_kv_indices=[1, 2, 3])
            manager = types.SimpleNamespace(
                attn_tp_rank=mine[0], attn_tp_size=mine[1], attn_dp_rank=0, attn_dp_size=1, system_dp_size=1
            )
            found = prefill._compare(guard, manager, req, info, ticket)
            with self.subTest(ticket=at, prefill=mine):
                if fits:
                    self.assertIsNone(found)
                else:
                    self.assertEqual(found[0], "layout")
                    self.assertIn("share 2 of 2, prefill's 1 of 1", found[1])

    def test_a_ticket_is_for_one_data_parallel_rank_of_prefill(self):
        from cofferdam_guard.sglang import pages, prefill, ranks, wire

        guard = guard_of(ranks.Ranks(), "prefill")
        for name in stand_in():
            self.addCleanup(sys.modules.pop, name, None)
        req = types.SimpleNamespace(origin_input_ids=[1, 2, 3], bootstrap_room=7)
        info = types.SimpleNamespace(decode_prefix_len=0, dst_kv_indices=[1, 2, 3])
        by_attention = {"attn_dp_rank": 1, "attn_dp_size": 2, "system_dp_size": 1, "system_dp_rank": 0}
        by_server = {"attn_dp_rank": 0, "attn_dp_size": 1, "system_dp_size": 2, "system_dp_rank": 1}
        for kind in (by_attention, by_server):
            manager = types.SimpleNamespace(attn_tp_rank=0, attn_tp_size=1, **kind)
            for asked in (0, 1):
                ticket = wire.Ticket(7, 5, 3, 3, 0, 1, 0, pages.STRIDE, guard.lineage(req, [1, 2, 3]), 0, 1, asked)
                ticket = wire.decode(ticket.encode(guard.config.key), 7, guard.config.key)
                found = prefill._compare(guard, manager, req, info, ticket)
                with self.subTest(kind, asked=asked):
                    if asked == 1:
                        self.assertIsNone(found)
                    else:
                        why = "decode has asked data-parallel rank 0 of prefill, this is 1"
                        self.assertEqual(found, ("identity", why))

    def test_each_data_parallel_rank_counts_for_itself(self):
        from cofferdam_guard.sglang import install, ranks, record

        class Metric:
            def __init__(self, name, documentation, labelnames=(), **more):
                self.name, self.labelnames = name, labelnames

            def labels(self, **given):
                test.assertEqual(set(given), set(self.labelnames))
                return types.SimpleNamespace(inc=lambda n=1: found.append((self.name, given)))

        test, found = self, []
        prometheus = types.ModuleType("prometheus_client")
        prometheus.Counter = prometheus.Gauge = Metric
        modules = stand_in() | {"prometheus_client": prometheus}
        modules["sglang.srt.disaggregation.utils"].DisaggregationMode = types.SimpleNamespace(DECODE="decode")
        sys.modules.update(modules)
        for name in modules:
            self.addCleanup(sys.modules.pop, name, None)
        alone = {"attn_dp_rank": 0, "attn_dp_size": 1, "system_dp_size": 1, "system_dp_rank": 0}
        for kind, expected in (
            (alone, {}),
            (alone | {"attn_dp_rank": 1, "attn_dp_size": 2}, {"dp_rank": "1"}),
            (alone | {"system_dp_rank": 1, "system_dp_size": 2}, {"dp_rank": "1"}),
        ):
            with self.subTest(kind):
                guard = guard_of(ranks.Ranks(), "prefill")
                sys.modules.update(modules)
                guard.record = record.Record("prefill", "", True)
                args = types.SimpleNamespace(state_types=[])
                install.register_memory(types.SimpleNamespace(kv_args=args, disaggregation_mode="prefill", **kind))
                self.assertEqual(guard.data_parallel, (1, 2) if expected else (0, 1))
                found.clear()
                audited = []
                guard.record.audit = lambda event, **facts: audited.append(facts)
                guard.refuse(7, "r", "identity", "another")
                who = {"engine_type": "prefill", **expected}
                self.assertIn(("cofferdam_guard_refused_lineage", {**who, "reason": "identity"}), found)
                self.assertIn(("cofferdam_guard_refusals", {**who, "cause": "identity"}), found)
                self.assertEqual(audited[0].get("dp_rank"), 1 if expected else None)

    def test_a_fault_on_request_names_another_rank_of_prefill(self):
        from cofferdam_guard.sglang import faults, ranks

        guard = guard_of(ranks.Ranks(), "decode")
        bad, good = (types.SimpleNamespace(rid=rid) for rid in ("cofferdam-fault:rank:1", "r"))
        self.assertEqual(faults.asked(guard, bad, 1), 1, "not without COFFERDAM_GUARD_FAULTS")
        guard.config = dataclasses.replace(guard.config, faults=True)
        self.assertEqual([faults.asked(guard, req, 1) for req in (bad, good)], [2, 1])

    def test_a_rejection_by_decode_goes_to_the_rank_that_has_the_request_or_to_all(self):
        from cofferdam_guard.sglang import door, ranks, wire

        guard_of(ranks.Ranks(), "decode")
        for name in stand_in():
            self.addCleanup(sys.modules.pop, name, None)
        told = []

        class Receiver:
            bootstrap_infos, required_dst_info_num = [1], 1

            def __init__(self, mgr, bootstrap_addr, bootstrap_room):
                self.room = bootstrap_room

            def init(self, rank):
                self.rank = rank

            def _connect_to_bootstrap_server(self, info):
                sent = lambda parts: told.append((self.rank, wire.decode(parts[-1], self.room, b"k").message))
                return types.SimpleNamespace(send_multipart=sent), threading.Lock()

            def clear(self):
                pass

        utils = sys.modules["sglang.srt.disaggregation.utils"]
        utils.KVClassType = types.SimpleNamespace(RECEIVER=1)
        utils.get_kv_class = lambda backend, kind: Receiver
        manager = types.SimpleNamespace(
            try_ensure_parallel_info=lambda address: True,
            prefill_info_table={"p": types.SimpleNamespace(dp_size=3)},
            local_ip="ip",
            rank_port=1,
            get_session_id=lambda: "s",
            addr_to_rooms_tracker={"p": set()},
        )
        rejection = wire.Rejection(7, 400, "too long")
        for known, expected in ((2, [2]), (0, [0]), (None, [0, 1, 2])):
            queue = types.SimpleNamespace(
                kv_manager=manager, transfer_backend="mooncake", _resolve_prefill_dp_rank=lambda req: known
            )
            told.clear()
            door._send_rejection(queue, object(), "p", rejection, b"k")
            self.assertEqual(told, [(rank, "too long") for rank in expected])


if __name__ == "__main__":
    unittest.main()
