"""The table of what was run: version by shape, from what the scripts printed.

    python table.py add FILE --engine SGLang --version 0.5.23 --shape "TP 2"    # a saved output
    python table.py write                                                      # into the documents

`seen.json` keeps one entry for each engine, version, shape and part; an entry that is added again is
replaced. A row that failed is kept as failed.
"""

import argparse
import datetime
import json
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
SEEN = HERE / "seen.json"
DOCS = HERE.parents[2] / "docs"
BEGIN, END = "<!-- generated: guards/python/engines/table.py -->", "<!-- end -->"
WHERE = {"SGLang": DOCS / "guard-sglang.md", "vLLM": DOCS / "guard-vllm.md"}


def add(a):
    part, counts = a.part or "all", {}
    for line in Path(a.file).read_text(errors="replace").splitlines():
        named = re.match(r"-- ([\w-]+),", line)
        part = named[1] if named else part
        if line.startswith(("ok  ", "FAIL")):
            good, bad = counts.get(part, (0, []))
            counts[part] = (good + 1, bad) if line[0] == "o" else (good, [*bad, line[5:85].strip()])
    entries = [
        one
        for one in _seen()
        if (one["engine"], one["version"], one["shape"]) != (a.engine, a.version, a.shape)
        or one["part"] not in counts
    ]
    for part, (good, bad) in counts.items():
        entries.append(
            {
                "engine": a.engine,
                "version": a.version,
                "shape": a.shape,
                "part": part,
                "on": str(datetime.date.today()),
                "held": good,
                "failed": bad,
            }
        )
    entries.sort(key=lambda one: (one["engine"], one["version"], one["shape"], one["part"]))
    SEEN.write_text("[\n" + ",\n".join(json.dumps(one) for one in entries) + "\n]\n")


def _seen():
    return json.loads(SEEN.read_text()) if SEEN.exists() else []


def table(engine):
    """Markdown: a row for each version and shape, a column for each part."""
    mine = [one for one in _seen() if one["engine"] == engine]
    parts = sorted({one["part"] for one in mine})
    rows = sorted({(one["version"], one["shape"]) for one in mine})
    lines = ["| version | shape | " + " | ".join(parts) + " |", "|---" * (len(parts) + 2) + "|"]
    for version, shape in rows:
        cells = []
        for part in parts:
            found = [
                one for one in mine if (one["version"], one["shape"], one["part"]) == (version, shape, part)
            ]
            cells.append(_cell(found[0]) if found else "not run")
        lines.append(f"| {version} | {shape} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(one):
    total = one["held"] + len(one["failed"])
    return f"{one['held']} of {total}" + (f": not {'; '.join(one['failed'])}" if one["failed"] else "")


def write(_):
    for engine, path in WHERE.items():
        text = path.read_text()
        head, rest = text.split(BEGIN, 1)
        _, tail = rest.split(END, 1)
        path.write_text(f"{head}{BEGIN}\n{table(engine)}\n{END}{tail}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    adds = commands.add_parser("add")
    adds.add_argument("file")
    for name in ("engine", "version", "shape"):
        adds.add_argument(f"--{name}", required=True)
    adds.add_argument("--part", help="what it is called where the output does not say")
    adds.set_defaults(run=add)
    commands.add_parser("write").set_defaults(run=write)
    a = parser.parse_args()
    a.run(a)


if __name__ == "__main__":
    main()
