"""Whole client programs, each once directly and once through a Diarist with small thresholds.

    run.py NAME...      (`tests/clients/run NAME...` sets everything up)

A program is told the same turns on both ways. Its user must be given the same answers, the provider
must refuse nothing, and the conversation must get memory. With `--write` the transcript goes into
docs/clients/NAME.md.
"""

import json
import pathlib
import re
import sys
import tempfile
import time
from contextlib import ExitStack, closing

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))

from install import Missing, environment
from sessions import Failed
from table import BEHIND, PROGRAMS, VERSIONS
from ways import KEY, Control, Diarist

DOCS = pathlib.Path(__file__).parents[3] / "docs" / "clients"

SETTINGS = {
    "DIARIST__MEMORY__OBSERVATION__MESSAGE_TOKENS": "1500",
    "DIARIST__MEMORY__OBSERVATION__MODEL": "observer-mini",
    "DIARIST__MEMORY__REFLECTION__OBSERVATION_TOKENS": "1500",
    "DIARIST__MEMORY__REFLECTION__MODEL": "reflector-mini",
}

# Long enough that a few of them exceed message_tokens.
FILLER = " ".join(
    f"Item {n} of the list is a {colour} {thing} from {place}, kept for later."
    for n, (colour, thing, place) in enumerate(
        (colour, thing, place)
        for colour in ("red", "green")
        for thing in ("kettle", "ladder", "notebook")
        for place in ("Graz", "Porto", "Turku")
    )
)


def turns(count=14):
    """What the person says: a fact to remember each time, and now and then an order for a tool."""
    for n in range(count):
        order = f' CALL<<look_up {{"query": {n}}}>>' if n % 3 == 2 else ""
        yield f"Turn {n}: locker {n} opens with code {7000 + 13 * n}.{order} {FILLER}"


def play(name, through):
    """One way: the answers, and what arrived at the provider."""
    with ExitStack() as stack:
        provider = Control()
        stack.callback(provider.close)
        provider("obey")
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="diarist-client-")))
        home = folder / "home"
        home.mkdir()
        base_url, diarist = provider.base_url, None
        if name in BEHIND:
            gateway = BEHIND[name](folder, environment(home, base_url, KEY), base_url)
            stack.callback(gateway.close)
            base_url = gateway.base_url
        if through:
            diarist = Diarist(base_url, SETTINGS)
            stack.callback(lambda: diarist.process.poll() is None and diarist.close())
            base_url = diarist.base_url
        answers = []
        with closing(PROGRAMS[name](folder, environment(home, base_url, KEY))) as session:
            for text in turns():
                answers.append(session.turn(text))
                rest(provider)
        record = provider("record", settled=True)
        audit = []
        if diarist:
            diarist.close()
            with open(f"{diarist.folder.name}/audit.jsonl") as lines:
                audit = [json.loads(line) for line in lines]
        return {"answers": answers, "record": record, "audit": audit}


def rest(provider):
    """What a person does between two turns: long enough that memory has been silent for a while."""
    before = -1
    for _ in range(50):
        count = provider("count")
        if count == before:
            return
        before = count
        time.sleep(0.1)


# What a client may call a conversation by; shown, so that a reader knows what there is to go by.
NAMING = re.compile(r"session|conversation|thread|chat-?id|chat_id|task|user|trace|affinity|cache_key|metadata", re.I)


def ids(record):
    found = set()
    for entry in record:
        found |= {f"header {name}" for name, _ in entry["headers"] if NAMING.search(name) and name != "user-agent"}
        try:
            body = json.loads(bytes.fromhex(entry["body_hex"]))
        except ValueError:
            continue
        if isinstance(body, dict):
            found |= {f"field {name}" for name in body if NAMING.search(name)}
    return sorted(found)


def judge(name, direct, through):
    """The transcript, and whether all is as it has to be."""
    sent = [entry for entry in direct["record"]]
    arrived = [entry for entry in through["record"] if entry["part"] in ("actor", "other")]
    memory = [entry["part"] for entry in through["record"] if entry["part"] in ("observer", "reflector")]
    size = lambda record: sum(len(entry["body_hex"]) // 2 for entry in record)
    refused, refused_direct = ([e for e in record if isinstance(e["verdict"], dict)] for record in (arrived, sent))
    equal = sum(a == b for a, b in zip(direct["answers"], through["answers"]))
    active = sum(line.get("memory") == "active" for line in through["audit"])
    told = len(direct["answers"])
    agents = sorted({value for entry in sent for header, value in entry["headers"] if header == "user-agent"})
    lines = [
        f"{name}: {', '.join(VERSIONS[name])}",
        f"  user agent                    {'; '.join(agents)}",
        f"  names a conversation by       {'; '.join(ids(sent)) or 'nothing'}",
        f"  turns                   {told:6}   ({equal} answers equal)",
        f"  requests, direct        {len(sent):6}   ({size(sent) // 1000} KB)",
        f"  requests, through       {len(arrived):6}   ({size(arrived) // 1000} KB arrived, {active} with memory)",
        f"  calls of memory         {len(memory):6}   ({memory.count('observer')} Observer, {memory.count('reflector')} Reflector)",
        f"  refused                 {len(refused):6}   ({len(refused_direct)} directly)",
    ]
    good = equal == told == len(through["answers"]) and len(arrived) == len(sent) and active > 0
    return lines, good and len(refused) == len(refused_direct)


def write(name, lines):
    page = DOCS / f"{name}.md"
    text = page.read_text()
    mark = "<!-- made by tests/clients/run -->\n"
    before = text.split(mark)[0]
    page.write_text(f"{before}{mark}\n```text\n" + "\n".join(lines) + "\n```\n")


def main(names):
    writing = "--write" in names
    names = [name for name in names if name != "--write"]
    if names == ["all"]:
        names = list(PROGRAMS)
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown or not names:
        print(f"no such client: {' '.join(unknown)}; there are: {' '.join(PROGRAMS)}, or all", file=sys.stderr)
        return 2
    bad = []
    for name in names:
        try:
            direct, through = play(name, False), play(name, True)
        except (Missing, Failed) as error:
            print(f"{name}: {error}", file=sys.stderr)
            bad.append(name)
            continue
        lines, good = judge(name, direct, through)
        print("\n".join(lines), flush=True)
        if good and writing:
            write(name, lines)
        if not good:
            for n, (a, b) in enumerate(zip(direct["answers"], through["answers"])):
                if a != b:
                    print(f"  DIFFERS  turn {n}: {a!r} against {b!r}")
            print(f"FAILED: {name}")
            bad.append(name)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
