"""SGLang's self-test at start, on memory of our own and a transfer engine that copies."""

import ctypes
import sys
import types
import unittest
from unittest import mock

try:
    import torch
except ImportError:  # torch comes with the engine, not with the package
    torch = None

from test_sglang_lifetime import stand_in

PAGES, ITEM = 8, 64


class Manager:
    """As much of the transfer manager as the self-test uses; `drop` leaves blocks out."""

    def __init__(self, ret=0, drop=0):
        self.ret, self.drop, self.registered = ret, drop, []
        self.engine = self

    def batch_register(self, pointers, lengths):
        self.registered += pointers

    def batch_deregister(self, pointers):
        for one in pointers:
            self.registered.remove(one)

    def get_session_id(self):
        return "here"

    def _transfer_data(self, session, blocks):
        for source, target, length in blocks[self.drop :]:
            ctypes.memmove(target, source, length)
        return self.ret


@unittest.skipUnless(torch, "torch is not installed")
class Proof(unittest.TestCase):
    def setUp(self):
        from cofferdam_guard import core
        from cofferdam_guard.sglang import config, hooks, pages, proof, record, state, step

        for name, module in stand_in().items():
            sys.modules[name] = module
            self.addCleanup(sys.modules.pop, name, None)
        self.proof, self.pages, self.step, self.NotInPlace = proof, pages, step, hooks.NotInPlace
        secret = core.Secret(b"s" * 32)
        chosen = config.Config(secret, b"k" * 64, "", 0.5, True, True, False, False, "")
        self.guard = state.Guard(chosen, "decode", record.Record("decode", "", False))
        self.buffers = [torch.full((PAGES, ITEM // 4), 3.0) for _ in range(3)]
        args = types.SimpleNamespace(
            kv_data_ptrs=[one.data_ptr() for one in self.buffers],
            kv_data_lens=[PAGES * ITEM] * 3,
            kv_item_lens=[ITEM] * 3,
        )
        pool = types.SimpleNamespace(k_buffer=self.buffers)
        self.guard.kv = pages.KvBytes(args, [pool], secret)
        self.guard.table = pages.TagTable(PAGES, "cpu")
        table = torch.arange(12, dtype=torch.int32).reshape(2, 6)
        self.rows = table.clone()
        self.scheduler = types.SimpleNamespace(
            req_to_token_pool=types.SimpleNamespace(req_to_token=table)
        )

    def prove(self, manager=None):
        self.proof.prove(self.guard, self.scheduler, manager or Manager())

    def test_it_passes_and_leaves_nothing_behind(self):
        manager = Manager()
        for role in ("decode", "prefill"):
            self.guard.role = role
            if role == "prefill":
                self.guard.table = None
            self.prove(manager)
            self.assertEqual(manager.registered, [])
        self.assertTrue(all((one[[0, 3, 4, 5, 6, 7]] == 3.0).all() for one in self.buffers))
        self.assertTrue(all((one[1:3] == 0).all() for one in self.buffers), "what it wrote is wiped")
        pool = self.scheduler.req_to_token_pool.req_to_token
        self.assertTrue((pool == self.rows).all())

    def test_a_transfer_that_fails_or_leaves_something_out_ends_the_server(self):
        with self.assertRaisesRegex(self.NotInPlace, "could not write to this process's own memory"):
            self.prove(Manager(ret=-1))
        with self.assertRaisesRegex(self.NotInPlace, "arrived whole to be altered, not ok"):
            self.prove(Manager(drop=1))

    def test_what_the_guard_would_not_notice_ends_the_server(self):
        sums = self.guard.kv._sums
        blind = lambda pages: torch.zeros(len(pages), dtype=torch.int64)
        with mock.patch.object(sums, "of", blind):
            with self.assertRaisesRegex(self.NotInPlace, "one flipped bit in buffer 0 to be ok"):
                self.prove()
        nothing = lambda *a: types.SimpleNamespace(wrong=types.SimpleNamespace(read=lambda: [0]))
        with mock.patch.object(self.step, "check", nothing):
            with self.assertRaisesRegex(self.NotInPlace, "found .0. foreign pages, not 1"):
                self.prove()


if __name__ == "__main__":
    unittest.main()
