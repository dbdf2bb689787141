"""Settings, versions and evidence: what does not start, and what is written down."""

import json
import logging
import os
import tempfile
import unittest

from cofferdam_guard.evidence import Evidence, prometheus_counters
from cofferdam_guard.settings import BadSettings, load
from cofferdam_guard.versions import UnknownEngine, advice, require_signatures

SECRET = {"COFFERDAM_GUARD_SECRET": "a secret of the fleet"}


class Start(unittest.TestCase):
    def test_without_a_secret_nothing_starts(self):
        with self.assertRaisesRegex(BadSettings, "COFFERDAM_GUARD_SECRET_FILE"):
            load(env={})
        with self.assertRaisesRegex(BadSettings, "openssl rand"):
            load(env={"COFFERDAM_GUARD_SECRET": "short"})

    def test_fail_closed_is_the_default_and_other_words_are_refused(self):
        self.assertEqual(load(env=SECRET).policy, "fail")
        self.assertEqual(load({"guard_policy": "recompute"}, SECRET).policy, "recompute")
        with self.assertRaisesRegex(BadSettings, "'log'"):
            load({"guard_policy": "log"}, SECRET)
        with self.assertRaises(BadSettings):
            load(env=SECRET | {"COFFERDAM_GUARD_PORT": "70000"})

    def test_a_list_of_versions_is_advice(self):
        self.assertEqual(advice("vLLM", "0.32.0", ["0.32.0"]), "")
        said = advice("vLLM", "0.33.0", ["0.32.0"])
        self.assertRegex(said, "vLLM 0.33.0 has everything.*were run with 0.32.0.*self-test")

    def test_a_changed_signature_is_named(self):
        def hook(self, request, blocks):
            pass

        require_signatures([(hook, ["self", "request"])])
        with self.assertRaisesRegex(UnknownEngine, "hook.*expected"):
            require_signatures([(hook, ["self", "blocks"])])


class Written(unittest.TestCase):
    def test_a_refusal_is_counted_written_down_and_loud(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "audit.jsonl")
            evidence = Evidence("vllm", path)
            with self.assertLogs("cofferdam_guard", logging.ERROR) as logged:
                evidence.refuse("refused_content_total", request="r1", reason="content", block=None)
            evidence.record("verified", request="r2", blocks=3)
            evidence.close()
            with open(path) as file:
                lines = [json.loads(line) for line in file]
            self.assertEqual(oct(os.stat(path).st_mode & 0o777), oct(0o640 & ~_umask()))
        self.assertEqual([line["event"] for line in lines], ["refused", "verified"])
        self.assertEqual((lines[0]["request"], lines[0]["reason"]), ("r1", "content"))
        self.assertNotIn("block", lines[0])
        self.assertEqual(lines[1]["blocks"], "3")
        self.assertIn('"request":"r1"', logged.output[0])
        counted = {"refused_content_total": 1, "refusals_content": 1}
        self.assertEqual(evidence.take(), counted)
        self.assertEqual(evidence.take(), {}, "taken once")

    def test_every_counter_is_registered_under_the_guards_name(self):
        made = []

        def counter(name, documentation, labelnames):
            made.append((name, labelnames))
            return name

        counters = prometheus_counters(counter, ["engine"])
        self.assertEqual(counters["verified_total"], "cofferdam_guard_verified")
        self.assertEqual(len(made), len(set(made_name for made_name, _ in made)))


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


if __name__ == "__main__":
    unittest.main()
