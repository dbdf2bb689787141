"""The guard for SGLang. Loaded by SGLang through its entry-point group ``sglang.srt.plugins``."""


def load() -> None:
    """Nothing is hooked yet."""
