"""What is said before anything of SGLang is imported, and for which servers the guard is there at all."""

import contextlib
import io
import os
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import recorded

from cofferdam_guard.settings import BadSettings
from cofferdam_guard.sglang import guardable, plugin, surface
from cofferdam_guard.sources import Sources
from cofferdam_guard.versions import UnknownEngine

SECRET = {"COFFERDAM_GUARD_SECRET": "a secret of the fleet"}


def arguments(mode, **more):
    return types.SimpleNamespace(disaggregation_mode=mode, **more)


def called_from(file, function, given, run):
    """Calls `run` from a function of SGLang's by that name, with these parameters."""
    source = f"def {function}({', '.join(given)}):\n    return run()\n"
    space = {"run": run}
    exec(compile(source, f"/site-packages/sglang/srt/{file}", "exec"), space)
    return space[function](**given)


def scheduler(args, run=plugin.activate):
    given = {"server_args": args, "port_args": None}
    return called_from("managers/scheduler.py", "run_scheduler_process", given, run)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.env = mock.patch.dict(os.environ, clear=True)
        self.env.start()
        self.addCleanup(self.env.stop)
        self.argv = mock.patch.object(sys, "argv", ["launch_server", "--model-path", "m"])
        self.argv.start()
        self.addCleanup(self.argv.stop)
        self.installed = []
        standing = types.ModuleType("cofferdam_guard.sglang.install")
        standing.into_scheduler = lambda hooked, chosen: self.installed.append(len(hooked))
        self.replace("cofferdam_guard.sglang.install", standing)
        import cofferdam_guard.sglang as package

        attribute = mock.patch.object(package, "install", standing, create=True)
        attribute.start()
        self.addCleanup(attribute.stop)

    def replace(self, name, module):
        patched = mock.patch.dict(sys.modules, {name: module})
        patched.start()
        self.addCleanup(patched.stop)

    def sglang(self, recording, version=None):
        """An installed SGLang, of which only files are there."""
        recorded.lay_out(recorded.text(f"sglang-{recording}"), self.folder)
        for patched in (
            mock.patch.object(plugin, "root_of", lambda package: self.folder),
            mock.patch("importlib.metadata.version", return_value=version or recording),
        ):
            patched.start()
            self.addCleanup(patched.stop)

    def refused(self, run):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
            run()
        self.assertIn("refusing to start SGLang", str(ended.exception.code))
        self.assertEqual(self.installed, [])
        self.assertNotIn("Traceback", said.getvalue())
        self.assertFalse([name for name in sys.modules if name.startswith("sglang.srt")])
        return str(ended.exception.code)

    def said(self, run):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            run()
        return said.getvalue()


# Hooked in several of the forms below.
SHARED = {
    "MooncakeKVReceiver.send_metadata",
    "CommonKVReceiver.poll",
    "SchedulerDisaggregationPrefillMixin._retire_aborted_prefill_result",
}
VERSIONS = ("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")


