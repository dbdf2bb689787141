"""What is said while vLLM makes its configuration, before anything of its insides is imported, and where
the guard's ports come from."""

import importlib
import os
import socket
import sys
import tempfile
import types
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import recorded

from cofferdam_guard.settings import BadSettings, load
from cofferdam_guard.versions import UnknownEngine
from cofferdam_guard.vllm import start, surface

SECRET = {"COFFERDAM_GUARD_SECRET": "a secret of the fleet"}
CONNECTOR = "cofferdam_guard.vllm.connector"


def transfer(role="kv_producer", **extra):
    return SimpleNamespace(
        kv_role=role,
        kv_connector_extra_config=extra,
        kv_load_failure_policy="fail",
        get_from_extra_config=lambda name, default: extra.get(name, default),
    )


def parallel(tp=1, dp=1, index=0, **more):
    sizes = {"pipeline_parallel_size": 1, "decode_context_parallel_size": 1}
    sizes |= {"prefill_context_parallel_size": 1, "tensor_parallel_size": tp}
    sizes |= {"data_parallel_size": dp, "data_parallel_size_local": dp, "data_parallel_index": index}
    return SimpleNamespace(**sizes | more)


class VllmConfig:
    """As vLLM's: it asks for the connector's class while it is made."""

    def __init__(self, transfer, parallel, speculative=None):
        self.kv_transfer_config, self.parallel_config = transfer, parallel
        self.speculative_config = speculative
        self.__post_init__()

    def __post_init__(self):
        get_connector_class(self.kv_transfer_config)


def get_connector_class(kv_transfer_config):
    return importlib.import_module(CONNECTOR)


class Reached(Exception):
    """All was in order: vLLM's insides would be imported now."""


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for patched in (
            mock.patch.dict(os.environ, SECRET, clear=True),
            mock.patch.dict(sys.modules),
            mock.patch.object(sys, "path", [folder.name, *sys.path]),
            mock.patch.object(surface, "root_of", lambda package: self.folder),
        ):
            patched.start()
            self.addCleanup(patched.stop)
        sys.modules.pop(CONNECTOR, None)

    def vllm(self, version="0.32.0", text=None):
        recorded.lay_out(text or recorded.text("vllm-0.32.0"), self.folder)
        package = types.ModuleType("vllm")
        package.__version__, package.__path__ = version, [str(self.folder / "vllm")]
        sys.modules["vllm"] = package

    def make(self, *config):
        """Makes a configuration; `Reached` if nothing is in the way."""
        try:
            VllmConfig(*config)
        except AssertionError as fault:
            self.assertIn("was imported", str(fault))
            raise Reached from fault


class Engine(Case):
    def test_a_vllm_that_differs_is_refused_before_its_insides_are_imported(self):
        text = recorded.text("vllm-0.32.0").replace(
            "def get_new_blocks(self, num_blocks)", "def get_new_blocks(self, count)"
        )
        self.vllm("0.34.0", text)
        with self.assertRaises(UnknownEngine) as refused:
            self.make(transfer("kv_consumer"), parallel())
        told = str(refused.exception)
        self.assertIn(
            "BlockPool.get_new_blocks: expected (self, num_blocks, …), found (self, count)", told
        )
        self.assertIn("It would protect nothing", told)

    def test_one_that_fits_needs_no_force(self):
        self.vllm("0.33.0", recorded.text("vllm-0.33.0"))
        with self.assertRaises(Reached):
            self.make(transfer("kv_consumer"), parallel())

    def test_settings_and_set_ups_are_looked_at_then_too(self):
        self.vllm()
        good = (transfer("kv_consumer"), parallel())
        for config, why in (
            ((transfer("kv_consumer"), parallel(pipeline_parallel_size=2)), "pipeline parallelism"),
            ((*good, object()), "speculative decoding"),
            ((*good, types.SimpleNamespace(method="eagle")), "decoding by eagle .a draft with KV"),
            ((transfer("kv_consumer", bidirectional_kv_xfer=True), parallel()), "bidirectional"),
            ((transfer("kv_consumer", kv_lease_duration="long"), parallel()), "kv_lease_duration"),
            ((transfer("kv_consumer", guard_wait_s="x"), parallel()), "settings is none"),
        ):
            with self.subTest(why), self.assertRaisesRegex(BadSettings, why):
                self.make(*config)
        del os.environ["COFFERDAM_GUARD_SECRET"]
        with self.assertRaisesRegex(BadSettings, "COFFERDAM_GUARD_SECRET_FILE"):
            self.make(*good)

    def test_drafts_that_are_found_in_the_prompt_have_no_memory_and_are_let_in(self):
        self.vllm()
        with self.assertRaises(Reached):
            self.make(transfer("kv_consumer"), parallel(), types.SimpleNamespace(method="ngram"))

    def test_an_import_from_elsewhere_looks_at_what_it_can(self):
        self.vllm()
        del os.environ["COFFERDAM_GUARD_SECRET"]
        with self.assertRaisesRegex(BadSettings, "COFFERDAM_GUARD_SECRET_FILE"):
            importlib.import_module(CONNECTOR)


