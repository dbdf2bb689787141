"""From a refusal in the engine's processes to what the client and the metrics are told, on stand-ins of
vLLM's statistics and of its API server."""

import json
import sys
import types
import unittest
from http import HTTPStatus
from types import SimpleNamespace
from unittest import mock

from cofferdam_guard.causes import CAUSES, cause_of, status_of
from cofferdam_guard.coverage import CHECKS
from cofferdam_guard.evidence import Evidence


class Stats:
    """vLLM's container of the connector's statistics."""

    def __init__(self, data=None):
        self.data = data or {}
        if not self.data:
            self.reset()

    def reset(self):
        self.data = {"num_failed_transfers": []}

    def is_empty(self):
        return not self.data["num_failed_transfers"]

    def aggregate(self, other):
        for name, values in other.data.items():
            self.data[name].extend(values)
        return self

    def reduce(self):
        return {}


class Metric:
    """prometheus_client's, with labels by their values."""

    made = {}

    def __init__(self, name, documentation, labelnames, **more):
        self.values, self.labelnames = {}, labelnames
        Metric.made[name] = self

    def labels(self, *values):
        assert len(values) == len(self.labelnames), (values, self.labelnames)
        self.values.setdefault(values, 0)
        return SimpleNamespace(inc=lambda n=1: self._add(values, n), set=lambda n: self.values.update({values: n}))

    def _add(self, values, n):
        self.values[values] += n


class PromMetrics:
    def __init__(self, vllm_config, metric_types, labelnames, values):
        self._counter_cls = self._gauge_cls = Metric
        self.per_engine_labelvalues = values

    def observe(self, data, engine_idx=0):
        pass


class GenerationError(Exception):
    status_code = HTTPStatus.INTERNAL_SERVER_ERROR


class RetryableRequestError(GenerationError):
    status_code = HTTPStatus.SERVICE_UNAVAILABLE


def modules():
    class GenerateBaseServing:
        def _raise_if_error(self, finish_reason, request_id):
            if finish_reason == "error":
                raise GenerationError("Internal server error")

    def each(metric, values):
        return {engine: metric.labels(*one) for engine, one in values.items()}

    nixl = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats"
    contents = {
        nixl: {"NixlKVConnectorStats": Stats, "NixlPromMetrics": PromMetrics},
        "vllm.v1.metrics.utils": {"create_metric_per_engine": each},
        "vllm.entrypoints.generate.base.serving": {"GenerateBaseServing": GenerateBaseServing},
        "vllm.exceptions": {
            "GenerationError": GenerationError,
            "RetryableRequestError": RetryableRequestError,
        },
    }
    found = {}
    for name, content in contents.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            found.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        vars(found[name]).update(content)
    return found


