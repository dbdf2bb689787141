"""A rejection by decode alone: prefill pool 8,000, decode pool 2,000, both workers asked as a router
would, and through the router.

Decode rejects what prefill would take. Both must end with decode's original error, soon: without the
guard prefill waits up to five minutes in a bootstrap for a decode that will never come.
"""

from concurrent.futures import ThreadPoolExecutor

from pair import check, prompt

RIGHT = "exceeds the maximum allowed length"
ROOM = 5_380_000_000


def run(pair, stock=None):
    alarms = pair.refused()
    # Decode keeps 512 tokens free for the answer: between 1,488 and 1,993 it takes a prompt and never
    # finds room for it, with the guard and without.
    for n in (100, 1400):
        status, ids, seconds = pair.generate(prompt(n), 8, timeout=120)
        check(status == 200 and len(ids) == 8, f"{n} tokens: an answer", f"{ids} {seconds:.2f} s")
        if stock is not None:
            other = stock.generate(prompt(n), 8, timeout=120)[1]
            check(ids == other, f"{n} tokens: the answer that stock gives", other)
    for n in (2000, 2500):
        _both(pair, n, ROOM + n)
        status, text, seconds = pair.generate(prompt(n), 8, timeout=30)
        check(
            status == 400 and RIGHT in str(text),
            f"{n} tokens, through the router: the original 400",
            f"{str(text)[:110]} {seconds:.3f} s",
        )
    after = pair.settle()
    check(after["used"] == {"prefill": 0, "decode": 0}, "nothing is left in use", after["used"])
    check(pair.metric("decode", "cofferdam_guard_rejected_total") >= 4, "rejections are counted")
    check(pair.refused() == alarms, "nothing was refused besides")
    status, ids, _ = pair.generate(prompt(300, 9), 8, timeout=120)
    check(status == 200 and len(ids) == 8, "the next request: an answer", ids)
    if stock is not None:
        _what_stock_does(stock)


def _ask_both(pair, n, room, timeout):
    """What each side answers to the same request: (status, text, seconds)."""
    where = {
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": pair._bootstrap_port(),
        "bootstrap_room": room,
    }
    with ThreadPoolExecutor(2) as pool:
        asked = {
            name: pool.submit(
                pair.generate, prompt(n), 8, name=name, timeout=timeout, **where
            )
            for name in ("prefill", "decode")
        }
        return {name: answer.result() for name, answer in asked.items()}


def _both(pair, n, room):
    """The fastest of three: the machine may be busy with something else."""
    answers = [_ask_both(pair, n, room + 10 * i, 30) for i in range(3)]
    for name in ("decode", "prefill"):
        said = [answer[name] for answer in answers]
        right = all(status == 400 and RIGHT in str(text) for status, text, _ in said)
        check(right, f"{n} tokens, {name}: decode's 400", [str(it)[:110] for it in said[:1]])
        best = min(seconds for _, _, seconds in said)
        check(best < 1.0, f"{n} tokens, {name}: in under a second", f"{best:.3f} s")


def _what_stock_does(stock):
    """Shown, not asserted: it is what the guard is for."""
    for name, (status, text, seconds) in _ask_both(stock, 2500, ROOM, 20).items():
        print(
            f"     without the guard, 2500 tokens, {name}: {status} {str(text)[:110]} {seconds:.2f} s",
            flush=True,
        )
