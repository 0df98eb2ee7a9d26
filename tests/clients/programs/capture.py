"""Writes down what client programs send, as test data: `tests/corpus/NAME.jsonl`.

Each line is one request that the provider answered: `run`, `headers`, `body` and `server_replied`. In
`messages` a number n stands for the n-th message that was spelled out before in this file, and [a, b] for
all from the a-th to the b-th; so a history that is sent again costs a few bytes. Tools likewise, by number.

The person's words and the model's stay. What a program brings along (prompts, what it read of this machine) is
cut to its beginning, its length and a hash, and tools to their names; credentials are not written at all.
"""

import hashlib
import json
import pathlib
import re

CORPUS = pathlib.Path(__file__).parents[2] / "corpus"

# Third parties' text that is longer is cut to its beginning.
LONGEST, KEPT = 120, 40

# What the person and the model of these runs say, and what the tools of the drivers find.
OURS = re.compile(
    r"Turn \d+: locker \d+ opens with code \d+\.(?: (?:CALL|SAY)<<.*?>>)?(?: <list>)*"
    r"|Noted under [0-9a-f]{8}: (?:\S+ ){0,7}\S+"
    r"|entry \d+: nothing unusual, checked twice"
    r"|call_[0-9a-f]{16}",
    re.DOTALL,
)

# Headers that may name somebody or say what a request is for.
TOLD = re.compile(r"^(x-(?!stainless|request-id|retry)|user-agent$|session|thread|conversation|chat|helicone|http-referer)", re.I)


class Redactor:
    """One run's texts: `filler` is what makes the person's turns long, `folder` where the program ran."""

    def __init__(self, filler, folder):
        self.filler, self.folder = filler, folder

    def text(self, text):
        # Some programs make a name of it.
        text = text.replace(self.folder, "/project").replace(self.folder.replace("/", "-"), "-project")
        text = text.replace(self.filler, "<list>")
        told, at = [], 0
        for ours in OURS.finditer(text):
            told += [cut(text[at : ours.start()]), ours.group()]
            at = ours.end()
        return "".join([*told, cut(text[at:])])

    def value(self, value):
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(one) for one in value]
        if isinstance(value, dict):
            return {name: self.value(one) for name, one in value.items()}
        return value


def named(tool):
    """What a tool does and takes is its program's text; its name is enough."""
    if "function" not in tool:
        return tool
    return {"type": "function", "function": {"name": tool["function"]["name"], "parameters": {"type": "object"}}}


def cut(text):
    if len(text) <= LONGEST:
        return text
    said = text.strip()
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    digest = hashlib.sha256(said.encode()).hexdigest()[:8]
    return f"{before}{said[:KEPT]}<text {len(said)} chars, sha256 {digest}>{after}"


def lines(run, told, filler):
    """The accepted chat requests of one way."""
    redact = Redactor(filler, told["folder"])
    for entry in told["record"]:
        if entry["part"] != "actor" or entry["verdict"] != "accepted":
            continue
        headers = {name: value.replace(told["folder"], "/project") for name, value in entry["headers"] if TOLD.search(name)}
        yield {
            "run": run,
            "headers": headers,
            "body": redact.value(json.loads(bytes.fromhex(entry["body_hex"]))),
            "server_replied": redact.value(entry["reply"]),
        }


class Once:
    """Spells each value out the first time, and is a number from then on."""

    def __init__(self):
        self.numbers = {}

    def __call__(self, value):
        key = json.dumps(value)
        if key in self.numbers:
            return self.numbers[key]
        self.numbers[key] = len(self.numbers)
        return value


def ranges(messages):
    """Numbers that follow each other as [first, last]."""
    told = []
    for message in messages:
        last = told[-1] if told else None
        if isinstance(message, int) and isinstance(last, list) and last[1] + 1 == message:
            last[1] = message
        elif isinstance(message, int) and isinstance(last, int) and last + 1 == message:
            told[-1] = [last, message]
        else:
            told.append(message)
    return told


def write(name, lines, secret):
    message, tools = Once(), Once()
    written = []
    for line in lines:
        body = line["body"]
        body["messages"] = ranges([message(one) for one in body["messages"]])
        if "tools" in body:
            body["tools"] = tools([named(tool) for tool in body["tools"]])
        written.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")))
    text = "\n".join(written) + "\n"
    assert secret not in text, f"{name} shows its credential"
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{name}.jsonl").write_text(text)
    return len(written), len(text.encode())
