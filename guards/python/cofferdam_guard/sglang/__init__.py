"""The guard for SGLang. Loaded by SGLang through its entry-point group ``sglang.srt.plugins``.

See docs/guard-sglang.md. Importing this imports nothing of the engine, and nothing that could fail:
SGLang swallows what goes wrong while it imports a plugin.
"""


def load() -> None:
    """Puts the guard into this process of SGLang's, or ends the process with the reason."""
    from .plugin import activate

    activate()
