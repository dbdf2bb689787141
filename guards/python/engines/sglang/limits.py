"""Prompts around prefill's limit: prefill pool 2,000, decode pool 8,000, through the router.

The longest prompt that prefill takes is pool - 7 = 1,993 tokens (with several data-parallel ranks each
has its own). Its answer must be the one that the same engine gives without a guard; 1,994, 2,000 and 2,500 must be the original 400, soon, and
nothing else: no text from other requests' pages (0.5.19), no wait of five minutes (0.5.23).
"""

from pair import check, prompt

RIGHT = "Input length ({n} tokens) exceeds the maximum allowed length ({most} tokens)"


def run(pair, stock=None):
    alarms = pair.refused()
    # Decode's pool is filled with other requests' text first.
    for seed in range(1, 5):
        pair.generate(prompt(1900, seed), 4, timeout=120)
    for rank in range(pair.dp["prefill"]):
        _around_the_limit(pair, stock, pair.pool("prefill", rank) - 6, (rank, 0) if pair.several else None)
    _chat(pair)
    _log_probabilities(pair)
    check(pair.metric("prefill", "cofferdam_guard_rejected_total") >= 5, "rejections are counted")
    check(pair.refused() == alarms, "nothing was refused besides")
    if stock is not None:
        _what_stock_does(stock)


def _around_the_limit(pair, stock, most, at):
    where = f" on rank {at[0]} of prefill" if at is not None else ""
    for n in (100, most - 1):
        status, ids, seconds = pair.generate(prompt(n), 8, timeout=120, at=at)
        check(status == 200 and len(ids) == 8, f"{n} tokens{where}: an answer", f"{ids} {seconds:.2f} s")
        if stock is not None:
            other = stock.generate(prompt(n), 8, timeout=120, at=at)[1]
            check(ids == other, f"{n} tokens{where}: the answer that stock gives", other)
    for n in (most, most + 6, most + 506):
        times = []
        for _ in range(3):
            status, text, seconds = pair.generate(prompt(n), 8, timeout=30, at=at)
            times.append(seconds)
            right = status == 400 and RIGHT.format(n=n, most=most) in str(text)
            check(right, f"{n} tokens{where}: the original 400", f"{str(text)[:110]} {seconds:.3f} s")
        # The fastest of three: the machine may be busy with something else.
        check(min(times) < 1.0, f"{n} tokens{where}: in under a second", f"{min(times):.3f} s")


def _chat(pair):
    """OpenAI's endpoint, plain and streamed."""
    body = {
        "model": "x",
        "max_tokens": 8,
        "temperature": 0,
        "messages": [{"role": "user", "content": " the" * 2500}],
    }
    status, text, seconds = pair.post("/v1/chat/completions", body)
    check(
        status == 400 and "exceeds the maximum allowed length" in text,
        "chat, over-long: 400",
        f"{status} {text[:110]} {seconds:.3f} s",
    )
    status, text, seconds = pair.post("/v1/chat/completions", {**body, "stream": True})
    told = "exceeds the maximum allowed length" in text
    spoke = any(
        f'"content":{gap}"' in text.replace('"content":""', "").replace('"content": ""', "")
        for gap in ("", " ")
    )
    check(
        told and not spoke,
        "chat, over-long, streamed: the error and no text",
        f"{status} {text[:110]!r} {seconds:.3f} s",
    )


def _log_probabilities(pair):
    """Without the guard such a request ends 0.5.19's prefill."""
    body = {"model": "x", "max_tokens": 8, "temperature": 0, "prompt": " the" * 2500, "logprobs": 2}
    status, text, seconds = pair.post("/v1/completions", body)
    said = status == 400 and "exceeds the maximum allowed length" in text
    check(said, "over-long, with log-probabilities: 400", f"{status} {text[:110]} {seconds:.3f} s")
    check(pair.generate(prompt(100), 8, timeout=30)[0] == 200, "and the next one is answered")


def _what_stock_does(stock):
    """Shown, not asserted: it is what the guard is for."""
    for n in (1994, 2500):
        status, text, seconds = stock.generate(prompt(n), 8, timeout=10)
        print(
            f"     without the guard, {n} tokens: {status} {str(text)[:110]} {seconds:.2f} s",
            flush=True,
        )
