"""What an engine's own source files say, read without importing them.

Importing an engine takes many seconds, and what does not fit would then be said after half of it is
up. So before anything loads, its files are read: is every function that the guard hooks there, does
it take what the guard was written for, and is every name there that the guard uses beside them?
"""

from __future__ import annotations

import ast
import importlib.util
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# A signature is not longer than this; bases are not followed deeper than this.
SIGNATURE_CHARS_MAX, BASES_MAX = 8000, 8


@dataclass(frozen=True)
class Function:
    """A function and the parameters that it must have, by name and in this order: `exact`ly these,
    or these first. `through` are classes by which the engine reaches the same function."""

    target: str
    parameters: tuple[str, ...]
    through: tuple[str, ...] = ()
    exact: bool = True


@dataclass(frozen=True)
class Difference:
    target: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.target}: expected {self.expected}, found {self.found}"


def root_of(package: str) -> Path | None:
    """Where a package is installed; it is not imported for that."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]).parent if places else None


class Sources:
    """The files of one package, under the folder that holds it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._texts: dict[str, str | None] = {}
        self._blocks: dict[tuple[str, str], str | None] = {}
        self._exact: dict[tuple[str, str], str | None] = {}
        self._imported: dict[str, dict[str, str]] = {}

    def differences(
        self, functions: Iterable[Function], names: Iterable[str] = ()
    ) -> list[Difference]:
        """Everything that is not as the guard was written for; empty if it fits."""
        wrong = []
        for function in functions:
            wrong += self._function(function)
        for name in names:
            if not self.has(name):
                wrong.append(Difference(name, "that it exists", self._why_not(name)))
        return wrong

    def _function(self, wanted: Function) -> list[Difference]:
        expected = f"({', '.join(wanted.parameters)}{'' if wanted.exact else ', …'})"
        found = self.parameters(wanted.target)
        if found is None:
            return [Difference(wanted.target, expected, self._why_not(wanted.target))]
        first = found if wanted.exact else found[: len(wanted.parameters)]
        if first != wanted.parameters:
            return [Difference(wanted.target, expected, f"({', '.join(found)})")]
        home = self._home(*_split(wanted.target))
        return [
            Difference(place, f"the function of {wanted.target}", "one of its own, or none")
            for place in wanted.through
            if self._home(*_split(place)) != home and not self._imports(place, wanted.target)
        ]

    def parameters(self, target: str) -> tuple[str, ...] | None:
        """Parameters of `module:Class.method` or `module:function` as they are written, looked up in
        the bases too; None if there is no such function."""
        home = self._home(*_split(target))
        if home is None:
            return None
        module, path = home
        return self._quickly(module, path) or self._slowly(module, path)

    def has(self, target: str) -> bool:
        """Whether a module has a name, or a class (or one of its bases) an attribute."""
        module, path = _split(target)
        text = self._text(module)
        owner, _, name = path.rpartition(".")
        if text is None or (not owner and name not in text):
            return False
        word = re.compile(rf"\b{re.escape(name)}\b")
        if not owner:
            return any(word.search(line) for line in _top_level(text))
        line = self._line(module, owner)
        return any(
            word.search(block(*place) or "") for block in (self._block, self._exactly) for place in line
        )

    # -- finding ------------------------------------------------------------------------------

    def _text(self, module: str) -> str | None:
        if module not in self._texts:
            base = self._root.joinpath(*module.split("."))
            self._texts[module] = None
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if path.is_file():
                    self._texts[module] = path.read_text(encoding="utf-8", errors="replace")
                    break
        return self._texts[module]

    def _block(self, module: str, name: str) -> str | None:
        """The text of a class, up to the next line at the margin."""
        if (module, name) not in self._blocks:
            text, block = self._text(module), None
            found = re.search(rf"^class {re.escape(name)}\b", text, re.M) if text else None
            if text is not None and found is not None:
                rest = text[found.start() :]
                end = re.search(r"\n(?=[^\s)#])", rest)
                block = rest[: end.start()] if end else rest
            self._blocks[module, name] = block
        return self._blocks[module, name]

    def _exactly(self, module: str, name: str) -> str | None:
        """The text of a class by the grammar: slower, for one with text at the margin inside. Asked only
        when something was not found."""
        if (module, name) not in self._exact:
            text, found = self._text(module) or "", None
            try:
                for node in ast.parse(text).body:
                    if isinstance(node, ast.ClassDef) and node.name == name:
                        found = node
            except SyntaxError:
                pass
            lines = text.splitlines(keepends=True)
            block = "".join(lines[found.lineno - 1 : found.end_lineno]) if found else None
            self._exact[module, name] = block
        return self._exact[module, name]

    def _line(self, module: str, name: str, depth: int = 0) -> list[tuple[str, str]]:
        """A class and its bases, as far as they are in this package's files."""
        block = self._block(module, name)
        if block is None or depth > BASES_MAX:
            return []
        found = [(module, name)]
        head = re.match(r"class \w+\(([^)]*)\)", block)
        for base in re.findall(r"[\w.]+", head.group(1)) if head else ():
            base = base.rpartition(".")[2]
            home = module if self._block(module, base) is not None else self._from(module, base)
            if home is not None:
                found += self._line(home, base, depth + 1)
        return found

    def _from(self, module: str, name: str) -> str | None:
        """The module from which `module` imports a name."""
        if module not in self._imported:
            found: dict[str, str] = {}
            pattern = r"from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]*)"
            for origin, what in re.findall(pattern, self._text(module) or ""):
                for one in re.findall(r"\w+", what):
                    found.setdefault(one, _absolute(module, origin))
            self._imported[module] = found
        return self._imported[module].get(name)

    def _imports(self, place: str, target: str) -> bool:
        """Whether `place` is a module that has the function of `target` by import."""
        (module, name), (home, path) = _split(place), _split(target)
        return name == path and self._from(module, name) == home

    def _home(self, module: str, path: str) -> tuple[str, str] | None:
        """Module and path where a function is really defined."""
        owner, _, name = path.rpartition(".")
        if not owner:
            text = self._text(module)
            return (module, path) if _definition(text or "", name, 0) is not None else None
        line = self._line(module, owner)
        for block in (self._block, self._exactly):
            for at, kind in line:
                if _definition(block(at, kind) or "", name, 4) is not None:
                    return at, f"{kind}.{name}"
        return None

    def _why_not(self, target: str) -> str:
        module, path = _split(target)
        if self._text(module) is None:
            return f"no file for {module}"
        owner = path.rpartition(".")[0]
        if owner and self._block(module, owner) is None:
            return f"no class {owner}"
        return "nothing of that name"

    # -- reading ------------------------------------------------------------------------------

    def _quickly(self, module: str, path: str) -> tuple[str, ...] | None:
        """From the lines of the signature alone."""
        owner, _, name = path.rpartition(".")
        text = (self._block(module, owner) if owner else self._text(module)) or ""
        found = _definition(text, name, 4 if owner else 0)
        if found is None:
            return None
        lines = text[found : found + SIGNATURE_CHARS_MAX].splitlines()
        for count in range(1, len(lines) + 1):
            if not re.search(r":\s*(#.*|\.\.\.)?$", lines[count - 1]):
                continue
            head = textwrap.dedent("\n".join(lines[:count]))
            for body in ("", "\n    pass"):
                try:
                    node = ast.parse(head + body).body[0]
                except SyntaxError:
                    continue
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    return _names(node)
        return None

    def _slowly(self, module: str, path: str) -> tuple[str, ...] | None:
        """From the whole file, where its layout is not the usual one."""
        try:
            node: ast.AST = ast.parse(self._text(module) or "")
        except SyntaxError:
            return None
        for part in path.split("."):
            kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            named = [n for n in ast.walk(node) if isinstance(n, kinds) and n.name == part]
            if not named:
                return None
            node = named[-1]
        return _names(node) if not isinstance(node, ast.ClassDef) else None


