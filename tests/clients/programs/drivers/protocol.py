"""How a driver talks with its run: one JSON line in for each turn, one JSON line out.

In: `{"say": text}`. Out: `{"answer": text}`, or `{"error": text}` where the client raised.
"""

import json
import os
import sys

# Some clients print what they do; only our own lines may reach the run.
_lines = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def drive(turn):
    """Calls `turn(text)` for each line until standard input ends."""
    for line in sys.stdin:
        try:
            told = {"answer": turn(json.loads(line)["say"])}
        except Exception as error:  # whatever the client raises is what its user would see
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), file=_lines, flush=True)
