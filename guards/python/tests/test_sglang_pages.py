"""Page tags: each thing that goes wrong with a page has its own reason, nothing else has one."""

import types
import unittest

try:
    import torch
except ImportError:  # torch comes with the engine, not with the package
    torch = None

PAGES, COUNT = 12, 4


@unittest.skipUnless(torch, "torch is not installed")
class Tags(unittest.TestCase):
    def setUp(self):
        from cofferdam_guard.core import Secret
        from cofferdam_guard.sglang import pages

        self.page = pages
        torch.manual_seed(3)
        self.buffers = [torch.randn(PAGES, 2, 8).to(torch.bfloat16) for _ in range(4)]
        args = types.SimpleNamespace(
            kv_data_ptrs=[b.data_ptr() for b in self.buffers],
            kv_data_lens=[b.numel() * 2 for b in self.buffers],
            kv_item_lens=[b[0].numel() * 2 for b in self.buffers],
        )
        pool = types.SimpleNamespace(k_buffer=self.buffers[:2], v_buffer=self.buffers[2:])
        self.kv = pages.KvBytes(args, [pool, None], Secret(b"s" * 32))
        self.table = pages.TagTable(PAGES, "cpu")
        self.tags = pages.Tags((11, -22), 4711, 2**62, COUNT)
        self.where = [5, 2, 9, 7]
        at = torch.tensor(self.where)
        self.table.rows[at] = self.tags.rows(0, self.kv.sums(self.where))

    def reasons(self, tags=None):
        rows = self.table.rows[torch.tensor(self.where)]
        found = (tags or self.tags).judge(rows, self.kv.sums(self.where))
        return [self.page.REASONS[r] for r in found.tolist()]

    def test_what_was_sent_is_accepted(self):
        self.assertEqual(self.reasons(), ["ok"] * COUNT)

    def test_chunks_make_the_same_rows_as_one_piece(self):
        sums = self.kv.sums(self.where)
        whole = self.tags.rows(0, sums)
        parts = torch.cat([self.tags.rows(0, sums[:1]), self.tags.rows(1, sums[1:])])
        self.assertTrue(torch.equal(whole, parts))

    def test_an_unwritten_page(self):
        self.table.clear(torch.tensor([9]))
        self.assertEqual(self.reasons(), ["ok", "ok", "unwritten", "ok"])

    def test_one_bit_of_any_buffer(self):
        for buffer in self.buffers:
            raw = buffer.view(torch.uint8)
            for at, bit in ((0, 1), (3, 0x80), (15, 0x10)):
                raw[2].view(-1)[at] ^= bit
                self.assertEqual(self.reasons(), ["ok", "altered", "ok", "ok"])
                raw[2].view(-1)[at] ^= bit
        self.assertEqual(self.reasons(), ["ok"] * COUNT)

    def test_two_top_bits_do_not_cancel(self):
        raw = self.buffers[0].view(torch.uint8)
        raw[2].view(-1)[7] ^= 0x80
        raw[2].view(-1)[15] ^= 0x80
        self.assertEqual(self.reasons(), ["ok", "altered", "ok", "ok"])

    def test_a_page_of_another_reservation(self):
        other = self.page.Tags((11, -22), 4713, 2**62, COUNT)
        self.table.rows[7] = other.rows(3, self.kv.sums([7]))[0]
        self.assertEqual(self.reasons(), ["ok", "ok", "ok", "foreign"])

    def test_pages_in_another_order(self):
        rows = self.table.rows[[5, 2]].clone()
        self.table.rows[5], self.table.rows[2] = rows[1], rows[0]
        self.assertEqual(self.reasons()[:2], ["misplaced", "misplaced"])

    def test_another_count(self):
        longer = self.page.Tags((11, -22), 4711, 2**62, COUNT + 1)
        self.assertEqual(self.reasons(longer), ["misplaced"] * COUNT)

    def test_a_tag_that_is_not_whole(self):
        self.table.rows[5, self.page.SEAL] ^= 1
        self.assertEqual(self.reasons()[0], "torn")

    def test_a_tag_sealed_with_another_key(self):
        forged = self.page.Tags((12, -22), 4711, 2**62, COUNT)
        self.table.rows[torch.tensor(self.where)] = forged.rows(0, self.kv.sums(self.where))
        self.assertEqual(self.reasons(), ["torn"] * COUNT)

    def test_pages_that_decode_appends_have_its_nonce(self):
        self.table.stamp(torch.tensor([1, 3]), torch.tensor([4711, 9]))
        table = torch.tensor([[5, 1], [3, 3]])
        self.assertEqual(self.table.owners(table).tolist(), [[4711, 4711], [9, 9]])

    def test_stretches_of_pages(self):
        self.assertEqual(self.page.runs([5, 6, 7, 2, 9, 10]), [(0, 5, 3), (3, 2, 1), (4, 9, 2)])
        self.assertEqual(self.page.runs([]), [])

    def test_memory_that_belongs_to_no_pool_is_refused(self):
        from cofferdam_guard.core import Secret

        args = types.SimpleNamespace(kv_data_ptrs=[1], kv_data_lens=[64], kv_item_lens=[8])
        with self.assertRaises(self.page.Unreachable):
            self.page.KvBytes(args, [types.SimpleNamespace()], Secret(b"s" * 32))


if __name__ == "__main__":
    unittest.main()