class Fits(Case):
    def test_what_an_sglang_has_decides_not_its_version(self):
        for recording in VERSIONS:
            for version in (recording, "0.9.1"):
                with self.subTest(recording, called=version):
                    self.sglang(recording, version)
                    fit, found = plugin.require_fit()
                    self.assertEqual((fit.differences, found), ((), version))

    def test_each_form_that_differs_is_taken_where_it_is(self):
        forms = {
            "0.5.19": {"MooncakeKVReceiver.poll", "MooncakeKVReceiver.send_metadata"},
            "0.5.22": {
                "CommonKVReceiver.poll",
                "MooncakeKVReceiver.send_metadata",
                "SchedulerDisaggregationPrefillMixin._retire_aborted_prefill_result",
            },
            "0.5.23": {
                "CommonKVSender.poll",
                "CommonKVReceiver.send_metadata",
                "MooncakeKVManager.build_receiver_metadata_message",
            },
        }
        for recording, wanted in forms.items():
            self.sglang(recording)
            hooked = {one.target.partition(":")[2] for one in plugin.require_fit()[0].hooked}
            with self.subTest(recording):
                self.assertLessEqual(wanted, hooked)
                others = set().union(*forms.values()) - wanted
                self.assertEqual(others & hooked - SHARED, set())

    def test_a_form_that_nobody_knows_is_refused_by_name(self):
        for recording, here, there in (
            ("0.5.22", "def set_buf(self, req)", "def set_buf(self, rq)"),
            ("0.5.22", "decode_prefix_len, device_kv_indices)", "decode_prefix_len, to)"),
            ("0.5.23", "def _send_abort_ack(self, room, target)", "def _send_abort_ack(self, it)"),
            (
                "0.5.20",
                "def _retire_aborted_prefill_result(self, req)",
                "def _retire_aborted_prefill_result(self, req, result)",
            ),
        ):
            text = recorded.text(f"sglang-{recording}")
            self.assertIn(here, text)
            changed = text.replace(here, there)
            with self.subTest(there), mock.patch.object(recorded, "text", lambda name: changed):
                self.sglang(recording, "0.5.99")
                os.environ |= SECRET | {"COFFERDAM_GUARD_FORCE": "1"}
                sys.argv.append("--disaggregation-mode=decode")
                text = self.refused(plugin.activate)
                self.assertIn("SGLang 0.5.99 is not what the guard was written for", text)
                name = here.removeprefix("def ").partition("(")[0].split(",")[0]
                self.assertIn({"decode_prefix_len": "send_metadata"}.get(name, name), text)

    def test_a_scheduler_without_a_launcher_is_refused_before_it_imports_anything(self):
        text = recorded.text("sglang-0.5.22").replace("def set_buf(self, req)", "def set_buf(self, rq)")
        with mock.patch.object(recorded, "text", lambda name: text):
            self.sglang("0.5.22")
        os.environ |= SECRET
        self.refused(lambda: scheduler(arguments("prefill")))

    def test_an_sglang_without_files_is_refused(self):
        with (
            mock.patch("importlib.metadata.version", return_value="0.5.23"),
            mock.patch.object(plugin, "root_of", lambda package: None),
            self.assertRaisesRegex(UnknownEngine, "not there"),
        ):
            plugin.require_fit()

    def test_what_is_not_guarded_is_refused_before_a_model_is_loaded(self):
        self.sglang("0.5.23")
        os.environ |= SECRET
        for more, named in (
            ({"pp_size": 2}, "pipeline parallelism"),
            ({"disaggregation_decode_host_receive_threshold": 0.5}, "host receive buffers"),
            ({"dp_size": 2, "enable_dp_attention": True}, "data-parallel attention"),
            ({"attn_dp_size": 2}, "data-parallel attention"),
            ({"attn_cp_size": 2}, "context parallelism"),
            ({"dp_size": 2, "elastic_ep_backend": "mooncake"}, "elastic expert parallelism"),
            ({"speculative_algorithm": "EAGLE"}, "speculative decoding"),
            ({"disaggregation_transfer_backend": "nixl"}, "backend nixl"),
            ({"disaggregation_decode_allocation_policy": "late"}, "allocation after prefill"),
        ):
            with self.subTest(named):
                text = self.refused(lambda: scheduler(arguments("decode", **more)))
                self.assertIn(named, text)
        for runs in ({"tp_size": 2}, {"dp_size": 2}):
            self.assertEqual(guardable.by_settings(arguments("decode", **runs)), [])
        # What is off has another number in 0.5.21; the queue that comes of it is looked at later.
        for off in (0, 1.0):
            args = arguments("decode", disaggregation_decode_host_receive_threshold=off)
            self.assertEqual(guardable.by_settings(args), [])


