"""The Rust core behind its binding: what is refused, by which word."""

import json
import unittest

from cofferdam_guard.core import (
    Counters,
    GuardFault,
    Ledger,
    Producer,
    Secret,
    Seen,
    Statement,
    audit_line,
    claim_message,
    kind_of,
    read_claim,
)

SECRET = Secret(b"a secret of the fleet")
LIFE = bytes(range(16))
PROMPT = [1, 5, 9]
LINEAGE = SECRET.lineage(PROMPT, "model")


class Refused:
    """Asserts that the block raises GuardFault of this kind."""

    def __init__(self, test, kind):
        self.test, self.kind = test, kind

    def __enter__(self):
        return self

    def __exit__(self, _, fault, __):
        self.test.assertIsInstance(fault, GuardFault)
        self.test.assertEqual(kind_of(fault), self.kind)
        return True


def reference(tags=(7, 8), parameters=b"blocks", epoch=LIFE, secret=SECRET, serial=1):
    text = secret.sign_reference(epoch, serial, LINEAGE, 3, "127.0.0.1:5700", parameters, list(tags))
    return SECRET.open_reference(text)


def statement(checksums=(100, 101), tags=(7, 8), serial=1):
    return Statement(LIFE, serial, 0, LINEAGE, 3, 640, list(tags), [2, 1], list(checksums))


class References(unittest.TestCase):
    def test_a_reference_is_for_its_prompt_and_its_blocks(self):
        reference().admits(LINEAGE, 3, b"blocks")
        with Refused(self, "lineage"):
            reference().admits(SECRET.lineage([1, 5, 8], "model"), 3, b"blocks")
        with Refused(self, "lineage"):
            reference().admits(SECRET.lineage(PROMPT, "model", None, "salt"), 3, b"blocks")
        with Refused(self, "bound"):
            reference().admits(LINEAGE, 3, b"other blocks")
        with Refused(self, "tokens"):
            reference().admits(LINEAGE, 4, b"blocks")

    def test_a_forged_reference_is_refused(self):
        with Refused(self, "forged"):
            reference(secret=Secret(b"a secret of the float"))
        with Refused(self, "forged"):
            SECRET.open_reference("00ff")

    def test_a_reference_is_used_once(self):
        seen = Seen(10)
        self.assertTrue(seen.first_use(reference()))
        self.assertFalse(seen.first_use(reference()))
        self.assertTrue(seen.first_use(reference(serial=2)))

    def test_a_weak_secret_is_refused(self):
        with Refused(self, "secret"):
            Secret(b"short")


class Claims(unittest.TestCase):
    def claim(self, producer, nonce=b"n" * 16, ref=None, now=0):
        question = claim_message(SECRET, nonce, ref or reference())
        answer, _ = producer.answer(SECRET, question, now)
        return read_claim(SECRET, nonce, answer)

    def producer(self):
        producer = Producer(LIFE, 10)
        producer.state(statement(), 1000)
        return producer

    def test_a_statement_is_given_to_one_claimant_within_its_lease(self):
        producer = self.producer()
        kind, got = self.claim(producer)
        self.assertEqual((kind, got.tags, got.checksums), ("granted", [7, 8], [100, 101]))
        self.assertEqual(self.claim(producer, b"m" * 16), ("used", None))
        self.assertEqual(self.claim(self.producer(), now=1000), ("expired", None))
        self.assertEqual(self.claim(producer, ref=reference(serial=2)), ("not_yet", None))
        other = self.claim(producer, ref=reference(epoch=b"x" * 16))
        self.assertEqual(other, ("other_life", None))

    def test_what_is_not_authentic_is_no_answer(self):
        question = claim_message(SECRET, b"n" * 16, reference())
        answer, what = self.producer().answer(SECRET, question, 0)
        self.assertEqual(what, (1, "granted"))
        self.assertIsNone(read_claim(SECRET, b"m" * 16, answer))
        self.assertIsNone(read_claim(SECRET, b"n" * 16, answer[:-1] + b"\0"))
        _, what = self.producer().answer(SECRET, b"anything", 0)
        self.assertIsNone(what)

    def compare(self, received, ref=None, **changed):
        arguments = dict(lineage=LINEAGE, tokens=3, block_bytes=640, blocks=2) | changed
        statement().compare(ref or reference(), 0, *arguments.values(), received)

    def test_what_arrived_is_compared_with_what_was_stated(self):
        self.compare([(0, 100), (1, 101)])
        self.compare([(1, 101)])
        cases = {
            "content": lambda: self.compare([(0, 100), (1, 100)]),
            "stray": lambda: self.compare([(0, 100), (0, 100)]),
            "count": lambda: self.compare([], blocks=3),
            "layout": lambda: self.compare([], block_bytes=641),
            "tags": lambda: self.compare([], ref=reference(tags=(7, 9))),
            "subject": lambda: self.compare([], ref=reference(serial=2)),
        }
        for kind, call in cases.items():
            with self.subTest(kind), Refused(self, kind):
                call()

    def test_a_statement_must_cover_its_tokens(self):
        with Refused(self, "statement"):
            Statement(LIFE, 1, 0, LINEAGE, 4, 640, [7, 8], [2, 1], [1, 1])


class Blocks(unittest.TestCase):
    def test_tags_never_repeat_and_stale_ones_are_named(self):
        ledger = Ledger(4, 16)
        old = ledger.allocate([2, 0], 5)
        ledger.check([2, 0], old, 5)
        new = ledger.allocate([2], 5)
        self.assertGreater(new[0], max(old))
        with Refused(self, "stale"):
            ledger.check([2, 0], old, 5)
        with Refused(self, "foreign_domain"):
            ledger.check([0], old[1:], 6)
        self.assertEqual(ledger.tags([0, 1, 2]), [old[1], 0, new[0]])

    def test_a_held_block_is_not_reused_until_the_hold_has_ended(self):
        ledger = Ledger(2, 16)
        ledger.allocate([0, 1])
        hold = ledger.hold(reads=[0])
        with Refused(self, "held"):
            ledger.allocate([0])
        ledger.release([0, 1])
        counts = ledger.counts()
        self.assertEqual((counts["free"], counts["quarantined"], counts["total"]), (1, 1, 2))
        ledger.end_hold(hold)
        self.assertEqual(ledger.counts()["free"], 2)
        with Refused(self, "no_hold"):
            ledger.end_hold(hold)

    def test_quarantine_is_for_good(self):
        ledger = Ledger(2, 16)
        ledger.quarantine([1])
        with Refused(self, "held"):
            ledger.allocate([1])


class Records(unittest.TestCase):
    def test_counts_are_taken_once(self):
        counters = Counters()
        counters.add("verified_total", 2)
        self.assertEqual(counters.all()["verified_total"], 2)
        self.assertEqual(counters.take(), {"verified_total": 2})
        self.assertEqual(counters.take(), {})
        with self.assertRaises(KeyError):
            counters.add("unheard_of_total")

    def test_a_client_cannot_forge_a_line_of_the_audit_log(self):
        line = audit_line(1500, "vllm", "refused", {"request": 'x\n{"event":"verified"}'})
        self.assertEqual(line.count("\n"), 0)
        read = json.loads(line)
        self.assertEqual((read["time"], read["event"]), ("1.500", "refused"))


if __name__ == "__main__":
    unittest.main()
