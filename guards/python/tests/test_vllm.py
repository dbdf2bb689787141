"""The vLLM guard's two halves without vLLM: a prefill and a decode instance made of the same
classes, a transport that is a copy of memory, and the real side channel between them."""

import json
import time
import unittest
from types import SimpleNamespace
from unittest import mock

import numpy as np

from cofferdam_guard.evidence import Evidence
from cofferdam_guard.settings import load
from cofferdam_guard.tensors import Unread
from cofferdam_guard.vllm.blocks import BlockGuard
from cofferdam_guard.vllm.groups import Group
from cofferdam_guard.vllm.handover import FIELD
from cofferdam_guard.vllm.scheduler import SchedulerGuard
from cofferdam_guard.vllm.worker import WorkerGuard

BLOCKS, SIZE = 16, 4
SECRET = {"COFFERDAM_GUARD_SECRET": "a secret of the fleet"}
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]
CAUSE = {
    "refused_content_total": "content",
    "refused_lineage_total": "identity",
    "refused_reuse_total": "identity",
    "refused_unguarded_total": "setup",
    "refused_statement_total": "slow",
    "refused_lease_total": "slow",
    "refused_life_total": "gone",
}


class Pool:
    """As much of vLLM's block pool as the guard sees."""

    def __init__(self):
        # Block 0 is nobody's.
        self.free = [SimpleNamespace(block_id=number) for number in range(1, BLOCKS)]

    def get_new_blocks(self, num_blocks):
        if num_blocks > len(self.free):
            raise ValueError("not enough free blocks")
        taken, self.free = self.free[:num_blocks], self.free[num_blocks:]
        return taken

    def free_blocks(self, blocks):
        self.free = list(blocks) + self.free


def request(name, prompt=PROMPT, salt=None, params=None):
    return SimpleNamespace(
        request_id=name,
        prompt_token_ids=list(prompt),
        prompt_embeds=None,
        num_prompt_tokens=len(prompt),
        num_computed_tokens=0,
        num_preemptions=0,
        lora_request=None,
        mm_features=[],
        cache_salt=salt,
        kv_transfer_params=params,
        abort_immediately=False,
    )


# Two layers, of which each token sees all before it.
GROUPS = (Group(0, SIZE, 0, ("layer0", "layer1")),)


