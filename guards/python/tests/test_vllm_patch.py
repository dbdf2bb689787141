"""Where the guard wraps vLLM's own functions, on stand-ins of them."""

import sys
import types
import unittest
from types import SimpleNamespace

import numpy as np
from test_vllm import BLOCKS, SIZE, Engine, request

from cofferdam_guard.settings import BadSettings

PORT = 21810


class Scheduler:
    """As much of vLLM's as is wrapped."""

    def __init__(self, *requests):
        self.requests = {one.request_id: one for one in requests}

    def finish_requests(self, names, status):
        ended = [self.requests.pop(name) for name in sorted(names) if name in self.requests]
        for one in ended:
            one.status = status
        return ended

    def update_from_output(self, scheduler_output, model_runner_output):
        given = {}
        for name, token in model_runner_output.tokens.items():
            if name in self.requests:
                one = self.requests[name]
                given.setdefault(one.client_index, Outputs()).outputs.append((name, token))
        return given


class Outputs:
    def __init__(self):
        self.outputs = []


class Runner:
    def __init__(self, tables):
        table = SimpleNamespace(block_table=SimpleNamespace(np=tables))
        self.input_batch = SimpleNamespace(
            req_ids=["a"],
            num_reqs=1,
            num_computed_tokens_cpu=[0],
            block_table=SimpleNamespace(block_tables=[table]),
        )
        self.prepared = 0

    def execute_model(self, scheduler_output):
        return self._prepare_inputs(scheduler_output, [SIZE])

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens):
        self.prepared += 1

    def register(self, attach):
        attach()


class OtherRunner(Runner):
    """Another kind, which prepares in its own way."""

    def _prepare_inputs(self, batch):
        self.prepared += 1


def stand_in():
    base = types.ModuleType("vllm.distributed.kv_transfer.kv_connector.v1.base")
    base.KVConnectorWorkerMetadata = type("KVConnectorWorkerMetadata", (), {})
    runner = types.ModuleType("vllm.v1.worker.gpu_model_runner")
    runner.GPUModelRunner = type("GPUModelRunner", (Runner,), {})
    scheduler = types.ModuleType("vllm.v1.core.sched.scheduler")
    scheduler.Scheduler = type("Scheduler", (Scheduler,), {})
    engine = types.ModuleType("vllm.v1.engine")
    engine.EngineCoreOutputs, engine.EngineCoreOutput = Outputs, SimpleNamespace
    status = types.ModuleType("vllm.v1.request")
    status.RequestStatus = SimpleNamespace(FINISHED_ERROR="error")
    return {module.__name__: module for module in (base, runner, scheduler, engine, status)}


class Case(unittest.TestCase):
    def setUp(self):
        self.modules = stand_in()
        sys.modules.update(self.modules)
        sys.modules.pop("cofferdam_guard.vllm.patch", None)
        from cofferdam_guard.vllm import patch

        self.patch = patch
        self.addCleanup(sys.modules.pop, "cofferdam_guard.vllm.patch", None)
        for name in self.modules:
            self.addCleanup(sys.modules.pop, name, None)


class Convicts(Case):
    def asked(self, name, client=0):
        return SimpleNamespace(
            request_id=name,
            client_index=client,
            get_finished_reason=lambda: "error",
            take_events=lambda: None,
            trace_headers=None,
        )

    def test_what_any_rank_convicts_ends_before_its_token_is_taken(self):
        self.patch.scheduler()
        self.patch.scheduler()  # once is enough
        kind = self.modules["vllm.v1.core.sched.scheduler"].Scheduler
        scheduler = kind(self.asked("a"), self.asked("b"), self.asked("c", 1))
        both = self.patch.Convicted({"a"}).aggregate(self.patch.Convicted({"c", "gone"}))
        said = SimpleNamespace(
            tokens={"a": 1, "b": 2, "c": 3},
            kv_connector_output=SimpleNamespace(kv_connector_worker_meta=both),
        )
        given = scheduler.update_from_output(None, said)
        self.assertEqual(given[0].outputs[0], ("b", 2))
        ended = [(one.request_id, one.new_token_ids, one.finish_reason) for one in given[0].outputs[1:]]
        self.assertEqual(ended, [("a", [], "error")])
        self.assertEqual([one.request_id for one in given[1].outputs], ["c"])
        self.assertEqual(list(scheduler.requests), ["b"])
        said.kv_connector_output = None
        self.assertEqual(scheduler.update_from_output(None, said)[0].outputs, [("b", 2)])


class Looks(Case):
    def test_the_table_of_this_very_step_is_looked_at_before_it_is_used(self):
        engine = Engine(PORT)
        self.addCleanup(engine.close)
        self.patch.runner()
        tables = np.zeros((1, 4), dtype=np.int32)
        runner = self.modules["vllm.v1.worker.gpu_model_runner"].GPUModelRunner(tables)
        runner.register(lambda: self.patch.attach(engine.worker.look))
        block = engine.take(SIZE)[0]
        tables[0, 0] = block
        step = SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id="a", block_ids=[[block]])],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set()),
            finished_req_ids=set(),
        )
        handover = engine.scheduler.take_handover({}, None)
        handover.steps = engine.scheduler.plan.take(step)
        scheduled = SimpleNamespace(kv_connector_metadata=SimpleNamespace(cofferdam_guard=handover))
        # Not bound yet: vLLM binds the connector's metadata later, around the pass.
        runner.execute_model(scheduled)
        self.assertEqual(engine.worker.take_convicted(), set())
        engine.worker.bind(handover)
        tables[0, 0] = block + 1
        with self.assertLogs("cofferdam_guard") as said:
            runner.execute_model(scheduled)
        self.assertIn(f"names block {block + 1} under tag -1", said.output[0])
        self.assertEqual(engine.worker.take_convicted(), {"a"})
        # The step that is under way already convicts it again; it is counted once.
        runner.execute_model(scheduled)
        self.assertEqual(engine.worker.take_convicted(), {"a"})
        self.assertEqual(engine.evidence.take()["refused_step_total"], 1)
        self.assertEqual(runner.prepared, 3)

    def test_a_runner_that_would_not_be_looked_at_is_refused_by_name(self):
        self.patch.runner()
        with self.assertRaisesRegex(BadSettings, "OtherRunner.*in another way.*STEP_CHECK=0"):
            OtherRunner(None).register(lambda: self.patch.attach(None))
        with self.assertRaisesRegex(BadSettings, "does not see the model runner"):
            self.patch.attach(None)


class Domains(unittest.TestCase):
    def test_salt_and_adapter_make_the_domain_and_neither_passes_for_the_other(self):
        engine = Engine(PORT + 1)
        self.addCleanup(engine.close)
        adapter = SimpleNamespace(lora_name="x")
        plain, salted, adapted = request("a"), request("b", salt="x"), request("c")
        adapted.lora_request = adapter
        found = [engine.scheduler.domain(one) for one in (plain, salted, adapted, request("d", salt="x"))]
        self.assertEqual(found[0], 0)
        self.assertEqual(found[1], found[3])
        self.assertEqual(len(set(found)), 3)


if __name__ == "__main__":
    unittest.main()
