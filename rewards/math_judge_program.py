"""The child process of `rewards.math_judge`: reads `[gold, answer]` lines, writes `true` or `false` lines.

Its argument is the processor time in seconds that each may take.
"""

import json
import resource
import signal
import sys

MEMORY = 4 * 1024**3
"""Bytes of address space; more means an expression that explodes."""


def main(seconds: float) -> None:
    try:
        from math_verify import parse, verify
    except ImportError as error:
        print(json.dumps(str(error)), flush=True)
        return
    if sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    # The default action ends the process in the kernel, even inside a long computation in C.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            parsed_gold = parse(f"${gold}$", parsing_timeout=None)
            parsed_answer = parse(f"${answer}$", parsing_timeout=None)
            equal = verify(parsed_gold, parsed_answer, timeout_seconds=None)
        except Exception:
            equal = False  # what Math-Verify cannot digest has not been shown to be equal
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(bool(equal)), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
