"""What real versions of the engines look like, written down by `record.py`."""

from pathlib import Path


def text(name: str) -> str:
    """The recording of one version (`sglang-0.5.22`)."""
    return (Path(__file__).parent / f"{name}.txt").read_text()


def lay_out(recording: str, folder: Path) -> None:
    """As files of a package. Nothing in them may be imported: whoever does is told."""
    for part in recording.split("### ")[1:]:
        module, _, body = part.partition("\n")
        path = folder.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"raise AssertionError('{module} was imported')\n{body}")
