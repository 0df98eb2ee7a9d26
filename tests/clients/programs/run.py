"""Whole client programs, each once directly and once through a Diarist with small thresholds.

    run.py NAME...      (`tests/clients/run NAME...` sets everything up)

A program is told the same turns on both ways. Its user must be given the same answers, the provider
must refuse nothing, and the conversation must get memory. With `--write` the transcript goes into
docs/clients/NAME.md.

With `--capture` a program is only played directly, once as above and once with little room for its history, so that
it compacts, drops or slides; what it sent goes into tests/corpus/NAME.jsonl.
"""

import json
import pathlib
import re
import sys
import tempfile
import time
from contextlib import ExitStack, closing

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))

import capture
from install import Missing, environment
from sessions import Failed
from table import BEHIND, ORDERS, PROGRAMS, REFUSED_BEYOND, ROOM, VERSIONS
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

LOOK_UP = 'CALL<<look_up {"query": NUMBER}>>'


def turns(order=LOOK_UP, length=1, count=14):
    """What the person says: a fact to remember each time, and now and then an order for a tool."""
    for n in range(count):
        call = f" {order.replace('NUMBER', str(n))}" if n % 3 == 2 else ""
        yield " ".join([f"Turn {n}: locker {n} opens with code {7000 + 13 * n}.{call}", *[FILLER] * length])


def play(name, through, said=None, room=None, behind=True):
    """One way: the answers, and what arrived at the provider. `room` is what the program is given for its history."""
    with ExitStack() as stack:
        provider = Control()
        stack.callback(provider.close)
        provider("obey")
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="diarist-client-")))
        home = folder / "home"
        home.mkdir()
        (folder / "list.txt").write_text(f"{FILLER}\n" * 4)
        base_url, diarist = provider.base_url, None
        if behind and name in BEHIND:
            gateway = BEHIND[name](folder, environment(home, base_url, KEY), base_url)
            stack.callback(gateway.close)
            base_url = gateway.base_url
        if through:
            diarist = Diarist(base_url, SETTINGS)
            stack.callback(lambda: diarist.process.poll() is None and diarist.close())
            base_url = diarist.base_url
        answers, told = [], environment(home, base_url, KEY)
        if room and name in REFUSED_BEYOND:
            provider("rules", rules={"window": room})
        elif room:
            told["ROOM"] = str(room)
        with closing(PROGRAMS[name](folder, told)) as session:
            for text in said or turns():
                answers.append(session.turn(text.replace("/project", str(folder))))
                rest(provider, 1.0 if through else 0.1)
        record = provider("record", settled=True)
        audit = []
        if diarist:
            diarist.close()
            with open(f"{diarist.folder.name}/audit.jsonl") as lines:
                audit = [json.loads(line) for line in lines]
        return {"answers": answers, "record": record, "audit": audit, "folder": str(folder)}


def rest(provider, seconds):
    """What a person does between two turns: long enough that memory has been silent for a while."""
    before, since = -1, time.monotonic()
    end = since + 60
    while time.monotonic() < end and time.monotonic() - since < seconds:
        count = provider("count")
        if count != before:
            before, since = count, time.monotonic()
        time.sleep(0.05)


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


def written_down(name):
    """Plays `name` directly, and writes down what it sent."""
    runs = [(name, turns(ORDERS.get(name, LOOK_UP)), None)]
    if name in ROOM:
        run = f"{name}-little-room"
        order = ORDERS.get(run, ORDERS.get(name, LOOK_UP))
        runs.append((run, turns(order, length=4), ROOM[name]))
    lines = []
    for run, said, room in runs:
        # As Diarist would get it: before a gateway that stands behind it.
        lines += capture.lines(run, play(name, False, said, room, behind=False), FILLER)
    requests, size = capture.write(name, lines, KEY)
    print(f"{name}: {requests} requests, {size // 1000} KB", flush=True)


def main(names):
    writing, capturing = "--write" in names, "--capture" in names
    names = [name for name in names if name not in ("--write", "--capture")]
    if names == ["all"]:
        names = list(PROGRAMS)
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown or not names:
        print(f"no such client: {' '.join(unknown)}; there are: {' '.join(PROGRAMS)}, or all", file=sys.stderr)
        return 2
    bad = []
    for name in names:
        try:
            if capturing:
                written_down(name)
                continue
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