class Armed(Case):
    """Installing the wheel loads it into every SGLang of the environment."""

    def test_a_server_that_hands_nothing_over_is_left_alone_and_told_so(self):
        said = self.said(lambda: scheduler(arguments("null")))
        self.assertIn("not active: this server hands nothing over", said)
        self.assertIn("COFFERDAM_GUARD_ARM=always", said)
        self.assertEqual(self.said(plugin.activate), "", "its launcher")
        self.assertEqual(self.installed, [])

    def test_one_that_hands_over_is_guarded_or_does_not_start(self):
        self.sglang("0.5.23")
        for mode in ("prefill", "decode"):
            self.assertIn("COFFERDAM_GUARD_SECRET_FILE", self.refused(lambda: scheduler(arguments(mode))))
        os.environ |= SECRET
        scheduler(arguments("decode"))
        self.assertEqual(self.installed, [32])

    def test_settings_that_nobody_can_read_are_not_taken_for_a_single_server(self):
        self.sglang("0.5.23")
        os.environ |= SECRET
        scheduler(types.SimpleNamespace())
        self.assertEqual(self.installed, [32])

    def test_the_launchers_command_line_or_engine_call_tells(self):
        self.sglang("0.5.23")
        engine = "entrypoints/engine.py"
        call = lambda words: called_from(engine, "__init__", {"kwargs": words}, plugin.activate)
        self.refused(lambda: call({"disaggregation_mode": "prefill"}))
        self.refused(lambda: call({"server_args": arguments("decode")}))
        self.assertEqual(self.said(lambda: call({"model_path": "m"})), "")
        sys.argv.append("--disaggregation-mode=prefill")
        self.refused(plugin.activate)
        os.environ |= SECRET
        self.assertIn("SGLang 0.5.23 fits", self.said(plugin.activate))
        self.assertEqual(self.installed, [])

    def test_always_and_never_are_obeyed_and_other_words_refused(self):
        self.sglang("0.5.23")
        os.environ["COFFERDAM_GUARD_ARM"] = "always"
        self.refused(lambda: scheduler(arguments("null")))
        self.refused(plugin.activate)
        os.environ["COFFERDAM_GUARD_ARM"] = "never"
        scheduler(arguments("prefill"))
        self.assertEqual(self.installed, [])
        self.assertIn("OFF in every server", self.said(plugin.activate))
        os.environ["COFFERDAM_GUARD_ARM"] = "on"
        self.assertIn("'on': disaggregated, always or never", self.refused(lambda: scheduler(None)))

    def test_processes_without_pages_are_left_alone(self):
        os.environ["COFFERDAM_GUARD_ARM"] = "always"
        given = {"server_args": arguments("decode")}
        for function in ("run_detokenizer_process", "run_data_parallel_controller_process"):
            called_from("managers/x.py", function, given, plugin.activate)
        self.assertEqual(self.installed, [])


class Table(unittest.TestCase):
    def test_every_hooked_function_has_something_to_run(self):
        try:
            from cofferdam_guard.sglang.table import table
        except ImportError:
            self.skipTest("torch is not installed")
        for version in VERSIONS:
            with tempfile.TemporaryDirectory() as folder:
                recorded.lay_out(recorded.text(f"sglang-{version}"), Path(folder))
                hooked = surface.fit(Sources(Path(folder))).hooked
            hooks = table(hooked, object())
            self.assertEqual([hook.target for hook in hooks], [one.target for one in hooked])
            self.assertNotIn(None, [hook.run for hook in hooks])


class Settings(Case):
    def test_paths_that_cannot_be_used_are_named_with_their_variable(self):
        from cofferdam_guard.settings import load

        gone = str(self.folder / "nowhere" / "secret")
        empty, long, binary = (self.folder / name for name in ("empty", "long", "dir"))
        empty.write_text("")
        long.write_bytes(b"x" * 5000)
        binary.mkdir()
        for path, why in (
            (gone, "cannot be read: No such file"),
            (str(empty), "COFFERDAM_GUARD_SECRET_FILE"),
            (str(long), "longer than 4096"),
            (str(binary), "cannot be read: Is a directory"),
        ):
            with self.subTest(why), self.assertRaisesRegex(BadSettings, why):
                load(env={"COFFERDAM_GUARD_SECRET_FILE": path})
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for path in (str(binary), gone, str(pipe)):
            with self.subTest(path), self.assertRaisesRegex(BadSettings, "COFFERDAM_GUARD_AUDIT"):
                load(env=SECRET | {"COFFERDAM_GUARD_AUDIT": path})


if __name__ == "__main__":
    unittest.main()