class Ports(Case):
    def setUp(self):
        super().setUp()
        self.vllm()
        self.taken = socket.socket()
        self.addCleanup(self.taken.close)
        self.taken.bind(("127.0.0.1", 0))
        self.taken.listen(1)
        self.port = self.taken.getsockname()[1]
        os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = "127.0.0.1"
        os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(self.port - 1000)

    def test_a_port_that_is_taken_is_named_with_its_variable_before_a_model_is_loaded(self):
        with self.assertRaises(BadSettings) as refused:
            self.make(transfer(), parallel())
        told = str(refused.exception)
        self.assertIn(f"cannot listen on 127.0.0.1:{self.port}: Address already in use", told)
        self.assertIn("VLLM_NIXL_SIDE_CHANNEL_PORT + 1000", told)
        self.assertIn("Set COFFERDAM_GUARD_PORT", told)

    def test_one_of_a_later_rank_too(self):
        os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(self.port - 1001)
        with self.assertRaisesRegex(BadSettings, rf"127.0.0.1:{self.port}: .* \+ 1 for the rank"):
            self.make(transfer(), parallel(tp=2))

    def test_who_only_fetches_needs_none(self):
        with self.assertRaises(Reached):
            self.make(transfer("kv_consumer"), parallel())

    def test_variable_and_option_choose_another(self):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            free = one.getsockname()[1]
        os.environ["COFFERDAM_GUARD_PORT"] = str(free)
        with self.assertRaises(Reached):
            self.make(transfer(), parallel())
        settings, _ = start.settings_of(transfer(guard_port=free + 1), os.environ)
        self.assertEqual(settings.port, free + 1, "the option over the variable")

    def test_the_processes_that_vllm_starts_do_not_find_their_own_ports_taken(self):
        del os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"]
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            os.environ["COFFERDAM_GUARD_PORT"] = str(one.getsockname()[1])
        with self.assertRaises(Reached):
            self.make(transfer(), parallel())
        os.environ["COFFERDAM_GUARD_PORT"] = str(self.port)
        sys.modules.pop(CONNECTOR, None)
        with self.assertRaises(Reached):
            self.make(transfer(), parallel())

    def test_nixls_own_ports_and_none_at_all_are_refused(self):
        os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = "5600"
        with self.assertRaisesRegex(BadSettings, "5601: it is NIXL's own"):
            self.make(transfer(guard_port=5601), parallel(dp=2))
        os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = "64900"
        with self.assertRaisesRegex(BadSettings, r"65900 \(the engine's own port \+ 1000\).*COFFERDAM_GUARD_PORT"):
            self.make(transfer(), parallel())
        with self.assertRaisesRegex(BadSettings, "65536: there is no such port"):
            self.make(transfer(guard_port=65535), parallel(tp=2))
        os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = "many"
        with self.assertRaisesRegex(BadSettings, "VLLM_NIXL_SIDE_CHANNEL_PORT"):
            self.make(transfer(), parallel())

    def test_a_port_taken_in_between_is_named_by_the_worker(self):
        from cofferdam_guard.evidence import Evidence
        from cofferdam_guard.vllm.worker import WorkerGuard

        settings = load({"guard_port": self.port}, SECRET)
        worker = WorkerGuard(settings, Evidence("vllm"), 0, 30, 4)
        self.addCleanup(worker.close)
        with self.assertRaisesRegex(BadSettings, f"{self.port}: Address already in use.*GUARD_PORT"):
            worker.serve("127.0.0.1", self.port)


if __name__ == "__main__":
    unittest.main()
