"""What prefill and decode tell each other: every field arrives, nothing else is taken for it."""

import unittest

from cofferdam_guard.sglang import selftest, wire

KEY, OTHER = b"k" * 64, b"o" * 64


def ticket(**changed):
    fields = dict(
        room=2**62 + 5,
        nonce=wire.fresh_nonce(),
        pages=1993,
        tokens=1993,
        prefix=0,
        page_size=1,
        tag_base=0x7F0000001000,
        tag_stride=64,
        lineage=bytes(range(32)),
    )
    return wire.Ticket(**{**fields, **changed})


class Frames(unittest.TestCase):
    def test_a_ticket_arrives_as_it_was_written(self):
        sent = ticket(prefix=7)
        self.assertEqual(wire.decode(sent.encode(KEY), sent.room, KEY), sent)

    def test_a_rejection_arrives_with_the_original_words(self):
        sent = wire.Rejection(9, 400, "Input length (2500 tokens) exceeds … (1994 tokens).")
        self.assertEqual(wire.decode(sent.encode(KEY), 9, KEY), sent)

    def test_no_bit_of_a_frame_may_change(self):
        frame = bytearray(ticket().encode(KEY))
        for at in range(5, len(frame)):
            frame[at] ^= 1
            with self.assertRaises(wire.Malformed, msg=f"byte {at}"):
                wire.decode(bytes(frame), ticket().room, KEY)
            frame[at] ^= 1

    def test_a_frame_is_for_one_room_and_one_secret(self):
        sent = ticket()
        for room, key in ((sent.room + 1, KEY), (sent.room, OTHER)):
            with self.assertRaises(wire.Malformed):
                wire.decode(sent.encode(KEY), room, key)

    def test_cut_and_empty_frames_are_refused(self):
        frame = ticket().encode(KEY)
        for length in range(len(frame)):
            with self.assertRaises(wire.Malformed):
                wire.decode(frame[:length], ticket().room, KEY)

    def test_engine_frames_are_not_ours(self):
        for frame in (b"", b"0", b"ABORT", b"CFDG", bytes(200)):
            self.assertFalse(wire.is_ours(frame))

    def test_nonces_are_odd_positive_and_differ(self):
        nonces = {wire.fresh_nonce() for _ in range(1000)}
        self.assertEqual(len(nonces), 1000)
        self.assertTrue(all(n & 1 and 0 < n < 2**63 for n in nonces))


class Statements(unittest.TestCase):
    def test_nine_integers_say_what_was_sent(self):
        words = wire.statement(KEY, 5, 2**63 - 1, 1993, 1993)
        self.assertEqual(len(words), 9)
        self.assertTrue(all(-(2**31) <= word < 2**31 for word in words))
        self.assertEqual(wire.read_statement(KEY, 5, words), wire.Stated(2**63 - 1, 1993, 1993))

    def test_the_placeholder_is_no_statement(self):
        self.assertIsNone(wire.read_statement(KEY, 5, [0] * 9))

    def test_a_changed_word_another_room_or_secret_is_none(self):
        words = wire.statement(KEY, 5, 77, 3, 40)
        for at in range(9):
            changed = list(words)
            changed[at] ^= 1
            self.assertIsNone(wire.read_statement(KEY, 5, changed))
        self.assertIsNone(wire.read_statement(KEY, 6, words))
        self.assertIsNone(wire.read_statement(OTHER, 5, words))


class Metrics(unittest.TestCase):
    def test_samples_of_one_metric_only(self):
        text = (
            "# HELP cofferdam_guard_ready x\n"
            'cofferdam_guard_ready{engine="0.5.19",engine_type="decode",guard="0.1.0"} 1.0\n'
            "cofferdam_guard_ready_not 5\n"
            'cofferdam_guard_refused_content_total{reason="altered"} 2.0\n'
        )
        found = selftest.parse(text, "cofferdam_guard_ready")
        self.assertEqual(found, [('{engine="0.5.19",engine_type="decode",guard="0.1.0"}', 1.0)])


if __name__ == "__main__":
    unittest.main()