class Answers(unittest.TestCase):
    def setUp(self):
        self.modules = modules()
        patched = mock.patch.dict(sys.modules, self.modules)
        patched.start()
        self.addCleanup(patched.stop)
        for name in ("stats", "answers"):
            sys.modules.pop(f"cofferdam_guard.vllm.{name}", None)
        from cofferdam_guard.vllm import answers, stats

        self.stats = stats
        answers._kept.clear()
        config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_load_failure_policy="fail"))
        self.metrics = stats.GuardedPromMetrics(config, {}, ["model", "engine"], {0: ("m", "0")})
        serving = self.modules["vllm.entrypoints.generate.base.serving"]
        self.server = serving.GenerateBaseServing()

    def refuse(self, counter, request, reason, policy="fail"):
        """In an engine's process; as it reaches the API server."""
        evidence = Evidence("vllm")
        with self.assertLogs("cofferdam_guard"):
            evidence.refuse(counter, request=request, reason=reason, detail="10.1.2.3", policy=policy)
        worker = self.stats.with_counts(Stats(), Evidence("vllm"))
        both = worker.aggregate(self.stats.with_counts(None, evidence))
        self.assertFalse(both.is_empty())
        self.metrics.observe(json.loads(json.dumps(both.data)))

    def answer(self, request):
        with self.assertRaises(GenerationError) as raised:
            self.server._raise_if_error("error", request)
        return int(raised.exception.status_code), str(raised.exception)

    def counted(self):
        values = Metric.made["cofferdam_guard_refusals"].values
        return {labels[-1]: n for labels, n in values.items() if n}

    def test_the_checks_that_are_made_here_are_a_gauge(self):
        made = Metric.made["cofferdam_guard_check"].values
        self.assertEqual({labels[-1]: n for labels, n in made.items()}, dict.fromkeys(CHECKS, 1))

    def test_a_vllm_without_a_word_for_asking_again_answers_500_with_the_same_text(self):
        del self.modules["vllm.exceptions"].RetryableRequestError
        self.refuse("refused_statement_total", "cmpl-a-0-0123abcd", "silent")
        status, text = self.answer("cmpl-a")
        self.assertEqual(status, 500)
        self.assertRegex(text, "^cofferdam-guard: refused: silent: .*asked again")

    def test_slowness_is_503_and_content_500_each_with_its_words_and_label(self):
        self.refuse("refused_statement_total", "cmpl-a-0-0123abcd", "silent")
        self.refuse("refused_content_total", "cmpl-b-0-0123abcd", "content")
        self.refuse("refused_lease_total", "chatcmpl-c-89abcdef", "expired")
        self.refuse("refused_life_total", "cmpl-d-0", "other_life")
        self.assertEqual(self.counted(), {"slow": 2, "content": 1, "gone": 1})
        status, text = self.answer("cmpl-a")
        self.assertEqual(status, 503)
        self.assertRegex(text, "^cofferdam-guard: refused: silent: .*asked again")
        self.assertNotIn("10.1.2.3", text, "addresses are for the log")
        status, text = self.answer("cmpl-b")
        self.assertEqual(status, 500)
        self.assertRegex(text, r"^cofferdam-guard: refused: content: .*\(content\)$")
        self.assertEqual([self.answer(n)[0] for n in ("chatcmpl-c", "cmpl-d-0")], [503, 503])

    def test_other_requests_errors_are_vllms(self):
        self.refuse("refused_statement_total", "cmpl-a-0-0123abcd", "silent")
        own = (500, "Internal server error")
        for other in ("cmpl-b", "cmpl", "cmpl-a-0-0123abcd-0", "cmpl-a-1"):
            self.assertEqual(self.answer(other), own, other)
        self.assertIsNone(self.server._raise_if_error("stop", "cmpl-a"))
        self.assertEqual(self.answer("cmpl-a")[0], 503)
        self.assertEqual(self.answer("cmpl-a"), own, "told once")

    def test_whose_prompt_is_computed_anew_is_told_nothing(self):
        self.refuse("refused_statement_total", "cmpl-a-0", "silent", policy="recompute")
        self.assertEqual(self.counted(), {"slow": 1})
        self.assertEqual(self.answer("cmpl-a"), (500, "Internal server error"))

    def test_what_is_remembered_is_bounded(self):
        from cofferdam_guard.vllm import answers

        answers.remember((f"cmpl-{n}", "slow", "late") for n in range(answers.KEPT_MAX + 1))
        self.assertEqual(len(answers._kept), answers.KEPT_MAX)
        self.assertIsNone(answers.find("cmpl-0"))

    def test_the_hook_is_put_in_once_and_every_cause_has_a_series_from_the_start(self):
        from cofferdam_guard.vllm import answers

        hooked = type(self.server)._raise_if_error
        answers.install()
        self.assertIs(type(self.server)._raise_if_error, hooked)
        series = {labels[-1] for labels in Metric.made["cofferdam_guard_refusals"].values}
        self.assertEqual(series, set(CAUSES))


class Causes(unittest.TestCase):
    def test_what_nobody_knows_is_the_gravest(self):
        self.assertEqual(cause_of("a word of tomorrow"), "content")
        self.assertEqual(cause_of("expired", "refused_content_total"), "content")
        self.assertEqual(status_of("content"), 500)

    def test_reasons_of_sglang(self):
        for reason, cause, status in (
            ("altered", "content", 500),
            ("unwritten", "content", 500),
            ("foreign", "content", 500),
            ("step", "content", 500),
            ("held", "content", 500),
            ("identity", "identity", 500),
            ("count", "identity", 500),
            ("peer", "setup", 500),
            ("layout", "setup", 500),
            ("late", "slow", 503),
            ("unsettled", "slow", 503),
        ):
            self.assertEqual((cause_of(reason), status_of(cause_of(reason))), (cause, status), reason)


if __name__ == "__main__":
    unittest.main()
