"""Several groups of KV caches for one request, and several ranks: each states and compares its own."""

import time
import unittest
from types import SimpleNamespace

from test_vllm import BLOCKS, PROMPT, SIZE, Engine, request

from cofferdam_guard.settings import BadSettings
from cofferdam_guard.vllm.groups import Group, groups_of

# As Gemma 3 has them: windows of 5 tokens, and layers that see all.
WINDOWED = (
    Group(0, SIZE, 5, ("w0", "w1")),
    Group(1, SIZE, 5, ("w2",)),
    Group(2, SIZE, 0, ("full",)),
)
PORT = 21710


class FullAttentionSpec:
    def __init__(self, block_size=32, sliding_window=None):
        self.block_size, self.sliding_window = block_size, sliding_window


class SlidingWindowSpec(FullAttentionSpec):
    pass


class MambaSpec(FullAttentionSpec):
    pass


def config(*specs, transferred=None):
    groups = [
        SimpleNamespace(kv_cache_spec=spec, layer_names=[f"layer{at}.{n}" for n in range(2)])
        for at, spec in enumerate(specs)
    ]
    kept = groups if transferred is None else groups[:transferred]
    return SimpleNamespace(kv_cache_groups=groups, transfer_groups=kept)


class Kinds(unittest.TestCase):
    def test_groups_that_are_known_are_taken_in_order(self):
        found = groups_of(config(SlidingWindowSpec(32, 128), FullAttentionSpec(16, 128)))
        self.assertEqual([(g.block_size, g.window) for g in found], [(32, 128), (16, 0)])
        self.assertEqual(found[1].layers, ("layer1.0", "layer1.1"))
        self.assertNotEqual(found[0].bound(), found[1].bound())

    def test_one_that_is_not_known_is_refused_by_name(self):
        for unknown, named in (
            (config(FullAttentionSpec(), MambaSpec()), r"MambaSpec \(layer1.0, layer1.1\)"),
            (config(FullAttentionSpec(), FullAttentionSpec(), transferred=1), "1 groups that vLLM"),
            (config(), "no KV cache at all"),
        ):
            with self.subTest(named), self.assertRaisesRegex(BadSettings, named):
                groups_of(unknown)

    def test_what_a_window_has_left_is_not_stated(self):
        # 400 tokens in 13 blocks: prefill keeps those from token 273 on, decode reads from 272 on.
        group = Group(0, 32, 128)
        self.assertEqual((group.total(400), group.first(400), group.stated(400)), (13, 8, 5))
        self.assertEqual((group.covered(400), group.first_read(400)), (144, 8))
        # One token later in the block of 32 the two differ.
        self.assertEqual((group.first(415), group.first_read(415)), (9, 8))
        self.assertEqual((group.first(90), group.stated(90)), (0, 3))

    def test_memory_that_belongs_to_no_group_or_is_no_tensor_is_refused_by_name(self):
        engine = Engine(PORT, groups=WINDOWED)
        self.addCleanup(engine.close)
        fresh = lambda: setattr(engine.worker, "_sums", [])
        for change, named in (
            (lambda kv: kv | {"indexer": kv["full"]}, "indexer, which is in no group"),
            (lambda kv: {n: t for n, t in kv.items() if n != "w2"}, "w2 of a group, without memory"),
            (lambda kv: kv | {"w2": (kv["w2"], kv["w2"])}, r"w2, which is no single tensor \(tuple\)"),
        ):
            fresh()
            with self.subTest(named), self.assertRaisesRegex(BadSettings, named):
                engine.worker.register(change(engine.kv), BLOCKS)


class Groups(unittest.TestCase):
    def setUp(self):
        self.p = Engine(PORT, serve=True, groups=WINDOWED)
        self.d = Engine(PORT + 1, groups=WINDOWED)
        self.addCleanup(self.p.close)
        self.addCleanup(self.d.close)

    def counts(self):
        return self.d.evidence.take()

    def test_every_group_is_stated_and_compared(self):
        params = self.p.prefill("p")
        self.assertEqual(params["remote_block_ids"][0][0], 0, "the window has left the first block")
        self.assertEqual(self.d.fetch("d", params, self.p), "answered")
        # 9 tokens in 3 blocks: two of them in each window, all three in the third group.
        self.assertEqual(self.counts(), {"verified_total": 1, "verified_blocks_total": 7})

    def test_a_fault_in_any_group_is_refused_and_named(self):
        def flipped(group):
            def spoil(kv, rows):
                kv[WINDOWED[group].layers[-1]][rows[group][-1]] ^= 1

            return spoil

        for group in range(3):
            params = self.p.prefill(f"p{group}")
            with self.subTest(group), self.assertLogs("cofferdam_guard") as said:
                got = self.d.fetch(f"d{group}", params, self.p, spoil=flipped(group))
                self.assertEqual(got, "failed")
                self.assertIn(f"group {group} (", said.output[0])
            self.assertEqual(self.counts()["refused_content_total"], 1)
            for engine, name in ((self.p, f"p{group}"), (self.d, f"d{group}")):
                engine.scheduler.transfers_ended({name})
                engine.pool.free = [SimpleNamespace(block_id=number) for number in range(1, BLOCKS)]

    def test_what_lies_before_the_window_may_hold_anything(self):
        def before(kv, rows):
            for group in (0, 1):
                for layer in WINDOWED[group].layers:
                    kv[layer][rows[group][0]] ^= 7

        params = self.p.prefill("p")
        self.assertEqual(self.d.fetch("d", params, self.p, spoil=before), "answered")

    def test_a_reference_is_for_its_own_group(self):
        params = self.p.prefill("p")
        first, second, third = params["cofferdam_guard"].split(",")
        for spoilt in (f"{second},{first},{third}", f"{first},{second}", f"{third},{third},{third}"):
            asked = request("d", PROMPT, None, dict(params) | {"cofferdam_guard": spoilt})
            with self.subTest(spoilt[:8]), self.assertLogs("cofferdam_guard"):
                self.assertTrue(self.d.scheduler.judge(asked).refused)
            self.d.scheduler.finished(asked, None, False)

    def test_a_block_that_prefill_has_given_back_and_decode_reads_is_refused(self):
        # 8 tokens, window 5: prefill keeps from token 4 on, decode reads from token 3 on.
        prompt = PROMPT[:8]
        params = self.p.prefill("p", prompt)
        with self.assertLogs("cofferdam_guard") as said:
            self.assertEqual(self.d.fetch("d", params, self.p, prompt), "failed")
        self.assertIn("prefill has given back a block that decode reads", said.output[0])