def _split(target: str) -> tuple[str, str]:
    module, _, path = target.partition(":")
    return module, path


def _definition(text: str, name: str, indent: int) -> int | None:
    """Where the last definition of a function begins: that one is in force."""
    places = [
        text.rfind(f"\n{' ' * indent}{kind} {name}(") for kind in ("def", "async def")
    ]
    found = max(places) + 1
    first = ("def", "async def") if not indent else ()
    if not found and not any(text.startswith(f"{kind} {name}(") for kind in first):
        return None
    return found


def _names(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    """As `inspect.signature` orders them."""
    args = node.args
    listed = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    return tuple(one.arg for one in listed if one is not None)


def _absolute(module: str, origin: str) -> str:
    """`from ..x import` as the full name of a module (a relative one is seen from a module, not from a
    package)."""
    dots = len(origin) - len(origin.lstrip("."))
    if not dots:
        return origin
    base = module.split(".")[:-dots]
    return ".".join(base + [part for part in origin.lstrip(".").split(".") if part])


def _top_level(text: str) -> list[str]:
    """Lines that can define or import a name of the module; those of an import in brackets too."""
    lines, inside = [], False
    for line in text.splitlines():
        if inside or re.match(r"[A-Za-z_@]", line):
            lines.append(line)
            opens = re.match(r"(from|import)\b", line) and "(" in line and ")" not in line
            inside = bool(opens) or (inside and ")" not in line)
    return lines
