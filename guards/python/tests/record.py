"""Writes down of an installed (or unpacked) engine what the guards read of its files, and nothing else:

    python record.py FOLDER_THAT_HOLDS_THE_PACKAGE sglang > recorded/sglang-0.5.22.txt

so that tests know what real versions look like. Signatures and names only, no code of the engine's."""

import ast
import sys
from pathlib import Path

from cofferdam_guard import sources
from cofferdam_guard.sglang import surface as sglang
from cofferdam_guard.vllm import surface as vllm

OF = {"sglang": sglang.every(), "vllm": (vllm.FUNCTIONS, vllm.NAMES)}


def record(root: Path, package: str) -> str:
    """One text: for each module a line `### module`, and what is in it."""
    seen = sources.Sources(root)
    functions, names = OF[package]
    targets = [one.target for one in functions] + list(names)
    targets += [place for one in functions for place in one.through]
    wanted: dict[str, set[str]] = {}
    for target in targets:
        module, _, path = target.partition(":")
        wanted.setdefault(module, set()).add(path)
        owner, _, name = path.rpartition(".")
        for home, kind in seen._line(module, owner) if owner else ():
            wanted.setdefault(home, set()).add(f"{kind}.{name}")
    texts = (f"### {module}\n{_module(seen, module, wanted)}" for module in sorted(wanted))
    return "".join(texts)


def _module(seen: sources.Sources, module: str, wanted: dict[str, set[str]]) -> str:
    paths, lines = wanted[module], []
    owners = {path.rpartition(".")[0] for path in paths} - {""}
    tree = ast.parse(seen._text(module) or "")
    needed = {path for path in paths if "." not in path} | owners
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef) and n.name in owners}
    for node in classes.values():
        needed |= {ast.unparse(base).split(".")[-1].split("[")[0] for base in node.bases}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            kept = [one.name for one in node.names if one.name in needed]
            lines += [f"from {'.' * node.level}{node.module or ''} import {n}" for n in kept]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in paths:
            lines.append(_head(node))
        elif isinstance(node, ast.ClassDef) and node.name in paths - owners:
            lines.append(f"class {node.name}: ...")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            lines += [f"{t.id} = ..." for t in targets if isinstance(t, ast.Name) and t.id in paths]
    for name, node in classes.items():
        lines += _class(seen, module, name, node, paths)
    return "\n".join(lines) + "\n"


def _class(seen, module: str, name: str, node: ast.ClassDef, paths: set[str]) -> list[str]:
    bases = ", ".join(ast.unparse(base).split("[")[0] for base in node.bases)
    lines = [f"class {name}({bases}):" if bases else f"class {name}:", "    ..."]
    inside = {path.rpartition(".")[2] for path in paths if path.rpartition(".")[0] == name}
    methods = {n.name: n for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
    words = set(seen._block(module, name).replace(".", " ").replace("(", " ").split())
    for one in sorted(inside):
        if one in methods:
            lines.append("    " + _head(methods[one]))
        elif any(one == word.strip(":,)=[]") for word in words):
            lines.append(f"    {one} = ...")
    return lines


def _head(node) -> str:
    """The signature, without types and values."""
    names = ", ".join(_parameters(node.args))
    return f"def {node.name}({names}): ..."


def _parameters(args: ast.arguments) -> list[str]:
    listed = [one.arg for one in args.posonlyargs + args.args]
    if args.vararg:
        listed.append("*" + args.vararg.arg)
    elif args.kwonlyargs:
        listed.append("*")
    listed += [one.arg for one in args.kwonlyargs]
    return listed + (["**" + args.kwarg.arg] if args.kwarg else [])


if __name__ == "__main__":
    print(record(Path(sys.argv[1]), sys.argv[2]), end="")
