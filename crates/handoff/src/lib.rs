//! The handoff as three sans-IO state machines: gateway request, prefill, decode.
