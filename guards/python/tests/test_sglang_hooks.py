"""A hook that is not in place, or not in effect, is noticed."""

import sys
import types
import unittest

from cofferdam_guard.sglang import hooks


def engine():
    """A module as SGLang's are: a class, one that inherits, and an importer of a function."""
    module = types.ModuleType("sglang.fake")

    class Queue:
        def add(self, req, count):
            return ("added", req, count)

        @classmethod
        def parse(cls, msg):
            return ("parsed", msg)

    class Special(Queue):
        pass

    def abort(req, message):
        return ("aborted", req, message)

    module.Queue, module.Special, module.abort = Queue, Special, abort
    importer = types.ModuleType("sglang.importer")
    importer.abort = abort
    sys.modules["sglang.fake"], sys.modules["sglang.importer"] = module, importer
    return module, importer


def hook(target, parameters, through=()):
    return hooks.Hook(
        target, parameters, lambda original, *args: ("hooked", *original(*args)), through
    )


def put(owner, name, wrapped):
    """What SGLang's registry does, for plain functions."""
    original = vars(owner)[name]
    setattr(owner, name, lambda *args: wrapped(original, *args))
    return original


class Probing(unittest.TestCase):
    def setUp(self):
        self.module, self.importer = engine()

    def tearDown(self):
        del sys.modules["sglang.fake"], sys.modules["sglang.importer"]

    def test_a_hook_in_place_answers_and_lets_calls_through(self):
        one = hook("sglang.fake:Queue.add", ("self", "req", "count"), ("sglang.fake:Special.add",))
        hooks.check_signature(one)
        put(self.module.Queue, "add", hooks._answering(one))
        hooks.probe(one)
        self.assertEqual(self.module.Special().add("r", 2), ("hooked", "added", "r", 2))

    def test_a_missing_hook_is_noticed(self):
        one = hook("sglang.fake:Queue.add", ("self", "req", "count"))
        with self.assertRaisesRegex(hooks.NotInPlace, "does not answer"):
            hooks.probe(one)

    def test_a_function_that_takes_anything_is_no_answer(self):
        self.module.Queue.add = lambda *args: None
        with self.assertRaisesRegex(hooks.NotInPlace, "does not answer"):
            hooks.probe(hook("sglang.fake:Queue.add", ("self", "req", "count")))

    def test_a_class_that_overrides_what_was_hooked_is_noticed(self):
        one = hook("sglang.fake:Queue.add", ("self", "req", "count"))
        put(self.module.Queue, "add", hooks._answering(one))
        self.module.Special.add = lambda self, req, count: "past the hook"
        with self.assertRaisesRegex(hooks.NotInPlace, "Special"):
            hooks.probe_live(one, self.module.Special())

    def test_a_module_that_kept_the_unhooked_function_is_noticed(self):
        one = hook("sglang.fake:abort", ("req", "message"))
        original = put(self.module, "abort", hooks._answering(one))
        with self.assertRaisesRegex(
            hooks.NotInPlace, "sglang.importer.abort is still the unhooked"
        ):
            hooks.probe(one, original)

    def test_a_changed_signature_is_noticed(self):
        for parameters in (
            ("self", "req"),
            ("self", "count", "req"),
            ("self", "req", "count", "more"),
        ):
            with self.assertRaisesRegex(hooks.NotInPlace, "takes"):
                hooks.check_signature(hook("sglang.fake:Queue.add", parameters))

    def test_a_function_that_is_gone_is_noticed(self):
        for target in ("sglang.fake:Queue.gone", "sglang.fake:Gone.add", "sglang.nowhere:f"):
            with self.assertRaises(hooks.NotInPlace):
                hooks.check_signature(hook(target, ("self",)))

    def test_class_methods_are_looked_through(self):
        hooks.check_signature(hook("sglang.fake:Queue.parse", ("cls", "msg")))


if __name__ == "__main__":
    unittest.main()
