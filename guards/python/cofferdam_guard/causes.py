"""Why a request was refused, in the few words that an alert or a client has to tell apart.

What is wrong with pages asks for somebody who looks; what came too late asks for another try. So a
refusal has a cause beside its reason: the label of `cofferdam_guard_refusals_total`, and the client's
status, 503 where the same request may be asked again at once and 500 where it should not."""

from __future__ import annotations

CONTENT, IDENTITY, SLOW, GONE, SETUP = "content", "identity", "slow", "gone", "setup"
CAUSES = {
    CONTENT: "pages are not what was computed for this request",
    IDENTITY: "the handoff is another request's, or was used before",
    SLOW: "what is compared did not come in time; nothing wrong was seen",
    GONE: "the producer has restarted or gave the request up; nothing wrong was seen",
    SETUP: "the two sides do not fit: no guard, another secret, another layout",
}
_AGAIN = (SLOW, GONE)

# By reason first; a reason that is not here has its counter's cause, and what nobody knows is the
# gravest.
_BY_REASON = {
    # vLLM, at the door and on arrival
    "timeout": SLOW,
    "silent": SLOW,
    "not_stated": SLOW,
    "unread": SLOW,
    "expired": SLOW,
    "revoked": GONE,
    "other_life": GONE,
    "unreadable": SETUP,
    "malformed": SETUP,
    "ranks": SETUP,
    "window": SETUP,
    "no_reference": SETUP,
    "used": IDENTITY,
    "used_here": IDENTITY,
    "unannounced": IDENTITY,
    # SGLang
    "late": SLOW,
    "unsettled": SLOW,
    "identity": IDENTITY,
    "count": IDENTITY,
    "statement": IDENTITY,
    "peer": SETUP,
    "layout": SETUP,
}
_BY_COUNTER = {
    "refused_lineage_total": IDENTITY,
    "refused_reuse_total": IDENTITY,
    "refused_life_total": GONE,
    "refused_lease_total": SLOW,
    "refused_unguarded_total": SETUP,
    "refused_statement_total": SETUP,
}


def cause_of(reason: str, counter: str = "") -> str:
    """What was found in pages is content, whatever word is used for it."""
    if counter in ("refused_content_total", "refused_step_total"):
        return CONTENT
    return _BY_REASON.get(reason) or _BY_COUNTER.get(counter, CONTENT)


def status_of(cause: str) -> int:
    """What the client is answered."""
    return 503 if cause in _AGAIN else 500


def message(cause: str, reason: str, detail: str = "") -> str:
    """For the client, who is told no addresses and no sums: those are in the audit log."""
    again = "; nothing wrong was seen, it may be asked again" if cause in _AGAIN else ""
    return f"cofferdam-guard: refused: {reason}: {detail or CAUSES[cause]} ({cause}{again})"
