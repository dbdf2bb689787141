"""Reading an engine's files: every way in which a signature is written, and every change is seen."""

import re
import tempfile
import unittest
from pathlib import Path

import recorded

from cofferdam_guard.sglang import surface as sglang
from cofferdam_guard.sources import Function, Sources
from cofferdam_guard.vllm import surface as vllm

CONN = '''
from abc import ABC
from engine.base import (
    Base,
    Other,
)
from .near import Near as _Near, Near
FROM_HERE = 1
if True:
    INDENTED = 2

class Queue(Base, Near):
    """What it is:
    class Nested
    """

    kind: str

    def __init__(self):
        self.set_here = 1

    @trace("x")
    def send(
        self,
        items: dict[str, int],  # a comment, with: a colon
        at: str = ":",
        *,
        last: bool = (1 == 1),
        **more,
    ) -> "Queue | None":
        return None

    async def later(self, *args: int): ...

    def twice(self, old): ...
    def twice(self, new): ...


class Odd:
    text = """
not indented
"""

    def below(self, x): ...


def plain(a, /, b): pass
'''
BASE = "class Base:\n    def inherited(self, x): ...\n    def later(self): ...\n"
NEAR = "class Near:\n    def near(self, y):\n        self.told = y\n"


class Reading(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "engine").mkdir()
        for name, text in (("conn", CONN), ("base", BASE), ("near", NEAR), ("__init__", "")):
            (self.root / "engine" / f"{name}.py").write_text(text)
        self.sources = Sources(self.root)

    def test_parameters_are_read_however_they_are_written(self):
        for target, parameters in {
            "Queue.send": ("self", "items", "at", "last", "more"),
            "Queue.later": ("self", "args"),
            "Queue.twice": ("self", "new"),
            "Queue.inherited": ("self", "x"),
            "Queue.near": ("self", "y"),
            "Odd.below": ("self", "x"),
            "plain": ("a", "b"),
        }.items():
            with self.subTest(target):
                self.assertEqual(self.sources.parameters(f"engine.conn:{target}"), parameters)
        for gone in ("Queue.gone", "Gone.send", "gone", "Odd.send"):
            self.assertIsNone(self.sources.parameters(f"engine.conn:{gone}"), gone)
        self.assertIsNone(self.sources.parameters("engine.nowhere:f"))

    def test_names_are_found_where_they_are_defined_imported_or_set(self):
        for name in ("FROM_HERE", "Other", "Queue.kind", "Queue.set_here", "Queue.told", "plain"):
            self.assertTrue(self.sources.has(f"engine.conn:{name}"), name)
        for name in ("NOWHERE", "Queue.nothing", "Odd.set_here", "INDENTED"):
            self.assertFalse(self.sources.has(f"engine.conn:{name}"), name)
        self.assertFalse(self.sources.has("engine.nowhere:x"))

    def test_a_class_that_overrides_what_is_hooked_in_its_base_is_a_difference(self):
        through = Function("engine.base:Base.inherited", ("self", "x"), ("engine.conn:Queue.inherited",))
        self.assertEqual(self.sources.differences([through]), [])
        over = Function("engine.base:Base.later", ("self",), ("engine.conn:Queue.later",))
        self.assertIn("engine.conn:Queue.later", str(self.sources.differences([over])[0]))

    def test_what_is_expected_and_what_is_there_is_said(self):
        wrong = self.sources.differences(
            [
                Function("engine.conn:Queue.twice", ("self", "old")),
                Function("engine.conn:Queue.twice", ("self",), exact=False),
                Function("engine.conn:Queue.gone", ("self",)),
                Function("engine.conn:Gone.f", ("self",)),
                Function("engine.nowhere:f", ()),
            ],
            ["engine.conn:NOWHERE"],
        )
        self.assertEqual(
            [str(one) for one in wrong],
            [
                "engine.conn:Queue.twice: expected (self, old), found (self, new)",
                "engine.conn:Queue.gone: expected (self), found nothing of that name",
                "engine.conn:Gone.f: expected (self), found no class Gone",
                "engine.nowhere:f: expected (), found no file for engine.nowhere",
                "engine.conn:NOWHERE: expected that it exists, found nothing of that name",
            ],
        )


class Recorded(Sources):
    """A recording that is not laid out as files."""

    def __init__(self, recording):
        super().__init__(Path())
        parts = (part.partition("\n") for part in recording.split("### ")[1:])
        self._modules = {module: body for module, _, body in parts}

    def _text(self, module):
        return self._modules.get(module)


class Versions(unittest.TestCase):
    """Real versions, as `record.py` wrote them down."""

    def sources(self, recording):
        return Recorded(recording)

    def test_every_recorded_sglang_fits_in_one_form_or_another(self):
        for version in ("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"):
            fit = sglang.fit(self.sources(recorded.text(f"sglang-{version}")))
            with self.subTest(version):
                self.assertEqual(fit.differences, ())

    def test_the_guard_for_vllm_fits(self):
        for version in ("0.30.0", "0.31.0", "0.32.0", "0.33.0"):
            sources = self.sources(recorded.text(f"vllm-{version}"))
            self.assertEqual(sources.differences(vllm.FUNCTIONS, vllm.NAMES), [])

    def taken(self, version):
        """What the guard stands on in this version: the forms that it has, not the others."""
        sources = self.sources(recorded.text(f"sglang-{version}"))
        hooked = list(sglang.fit(sources).hooked)
        forms = [form for known in sglang.FORMS.values() for form in known]
        names = [n for form in forms if set(form.functions) <= set(hooked) for n in form.names]
        names = [name for name in names if sources.has(name)]
        return f"sglang-{version}", hooked + sglang.called(), sglang.named() + names

    def test_nothing_that_the_guards_stand_on_can_change_unseen(self):
        for name, functions, names in (
            *(self.taken(version) for version in ("0.5.19", "0.5.22", "0.5.23")),
            ("vllm-0.32.0", vllm.FUNCTIONS, vllm.NAMES),
        ):
            recording = recorded.text(name)
            for target in [one.target for one in functions] + list(names):
                word = target.rpartition(":")[2].rpartition(".")[2]
                without = recording.replace(f"def {word}(", f"def x{word}(")
                without = without.replace(f"    {word} = ", f"    x{word} = ")
                without = without.replace(f"import {word}\n", f"import x{word}\n")
                without = without.replace(f"class {word}", f"class x{word}")
                without = without.replace(f"\n{word} = ", f"\nx{word} = ")
                with self.subTest(name, target=target):
                    self.assertTrue(self.sources(without).differences(functions, names))
            for one in functions:
                if not one.parameters:
                    continue
                word = one.target.rpartition(":")[2].rpartition(".")[2]
                last = one.parameters[-1]
                changed = re.sub(
                    rf"(def {word}\(.*)\b{last}\b(.*\n)", rf"\1x{last}\2", recording
                )
                with self.subTest(name, changed=one.target):
                    self.assertTrue(self.sources(changed).differences(functions, names))


if __name__ == "__main__":
    unittest.main()
