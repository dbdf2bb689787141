"""A long line between two network devices, for tests: python3 long_line.py NEAR FAR DELAY SPREAD LOSS

Makes two devices and passes every Ethernet frame from one to the other, after DELAY ms and up to SPREAD
ms more, each frame for itself, so that some overtake others; LOSS of all frames, as a fraction, are
lost. Says "up" when both devices are there; when its input ends, how many frames it has passed on, lost,
and let overtake."""

import fcntl
import heapq
import os
import random
import selectors
import struct
import sys
import time

TUNSETIFF, TAP, NO_PACKET_INFORMATION = 0x400454CA, 0x0002, 0x1000
FRAMES_MAX = 20_000  # on the way at once; what is beyond is lost, as at any switch


def device(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", name.encode(), TAP | NO_PACKET_INFORMATION))
    return fd


def main() -> None:
    near, far = device(sys.argv[1]), device(sys.argv[2])
    delay, spread, loss = (float(word) for word in sys.argv[3:6])
    other = {near: far, far: near}
    chance = random.Random(1)
    on_the_way: list[tuple[float, int, int, bytes]] = []
    taken = passed = lost = overtaken = newest = 0
    wake = selectors.DefaultSelector()
    for fd in (near, far, 0):
        wake.register(fd, selectors.EVENT_READ)
    print("up", flush=True)
    while True:
        wait = on_the_way[0][0] - time.monotonic() if on_the_way else None
        for key, _ in wake.select(max(wait, 0) if wait is not None else None):
            if key.fd == 0:
                print(passed, lost, overtaken, flush=True)
                return
            try:
                frame = os.read(key.fd, 65536)
            except OSError:
                continue  # a device that is down
            if chance.random() < loss or len(on_the_way) >= FRAMES_MAX:
                lost += 1
                continue
            due = time.monotonic() + (delay + spread * chance.random()) / 1000
            taken += 1
            heapq.heappush(on_the_way, (due, taken, other[key.fd], frame))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            _, number, to, frame = heapq.heappop(on_the_way)
            overtaken += number < newest
            newest = max(newest, number)
            try:
                os.write(to, frame)
                passed += 1
            except OSError:
                lost += 1


main()