class Engine:
    """A scheduler's guard, a worker's guard, a pool and its memory."""

    def __init__(self, port, policy="fail", wait_s=2, serve=False, rank=0, ranks=1, groups=GROUPS, steps=True):
        settings = load({"guard_policy": policy, "guard_wait_s": wait_s}, SECRET)
        self.evidence = Evidence("vllm")
        model = SimpleNamespace(model="m", revision=None)
        transfer = SimpleNamespace(get_from_extra_config=lambda name, default: default)
        config = SimpleNamespace(
            parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
            model_config=model,
            kv_transfer_config=transfer,
        )
        self.groups = list(groups)
        address = f"127.0.0.1:{port}"
        self.scheduler = SchedulerGuard(config, BLOCKS, settings, self.evidence, address, self.groups)
        self.worker = WorkerGuard(settings, self.evidence, rank, 30, self.groups)
        self.pool = Pool()
        self.scheduler.blocks.watch(self.pool)
        self.manager = SimpleNamespace(allocate_slots=lambda asked, tokens: self.take(tokens))
        if steps:
            self.scheduler.plan.watch(self.manager)
        rng = np.random.default_rng(port)
        layers = [layer for group in groups for layer in group.layers]
        self.kv = {layer: rng.integers(0, 99, (BLOCKS, SIZE, 6), np.int32) for layer in layers}
        self.worker.register(self.kv, BLOCKS)
        if serve:
            self.worker.serve("127.0.0.1", port)

    def step(self, scheduled=None, rows=(), forward=True):
        handover = self.scheduler.take_handover(scheduled or {}, lambda _: [list(row) for row in rows])
        self.worker.bind(handover)
        if forward:
            self.worker.after_forward()

    def take(self, tokens):
        return [b.block_id for b in self.pool.get_new_blocks(-(-tokens // SIZE))]

    def prefill(self, name, prompt=PROMPT, salt=None, forward=True):
        """Computes a prompt; gives what goes to the client."""
        asked = request(name, prompt, salt, {"do_remote_decode": True})
        rows = [self.manager.allocate_slots(asked, len(prompt)) for _ in self.groups]
        for group, row in zip(self.groups, rows):
            for layer in group.layers:
                for at, block in enumerate(row):
                    self.kv[layer][block] = hash((tuple(prompt), salt, at)) % 1000 + np.arange(6)
        self.scheduler.prefill_begins(asked)
        self.step({name: len(prompt)}, rows, forward)
        # What the window has left is given back, and block 0 stands for it.
        first = [group.first(len(prompt)) for group in self.groups]
        params = {
            "do_remote_prefill": True,
            "remote_block_ids": [[0] * at + row[at:] for at, row in zip(first, rows)],
            "remote_engine_id": "p",
            "remote_request_id": name,
        }
        self.scheduler.finished(asked, params, True)
        return json.loads(json.dumps(params))

    def fetch(self, name, params, source, prompt=PROMPT, salt=None, spoil=None, cached=0):
        """Decode with these references: "recomputed", "failed", or "answered"."""
        asked = request(name, prompt, salt, params)
        refused = self.scheduler.fetch_is_refused(asked, cached * SIZE)
        if refused == (0, False):
            return "recomputed"
        external = len(prompt) - cached * SIZE
        rows = [self.take(external) for _ in self.groups]
        if self.scheduler.fetch_begins(asked, rows, external):
            for group, row, theirs in zip(self.groups, rows, params["remote_block_ids"]):
                for layer in group.layers:
                    self.kv[layer][row] = source.kv[layer][theirs[cached:]]
            if spoil:
                spoil(self.kv, rows[0] if len(rows) == 1 else rows)
            finished = {name}
        else:
            finished = set()
        self.step()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            report, failed = self.worker.receiving_ended(finished, set())
            finished = set()
            if name in report:
                self.scheduler.transfers_ended({name})
                return "failed" if name in failed else "answered"
            time.sleep(0.002)
        raise AssertionError("no verdict")

    def close(self):
        self.worker.close()


class Later(Unread):
    """Sums that are on their way from a device when the step ends, and there at the next look."""

    looked = False

    def ready(self):
        self.looked, before = True, self.looked
        return before and super().ready()


class Never(Unread):
    """Sums that never arrive."""

    def ready(self):
        return False


class PairTest(unittest.TestCase):
    port = 21600  # below those that a kernel gives to clients

    def setUp(self):
        PairTest.port += 1
        self.p = Engine(PairTest.port, serve=True)
        self.d = Engine(PairTest.port, wait_s=1)
        self.addCleanup(self.p.close)
        self.addCleanup(self.d.close)

    def counts(self, engine=None):
        return (engine or self.d).evidence.take()

    def assert_refused(self, got, counter, engine=None):
        """Refused and counted: by its counter, and by the cause that belongs to it."""
        self.assertEqual(got, "failed")
        self.assertEqual(self.counts(engine), {counter: 1, f"refusals_{CAUSE[counter]}": 1})

    def test_what_was_computed_for_the_request_is_answered(self):
        self.assertEqual(self.d.fetch("d", self.p.prefill("p"), self.p), "answered")
        self.assertEqual(self.counts(), {"verified_total": 1, "verified_blocks_total": 3})
        self.assertEqual(self.counts(self.p), {"stated_total": 1})

    def test_blocks_behind_a_local_prefix_are_compared_in_their_places(self):
        self.assertEqual(self.d.fetch("d", self.p.prefill("p"), self.p, cached=2), "answered")
        self.assertEqual(self.counts(), {"verified_total": 1, "verified_blocks_total": 1})

    def test_references_are_for_one_prompt_one_salt_and_one_use(self):
        params = self.p.prefill("p")
        other = self.d.fetch("d1", dict(params), self.p, prompt=PROMPT[:-1] + [7])
        self.assert_refused(other, "refused_lineage_total")
        self.assert_refused(self.d.fetch("d2", dict(params), self.p, salt="s"), "refused_lineage_total")
        self.assertEqual(self.d.fetch("d3", dict(params), self.p), "answered")
        self.counts()
        self.assert_refused(self.d.fetch("d4", dict(params), self.p), "refused_reuse_total")

    def test_a_prompt_with_a_salt_is_handed_over_like_any_other(self):
        """Its blocks are of its own domain on prefill."""
        params = self.p.prefill("p", salt="s")
        self.assertEqual(self.d.fetch("d", params, self.p, salt="s"), "answered")
        self.assertEqual(self.counts(self.p), {"stated_total": 1})

    def test_without_the_check_of_each_step_it_is_handed_over_too_and_nothing_is_kept_for_that_check(self):
        bare = Engine(PairTest.port + 50, serve=True, steps=False)
        self.addCleanup(bare.close)
        params = bare.prefill("p", salt="s")
        self.assertEqual(self.d.fetch("d", params, bare, salt="s"), "answered")
        self.assertEqual(bare.scheduler.blocks.take_granted(), [])

    def test_a_second_decode_instance_is_refused_by_the_producer(self):
        params = self.p.prefill("p")
        self.assertEqual(self.d.fetch("d1", dict(params), self.p), "answered")
        other = Engine(PairTest.port, wait_s=1)
        self.addCleanup(other.close)
        self.assert_refused(other.fetch("d2", dict(params), self.p), "refused_reuse_total", other)

    def test_other_block_ids_or_no_reference_are_refused_before_anything_is_fetched(self):
        params = self.p.prefill("p")
        wrong = params | {"remote_block_ids": [[7, 8, 9]]}
        self.assert_refused(self.d.fetch("d1", wrong, self.p), "refused_lineage_total")
        bare = {name: value for name, value in params.items() if name != FIELD}
        self.assert_refused(self.d.fetch("d2", bare, self.p), "refused_unguarded_total")
        self.assertIsNone(bare["remote_block_ids"], "the stock connector must not act on it")

    def test_a_note_that_frees_blocks_needs_a_genuine_reference_that_was_not_refused_here(self):
        told = []

        def note(params):
            asked = request(f"x{len(told)}", [0], None, dict(params))
            told.append(asked)
            asked.abort_immediately = True
            verdict = self.d.scheduler.judge(asked)
            self.assertEqual(verdict.refused, asked.kv_transfer_params["remote_block_ids"] is None)
            return not verdict.refused

        params = self.p.prefill("p")
        self.assertFalse(note(params | {"remote_request_id": "somebody else's"}))
        self.assertTrue(note(params))
        self.assertFalse(note(params), "told once")
        params = self.p.prefill("p2")
        self.assertEqual(self.d.fetch("d", dict(params), self.p, prompt=[1]), "failed")
        self.assertFalse(note(params), "its rightful reader may still come")
        counted = {"refused_lineage_total": 1, "refusals_identity": 1}
        self.assertEqual(self.counts(), counted, "counted once, not twice")

    def test_with_policy_recompute_nothing_refused_at_the_door_is_fetched(self):
        d = Engine(PairTest.port, policy="recompute")
        self.addCleanup(d.close)
        params = self.p.prefill("p")
        self.assertEqual(d.fetch("d", params, self.p, prompt=PROMPT[:-1] + [7]), "recomputed")

    def test_every_fault_of_a_transfer_is_refused(self):
        def unwritten(kv, blocks):
            kv["layer1"][blocks[-1]] = 0

        def flipped(kv, blocks):
            kv["layer0"][blocks[1], 2, 3] ^= 1 << 30

        def swapped(kv, blocks):
            for layer in kv.values():
                layer[[blocks[0], blocks[1]]] = layer[[blocks[1], blocks[0]]]

        for number, spoil in enumerate([unwritten, flipped, swapped]):
            with self.subTest(spoil.__name__):
                got = self.d.fetch(f"d{number}", self.p.prefill(f"p{number}"), self.p, spoil=spoil)
                self.assert_refused(got, "refused_content_total")
                self.assertEqual(self.d.scheduler.blocks.holds, 0, "and its blocks are given back")

    def test_blocks_that_were_given_to_somebody_else_meanwhile_are_refused(self):
        params = self.p.prefill("p")
        self.p.scheduler.transfers_ended({"p"})  # the lease has ended unnoticed
        self.p.pool.free_blocks([SimpleNamespace(block_id=b) for b in params["remote_block_ids"][0]])
        self.p.prefill("victim", [8] * 9)
        self.assert_refused(self.d.fetch("d", params, self.p), "refused_content_total")

    def test_after_its_lease_or_in_another_life_a_reference_is_worth_nothing(self):
        params = self.p.prefill("p")
        self.p.worker.sending_ended({"p"}, expired={"p"})
        self.assert_refused(self.d.fetch("d1", params, self.p), "refused_lease_total")
        params = self.p.prefill("p2")
        self.p.close()
        self.p = Engine(PairTest.port, serve=True)
        self.addCleanup(self.p.close)
        self.p.step()
        self.assert_refused(self.d.fetch("d2", params, self.p), "refused_life_total")

    def refusal(self, got, counter):
        """What the audit log says of the only refusal."""
        with self.assertLogs("cofferdam_guard", "ERROR") as logged:
            self.assert_refused(got(), counter)
        self.assertEqual(len(logged.output), 1)
        return json.loads(logged.output[0].partition("cofferdam-guard: ")[2])

    def test_slowness_is_told_from_content_and_says_who_kept_whom_waiting(self):
        def fetch(name, params, **more):
            return lambda: self.d.fetch(name, params, self.p, **more)

        # Prefill's guard answers, and its step is not over.
        params = self.p.prefill("p1", forward=False)
        said = self.refusal(fetch("d1", params), "refused_statement_total")
        self.assertEqual((said["reason"], said["cause"]), ("not_stated", "slow"))
        self.assertRegex(said["detail"], r"blocks arrived \d.* answered \d+ times .* not computed yet")
        self.p.step()
        # This instance's device has no checksums of what arrived.
        params = self.p.prefill("p2")
        with mock.patch("cofferdam_guard.vllm.worker.Unread", Never):
            said = self.refusal(fetch("d2", params), "refused_statement_total")
        self.assertEqual((said["reason"], said["cause"]), ("unread", "slow"))
        self.assertIn("this instance's device gave no checksums", said["detail"])
        # Prefill had released the blocks.
        params = self.p.prefill("p3")
        self.p.worker.sending_ended({"p3"}, expired={"p3"})
        said = self.refusal(fetch("d3", params), "refused_lease_total")
        self.assertEqual((said["reason"], said["cause"]), ("expired", "slow"))
        # Content stays content, however late.
        params = self.p.prefill("p4")

        def flip(kv, blocks):
            kv["layer0"][blocks[1], 2, 3] ^= 1 << 30

        said = self.refusal(fetch("d4", params, spoil=flip), "refused_content_total")
        self.assertEqual(said["cause"], "content")
        # Nobody answers at all.
        params = self.p.prefill("p5")
        self.p.close()
        said = self.refusal(fetch("d5", params), "refused_statement_total")
        self.assertEqual((said["reason"], said["cause"]), ("silent", "slow"))
        self.assertRegex(said["detail"], r"answered none of \d+ questions")
        told = [(name, cause) for name, cause, _ in self.d.evidence.take_told()]
        slow = [(f"d{n}", "slow") for n in (1, 2, 3)]
        self.assertEqual(told, [*slow, ("d4", "content"), ("d5", "slow")])

    def test_a_statement_is_given_in_a_step_without_a_forward_pass_too(self):
        with mock.patch("cofferdam_guard.vllm.worker.Unread", Later):
            params = self.p.prefill("p")
        self.p.worker.sending_ended(set(), set())
        self.assertEqual(self.d.fetch("d", params, self.p), "answered")

    def test_statements_are_given_in_order_and_a_void_one_ends_no_other(self):
        with mock.patch("cofferdam_guard.vllm.worker.Unread", Later):
            first = self.p.prefill("p1")
        second = self.p.prefill("p2", [2] * 9)
        void = request("p3", [4] * 9, params={"do_remote_decode": True})
        self.p.scheduler.prefill_begins(void)
        self.p.step({"p3": 9}, [self.p.take(9)])
        self.p.scheduler.finished(void, None, False)
        self.p.step()  # later serials are complete or void, the first has just become readable
        self.assertEqual(self.d.fetch("d1", first, self.p), "answered")
        self.assertEqual(self.d.fetch("d2", second, self.p, prompt=[2] * 9), "answered")

    def test_behind_a_statement_that_is_not_ready_nothing_looks_expired(self):
        with mock.patch("cofferdam_guard.vllm.worker.Unread", Never):
            params = self.p.prefill("p1")
        self.p.prefill("p2", [2] * 9)
        void = request("p3", [4] * 9, params={"do_remote_decode": True})
        self.p.scheduler.prefill_begins(void)
        self.p.step({"p3": 9}, [self.p.take(9)])
        self.p.scheduler.finished(void, None, False)
        self.p.step()
        said = self.refusal(lambda: self.d.fetch("d", params, self.p), "refused_statement_total")
        self.assertEqual(said["reason"], "not_stated")

    def test_draft_tokens_are_never_stated_as_filled(self):
        asked = request("p", PROMPT, None, {"do_remote_decode": True})
        blocks = self.p.take(len(PROMPT) + 4)
        self.p.scheduler.prefill_begins(asked)
        # The step computes the prompt and, behind it, drafts in a block of their own.
        handover = self.p.scheduler.take_handover({"p": len(PROMPT) + 4}, lambda _: [blocks])
        (state,) = handover.state["p"]
        self.assertEqual((state.tokens, state.blocks), (len(PROMPT), blocks[:3]))

    def test_a_load_that_nobody_announced_is_refused(self):
        report, failed = self.d.worker.receiving_ended({"x"}, set())
        self.assertEqual((report, failed), ({"x"}, {"x"}))
        counted = {"refused_unguarded_total": 1, "refusals_identity": 1}
        self.assertEqual(self.counts(), counted)

    def test_no_reference_is_given_for_more_or_fewer_blocks_than_were_stated(self):
        asked = request("p", params={"do_remote_decode": True})
        blocks = self.p.take(9)
        self.p.scheduler.prefill_begins(asked)
        self.p.step({"p": 9}, [blocks])
        params = {"do_remote_prefill": True, "remote_block_ids": (blocks + [15],)}
        self.p.scheduler.finished(asked, params, True)
        self.assertNotIn(FIELD, params)


class Blocks(unittest.TestCase):
    def setUp(self):
        self.evidence, self.pool = Evidence("vllm"), Pool()
        self.guard = BlockGuard(BLOCKS, SIZE, self.evidence)
        self.guard.watch(self.pool)

    def take(self, n):
        return [block.block_id for block in self.pool.get_new_blocks(n)]

    def test_every_block_that_is_handed_out_stands_under_a_new_tag(self):
        first = self.guard.ledger.tags(self.take(2))
        self.pool.free_blocks([SimpleNamespace(block_id=b) for b in (1, 2)])
        again = self.guard.ledger.tags(self.take(2))
        self.assertGreater(min(again), max(first))

    def test_a_held_block_that_vllm_frees_is_kept_aside_until_the_hold_ends(self):
        self.take(3)
        self.guard.hold("send", [1, 2])
        # vLLM frees it too early (as in vllm#32255) and wants to hand it out again.
        self.pool.free_blocks([SimpleNamespace(block_id=b) for b in (1, 3)])
        with self.assertLogs("cofferdam_guard"):
            self.assertEqual(self.take(2), [3, 4])
        counts = self.evidence.take()
        self.assertEqual(counts, {"held_blocks_reused_total": 1, "quarantined_blocks_total": 1})
        self.guard.end_hold("send")
        self.assertEqual(self.take(1), [1])

    def test_when_only_held_blocks_are_left_nothing_is_handed_out(self):
        self.take(BLOCKS - 1)
        self.guard.hold("send", [1])
        self.pool.free_blocks([SimpleNamespace(block_id=1)])
        with self.assertLogs("cofferdam_guard"), self.assertRaises(ValueError):
            self.take(1)


if __name__ == "__main__":
    unittest.main()
