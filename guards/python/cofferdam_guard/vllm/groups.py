"""Groups of KV caches: layers whose blocks are handed out together. A model with sliding windows has
several, and a request has a row of blocks in each. Every group is stated and compared on its own; one of a
kind that the guard does not know is refused by name, for what is attended to through it would go unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..settings import BadSettings

# Kinds whose blocks hold what tokens were computed to, by the names of vLLM's classes, as they are written.
FULL = ("FullAttentionSpec", "MLAAttentionSpec")
WINDOW = ("SlidingWindowSpec",)


@dataclass(frozen=True)
class Group:
    number: int
    block_size: int
    # Tokens that a token sees, itself included; 0: all before it.
    window: int = 0
    layers: tuple[str, ...] = ()

    def total(self, tokens: int) -> int:
        """Blocks in the row of a prompt, those that the window has left included."""
        return -(-tokens // self.block_size)

    def first(self, tokens: int) -> int:
        """The first block that prefill still has when it has computed a prompt: the next token would see
        nothing before it."""
        return max(0, tokens - self.window + 1) // self.block_size if self.window else 0

    def first_read(self, tokens: int) -> int:
        """The first block that decode reads: it computes the prompt's last token again."""
        return max(0, tokens - self.window) // self.block_size if self.window else 0

    def stated(self, tokens: int) -> int:
        """Blocks that a statement over this prompt covers."""
        return self.total(tokens) - self.first(tokens)

    def covered(self, tokens: int) -> int:
        """Tokens in them."""
        return tokens - self.first(tokens) * self.block_size

    def bound(self) -> bytes:
        """What a reference to this group's blocks is bound to, beside the engine's parameters."""
        ends = f"{self.layers[0]}..{self.layers[-1]}" if self.layers else ""
        return f"|{self.number}|{self.block_size}|{self.window}|{len(self.layers)}|{ends}".encode()

    def __str__(self) -> str:
        kind = f"window {self.window}" if self.window else "full"
        return f"group {self.number} ({kind}, {len(self.layers)} layers, blocks of {self.block_size})"


def groups_of(kv_cache_config: Any) -> list[Group]:
    """The groups of this model, in vLLM's order; raises `BadSettings` naming what is not known."""
    specs = list(kv_cache_config.kv_cache_groups)
    found, unknown = [], []
    for number, group in enumerate(specs):
        spec, kind = group.kv_cache_spec, type(group.kv_cache_spec).__name__
        names = tuple(group.layer_names)
        if kind not in FULL + WINDOW:
            unknown.append(f"{kind} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})")
            continue
        window = int(spec.sliding_window) if kind in WINDOW else 0
        found.append(Group(number, spec.block_size, window, names))
    transferred = getattr(kv_cache_config, "transfer_groups", None)
    if transferred is not None and len(transferred) != len(specs):
        unknown.append(f"{len(specs) - len(transferred)} groups that vLLM does not transfer")
    if not found and not unknown:
        unknown.append("no KV cache at all")
    if unknown:
        raise BadSettings(
            f"cofferdam-guard cannot check these groups of KV caches yet, so it does not start: "
            f"{'; '.join(unknown)}. It knows {', '.join(FULL + WINDOW)}. Use vLLM's own connector for this "
            "model, without the guard"
        )
    return found
