"""vLLM's block tables, looked at with every step."""

import unittest
from types import SimpleNamespace
from unittest import mock

import numpy as np
from test_vllm import BLOCKS, SIZE, Pool

from cofferdam_guard.evidence import Evidence
from cofferdam_guard.settings import BadSettings
from cofferdam_guard.tensors import BlockSums
from cofferdam_guard.vllm import proof
from cofferdam_guard.vllm.blocks import BlockGuard
from cofferdam_guard.vllm.groups import Group
from cofferdam_guard.vllm.steps import Plan, StepGuard

GROUPS = (Group(0, SIZE, 0, ("full",)), Group(1, SIZE, 6, ("window",)))


class Scheduler:
    """As much of vLLM's as the guard sees: it hands out blocks, and says so with each step."""

    def __init__(self):
        self.evidence = Evidence("vllm")
        self.blocks = BlockGuard(BLOCKS, SIZE, self.evidence)
        self.pool = Pool()
        self.blocks.watch(self.pool)
        self.plan = Plan(self.blocks, lambda request: request.domain)
        self.manager = SimpleNamespace(allocate_slots=self._allocate)
        self.plan.watch(self.manager)
        self.worker = StepGuard(GROUPS, BLOCKS)
        self.rows, self.computed = {}, {}

    def _allocate(self, request, count):
        return [[b.block_id for b in self.pool.get_new_blocks(count)] for _ in GROUPS]

    def start(self, name, tokens, domain=0, cached=None):
        """A request's first step; `cached`: rows that it shares with another."""
        request = SimpleNamespace(request_id=name, domain=domain)
        self.rows[name] = self.manager.allocate_slots(request, -(-tokens // SIZE) if cached is None else 0)
        if cached is not None:
            self.rows[name] = [list(row) for row in cached]
        self.computed[name] = 0
        new = SimpleNamespace(req_id=name, block_ids=self.rows[name])
        return self.step([new], {name: tokens})

    def grow(self, name, tokens):
        request = SimpleNamespace(request_id=name, domain=0)
        more = self.manager.allocate_slots(request, 1) if tokens % SIZE == 0 else None
        if more is not None:
            for row, added in zip(self.rows[name], more):
                row.extend(added)
        return self.step([], {name: 1}, {name: more})

    def step(self, new, scheduled, more=None, ended=()):
        more = more or {}
        cached = SimpleNamespace(req_ids=list(more), new_block_ids=list(more.values()), resumed_req_ids=set())
        output = SimpleNamespace(
            scheduled_new_reqs=new, scheduled_cached_reqs=cached, finished_req_ids=set(ended)
        )
        steps = self.plan.take(output)
        self.worker.bind(steps)
        self.last = scheduled
        found = dict(steps.convicted) | self.look()
        for name, tokens in scheduled.items():
            self.computed[name] += tokens
        return found

    def look(self, change=None):
        names = list(self.last)
        longest = max(len(row) for name in names for row in self.rows[name])
        tables = [np.zeros((len(names), longest), dtype=np.int32) for _ in GROUPS]
        for group, table in enumerate(tables):
            for at, name in enumerate(names):
                row = self.rows[name][group]
                table[at, : len(row)] = row
        if change:
            change(tables)
        computed = [self.computed[name] for name in names]
        return self.worker.check(names, tables, computed, [self.last[name] for name in names])


class Steps(unittest.TestCase):
    def setUp(self):
        self.engine = Scheduler()

    def test_a_request_that_grows_block_by_block_is_never_convicted(self):
        self.assertEqual(self.engine.start("a", 5), {})
        for tokens in range(5, 14):
            self.assertEqual(self.engine.grow("a", tokens), {})
        self.assertEqual(self.engine.worker.looked, 10)

    def test_a_foreign_block_in_any_groups_table_convicts_its_reader_alone(self):
        self.engine.start("a", 8)
        self.engine.start("b", 8)
        self.engine.last = {"a": 1, "b": 1}
        self.engine.computed = {"a": 7, "b": 7}
        self.assertEqual(self.engine.look(), {})
        for group in (0, 1):

            def swap(tables):
                tables[group][0, 1] = tables[group][1, 1]

            found = self.engine.look(swap)
            self.assertEqual(list(found), ["a"])
            self.assertIn(f"group {group} (", found["a"])
            self.assertIn("entry 1 of the block table names block", found["a"])

    def test_a_block_that_was_handed_to_somebody_else_meanwhile_convicts(self):
        self.engine.start("a", 8)
        stolen = self.engine.rows["a"][0][1]
        # The allocator gives it away while its reader is still running.
        self.engine.pool.free.insert(0, SimpleNamespace(block_id=stolen))
        found = self.engine.start("b", 4)
        self.assertEqual(found, {})
        self.engine.last = {"a": 1}
        self.engine.computed["a"] = 7
        self.assertIn(f"block {stolen} under tag", self.engine.look()["a"])

    def test_what_the_window_has_left_may_be_anothers(self):
        self.engine.start("a", 16)
        gone = self.engine.rows["a"][1][0]
        self.engine.pool.free.insert(0, SimpleNamespace(block_id=gone))
        self.engine.start("b", 1)
        self.engine.last, self.engine.computed["a"] = {"a": 1}, 15
        self.assertEqual(self.engine.look(), {})

    def test_fewer_blocks_than_are_read_and_numbers_that_are_none_convict(self):
        self.engine.start("a", 8)
        self.engine.last = {"a": 1}
        self.assertIn("3 blocks are read, 2 are this request's", self.engine.look()["a"])
        self.engine.computed["a"] = 7

        def wild(tables):
            tables[0][0, 0] = BLOCKS + 5

        self.assertIn(f"block {BLOCKS + 5} under no tag", self.engine.look(wild)["a"])

    def test_a_request_of_which_nothing_was_said_is_convicted(self):
        self.engine.start("a", 8)
        self.engine.step([], {"a": 1}, ended=["a"])
        self.assertIn("has never said", self.engine.look()["a"])

    def test_a_block_of_another_domain_convicts_whoever_shares_it(self):
        self.engine.start("a", 8, domain=5)
        shared = self.engine.rows["a"]
        self.assertEqual(self.engine.start("b", 8, domain=5, cached=shared), {})
        found = self.engine.start("c", 8, domain=6, cached=shared)
        self.assertIn("another isolation domain", found["c"])


class Proof(unittest.TestCase):
    def sums(self, layers):
        from cofferdam_guard.settings import load

        secret = load({}, {"COFFERDAM_GUARD_SECRET": "a secret of the fleet"}).secret
        return BlockSums(secret, layers)

    def test_the_self_test_leaves_memory_as_it_was(self):
        layers = [np.arange(BLOCKS * 8, dtype=np.float32).reshape(BLOCKS, 2, 4) for _ in range(2)]
        before = [layer.copy() for layer in layers]
        proof.prove([self.sums(layers)], [Group(0, SIZE, 0, ("a", "b"))])
        self.assertTrue(all((x == y).all() for x, y in zip(before, layers)))
        proof.prove_steps(GROUPS, BLOCKS)

    def test_sums_that_miss_a_layer_end_the_server(self):
        layers = [np.zeros((BLOCKS, 2, 4), np.float32) for _ in range(2)]
        sums = self.sums(layers)
        blind = self.sums(layers[:1])
        with mock.patch.object(sums, "of", blind.of):
            with self.assertRaisesRegex(BadSettings, "changed number in layer b .* equal to"):
                proof.prove([sums], [Group(0, SIZE, 0, ("a", "b"))])

    def test_a_step_check_that_sees_nothing_ends_the_server(self):
        with mock.patch.object(StepGuard, "_row", lambda *a: None):
            with self.assertRaisesRegex(BadSettings, "went unseen"):
                proof.prove_steps(GROUPS, BLOCKS)


if __name__ == "__main__":
    unittest.main()
