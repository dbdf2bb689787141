"""`cofferdam-guard doctor`: what it says of engines that run, and of those that are installed."""

import contextlib
import http.server
import io
import os
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import recorded

from cofferdam_guard import doctor
from cofferdam_guard.coverage import CHECKS, Coverage

SGLANG = 'cofferdam_guard_ready{engine="0.5.23",engine_type="decode",guard="0.1.0",pid="7"} 1.0\n'
VLLM = 'cofferdam_guard_info{engine="0",policy="fail",version="0.1.0"} 1.0\n'


def checks(**off):
    return "".join(
        f'cofferdam_guard_check{{check="{name}",engine_type="decode"}} {float(off.get(name, 1))}\n'
        for name in CHECKS
    )


class Engine:
    """Something that has /metrics."""

    def __init__(self, case, text):
        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        case.addCleanup(server.server_close)
        case.addCleanup(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_port}"


class Running(unittest.TestCase):
    def doctor(self, *texts):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = doctor.run([Engine(self, text).url for text in texts])
        return status, said.getvalue()

    def test_a_guarded_engine_and_what_is_not_guarded_in_it(self):
        counts = (
            'cofferdam_guard_verified_total{engine_type="decode",reason=""} 3.0\n'
            'cofferdam_guard_refusals_total{cause="content",engine_type="decode"} 2.0\n'
            'cofferdam_guard_refusals_total{cause="slow",engine_type="decode"} 0.0\n'
            'cofferdam_guard_quarantined_pages{engine_type="decode"} 40.0\n'
        )
        status, said = self.doctor(SGLANG + checks(step=0) + counts, VLLM + checks())
        self.assertEqual(status, doctor.GUARDED)
        self.assertIn("guard 0.1.0 in SGLang 0.5.23 (decode)", said)
        self.assertIn("guard 0.1.0 in vLLM (policy fail)", said)
        self.assertIn("NOT guarded  step: every step", said)
        self.assertIn("guarded      content: what arrived is, byte for byte", said)
        self.assertIn("3 verified (each rank counts its own); refused: 2 content; 40 pages in", said)

    def test_one_without_a_guard_or_without_what_matters_is_not_guarded(self):
        for text in ("vllm:prompt_tokens_total 1\n", SGLANG, SGLANG + checks(content=0)):
            status, said = self.doctor(VLLM + checks(), text)
            with self.subTest(text[:30]):
                self.assertEqual(status, doctor.NOT_GUARDED)
                self.assertRegex(said, "NO guard is ready|not said|NOT guarded  content")

    def test_one_that_cannot_be_asked_is_unknown(self):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(doctor.run(["http://127.0.0.1:9"], 1.0), doctor.UNKNOWN)
        self.assertIn("cannot be asked", said.getvalue())


class Installed(unittest.TestCase):
    def doctor(self, packages, env):
        said = io.StringIO()
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.dict(os.environ, env, clear=True),
            contextlib.redirect_stdout(said),
        ):
            for text in packages.values():
                recorded.lay_out(text, Path(folder))
            root = lambda name: Path(folder) if name in packages else None
            with mock.patch.object(doctor, "root_of", root):
                return doctor.run([]), said.getvalue()

    def test_what_fits_what_does_not_and_what_is_missing(self):
        secret = {"COFFERDAM_GUARD_SECRET": "a secret of the fleet"}
        both = {"sglang": recorded.text("sglang-0.5.22"), "vllm": recorded.text("vllm-0.33.0")}
        status, said = self.doctor(both, secret)
        self.assertEqual(status, doctor.GUARDED, said)
        self.assertEqual(said.count("the guard fits"), 2)
        changed = {"sglang": both["sglang"].replace("def set_buf(self, req)", "def set_buf(self, rq)")}
        status, said = self.doctor(changed, secret)
        self.assertEqual(status, doctor.NOT_GUARDED)
        self.assertIn("set_buf: expected (self, req), found (self, rq)", said)
        status, said = self.doctor(both, {})
        self.assertEqual(status, doctor.NOT_GUARDED)
        self.assertIn("set COFFERDAM_GUARD_SECRET_FILE", said)
        self.assertEqual(self.doctor({}, secret)[0], doctor.UNKNOWN)


class Line(unittest.TestCase):
    def test_the_log_line_names_both_halves(self):
        line = Coverage(shape="rank 0 of 2").set(content=True, identity=True).line()
        self.assertIn("guarded (rank 0 of 2): identity, content. NOT guarded: step, release", line)
        with self.assertRaises(ValueError):
            Coverage().set(contents=True)


if __name__ == "__main__":
    unittest.main()
