"""Changes a module of an engine right after it has been imported, as tests ask for by an environment variable: halfway.py,
uneven.py. Put this folder on `PYTHONPATH`; without a variable nothing is changed.

One folder for all, since Python loads one `sitecustomize` only."""

import importlib.abc
import importlib.machinery
import sys

import halfway
import uneven

CHANGES = {it.MODULE: it.change for it in (halfway, uneven) if it.asked()}


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds the module as everybody would, and changes it once it has been loaded."""

    def find_spec(self, name, path=None, target=None):
        change = CHANGES.get(name)
        spec = change and importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda loaded: (load(loaded), change(loaded))
        return spec


if CHANGES:
    sys.meta_path.insert(0, AfterImport())
