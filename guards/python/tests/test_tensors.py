"""Tags and checksums on numpy and, where it is installed, torch: the same answers."""

import unittest

import numpy as np

from cofferdam_guard.core import Secret
from cofferdam_guard.tensors import BlockSums, TagTable, unsigned

try:
    import torch
except ImportError:
    torch = None

SECRET = Secret(b"a secret of the fleet")


def layers(seed=1):
    """Two layers of another shape each, blocks first."""
    rng = np.random.default_rng(seed)
    shapes = [(6, 3, 8, 4), (6, 8, 7)]
    return [rng.integers(-(2**15), 2**15, size=shape, dtype=np.int16) for shape in shapes]


class Sums(unittest.TestCase):
    def sums(self, kv, blocks=(0, 1, 2, 3, 4, 5)):
        """The loop in Rust, after asserting that tensor operations give the same."""
        sums = BlockSums(SECRET, kv)
        in_rust = unsigned(sums.in_rust(blocks).tolist())
        self.assertEqual(in_rust, unsigned(sums.in_tensors(blocks).tolist()))
        self.assertEqual(in_rust, unsigned(sums.of(blocks).tolist()))
        return in_rust

    def test_blocks_are_summed_in_the_order_asked(self):
        kv = layers()
        all_sums = self.sums(kv)
        self.assertEqual(len(set(all_sums)), 6)
        self.assertEqual(self.sums(kv, (4, 1)), [all_sums[4], all_sums[1]])
        self.assertEqual(self.sums(kv, ()), [])
        self.assertEqual(BlockSums(SECRET, kv).block_bytes, 2 * (3 * 8 * 4 + 8 * 7))

    def test_every_single_flipped_bit_is_noticed_in_its_block_only(self):
        kv = layers()
        clean = self.sums(kv)
        for layer in (0, 1):
            flat = kv[layer].reshape(6, -1)
            for at in range(flat.shape[1]):
                for bit in (0, 7, 14):
                    flat[2, at] ^= 1 << bit
                    got = self.sums(kv)
                    flat[2, at] ^= 1 << bit
                    changed = [block for block in range(6) if got[block] != clean[block]]
                    self.assertEqual(changed, [2], (layer, at, bit))

    def test_words_and_layers_that_change_places_are_noticed(self):
        kv = layers()
        clean = self.sums(kv)
        flat = kv[0].reshape(6, -1)
        flat[0, :2], flat[0, 2:4] = flat[0, 2:4].copy(), flat[0, :2].copy()
        self.assertNotEqual(self.sums(kv)[0], clean[0])
        twins = [np.ones((2, 4), np.int32), np.full((2, 4), 2, np.int32)]
        self.assertNotEqual(self.sums(twins, (0,)), self.sums(twins[::-1], (0,)))

    def test_another_secret_gives_other_sums(self):
        other = BlockSums(Secret(b"a secret of the float"), layers())
        self.assertNotEqual(unsigned(other.of([0]).tolist()), self.sums(layers(), (0,)))

    def test_the_dimension_of_the_blocks_may_be_any(self):
        kv = layers()
        moved = [np.ascontiguousarray(np.moveaxis(kv[0], 0, 1)), kv[1]]
        sums = unsigned(BlockSums(SECRET, moved, [1, 0]).of([3, 5]).tolist())
        self.assertEqual(sums, self.sums(kv, (3, 5)))

    @unittest.skipIf(torch is None, "torch is not installed: the numpy tests hold for its answers")
    def test_torch_gives_the_same_sums_for_every_element_size(self):
        for dtype in (np.int8, np.int16, np.int32, np.int64):
            kv = [layer.astype(dtype) for layer in layers()]
            on_torch = [torch.from_numpy(layer) for layer in kv]
            self.assertEqual(self.sums(kv), self.sums(on_torch), dtype)
        floats = torch.randn(6, 3, 5, dtype=torch.float32).to(torch.bfloat16)
        as_ints = floats.view(torch.int16).numpy()
        self.assertEqual(self.sums([floats]), self.sums([as_ints]))


class Steps(unittest.TestCase):
    def check(self, wrap):
        table = TagTable(8, like=wrap(np.zeros(1)))
        table.set([3, 5, 6], [30, 50, 60])
        blocks = wrap(np.array([[3, 5, 7777], [6, 5, -1], [3, 1, 0]], dtype=np.int32))
        expected = wrap(np.array([[30, 50, 1], [61, 50, 2], [30, 0, 3]], dtype=np.int64))
        used = wrap(np.array([2, 2, 2]))
        # A stale tag; no tag at all, which is never right; entries behind `used` do not count.
        self.assertEqual(table.stale(blocks, expected, used).tolist(), [0, 1, 1])
        table.set([5], [51])
        self.assertEqual(table.stale(blocks, expected, used).tolist(), [1, 2, 1])
        table.set([3], [0])
        self.assertEqual(table.stale(blocks, expected, used).tolist(), [2, 2, 2])
        nowhere = wrap(np.array([[3, 8, 0], [-1, 5, 0], [3, 1, 0]], dtype=np.int32))
        self.assertEqual(table.stale(nowhere, expected, used).tolist()[1], 2, "no such block")

    def test_stale_entries_are_counted_for_each_sequence(self):
        self.check(lambda array: array)

    @unittest.skipIf(torch is None, "torch is not installed: the numpy test holds for its answers")
    def test_torch_counts_the_same(self):
        self.check(torch.from_numpy)


if __name__ == "__main__":
    unittest.main()