class Ranks(unittest.TestCase):
    """vLLM asks all workers; a load has failed if it failed on one, and is over when all have spoken."""

    def setUp(self):
        self.p = Engine(PORT + 10, serve=True, ranks=2)
        self.d = Engine(PORT + 12, ranks=2)
        # Second workers of the same schedulers, with shares of their own.
        self.shares = []
        for engine, serve in ((self.p, True), (self.d, False)):
            share = Engine(PORT + 20 + len(self.shares), rank=1, ranks=2)
            share.worker.settings = engine.scheduler.settings
            if serve:
                share.worker.serve("127.0.0.1", PORT + 10)
            self.shares.append(share)
        for engine in (self.p, self.d, *self.shares):
            self.addCleanup(engine.close)

    def handoff(self, spoil_rank=None):
        """What the two workers of decode report: (finished, failed) of each."""
        prefill, decode = (self.p, self.shares[0]), (self.d, self.shares[1])
        asked = request("p", PROMPT, None, {"do_remote_decode": True})
        blocks = self.p.take(len(PROMPT))
        self.p.scheduler.prefill_begins(asked)
        handover = self.p.scheduler.take_handover({"p": len(PROMPT)}, lambda _: [blocks])
        for one in prefill:
            one.worker.bind(handover)
            one.worker.after_forward()
        params = {"do_remote_prefill": True, "remote_block_ids": [blocks], "tp_size": 2}
        self.p.scheduler.finished(asked, params, True)
        got = request("d", PROMPT, None, params)
        self.assertIsNone(self.d.scheduler.fetch_is_refused(got, 0))
        row = self.d.take(len(PROMPT))
        self.assertTrue(self.d.scheduler.fetch_begins(got, [row], len(PROMPT)))
        handover = self.d.scheduler.take_handover({}, lambda _: [])
        said = []
        for rank, (source, target) in enumerate(zip(prefill, decode)):
            target.worker.bind(handover)
            for layer in target.kv:
                target.kv[layer][row] = source.kv[layer][blocks]
            if rank == spoil_rank:
                target.kv["layer1"][row[1]] ^= 1
            said.append(self.verdict(target.worker, "d"))
        return said

    def verdict(self, worker, name):
        finished, end = {name}, time.monotonic() + 10
        while time.monotonic() < end:
            report, failed = worker.receiving_ended(finished, set())
            if name in report:
                return name in failed
            finished = set()
            time.sleep(0.002)
        raise AssertionError("a rank was left without a verdict")

    def test_each_rank_compares_its_share_with_its_own_peer(self):
        # The shares differ, so one rank's statement would not do for the other.
        self.assertFalse((self.p.kv["layer0"] == self.shares[0].kv["layer0"]).all())
        self.assertEqual(self.handoff(), [False, False])

    def test_one_bad_rank_refuses_and_the_other_is_not_left_waiting(self):
        with self.assertLogs("cofferdam_guard") as said:
            self.assertEqual(self.handoff(spoil_rank=1), [False, True])
        self.assertIn("rank 1: block 1", said.output[0])

    def test_unequal_tensor_parallelism_is_refused_at_the_door(self):
        params = {"do_remote_prefill": True, "cofferdam_guard": "00", "tp_size": 1}
        with self.assertLogs("cofferdam_guard") as said:
            self.assertTrue(self.d.scheduler.judge(request("x", PROMPT, None, params)).refused)
        self.assertIn("prefill has 1 ranks, decode 2", said.output[0])
        self.assertEqual(self.d.evidence.take_told()[0][1], "setup")


if __name__ == "__main__":
    unittest.main()
