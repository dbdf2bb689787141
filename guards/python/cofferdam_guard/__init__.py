"""Page identity inside vLLM and SGLang.

A request attends only to KV blocks that were computed for it. The engines' own extension points
carry the checks; the decisions are those of the Rust crate ``guard-core`` (``_core``), over the
page ledger that Cofferdam itself runs on.

- ``core``: ledger, references, statements, single use (Rust, re-exported).
- ``tensors``: tags, step checks and checksums on plain tensors, for CPU and CUDA alike.
- ``settings``, ``versions``: what the operator sets; which engines are known.
- ``evidence``: counters and the audit log.
- ``vllm``, ``sglang``: the guards themselves, each loaded by its engine only.
"""

__version__ = "0.1.0"
