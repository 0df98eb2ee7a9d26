"""A scripted provider, and the real `diarist serve` in front of one, as processes.

Knows no client: the comparison of the SDKs (`rig.py`) and the runs of whole programs (`../programs`)
both stand on it.
"""

import json
import os
import subprocess
import tempfile
import urllib.error
import urllib.request

KEY = "sk-of-the-test"

# Far beyond anything that is not a hang.
PATIENCE = 30.0


class Control:
    """The control port of one scripted provider."""

    def __init__(self):
        self.process = subprocess.Popen(
            [os.environ["PROVIDER"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        told = json.loads(self.process.stdout.readline())
        self.base_url, self.control = told["base_url"], told["control"]

    def __call__(self, do, **fields):
        command = json.dumps({"do": do, **fields}).encode()
        try:
            with urllib.request.urlopen(self.control, command, timeout=2 * PATIENCE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            raise RuntimeError(f"{do}: {refused.read().decode()}") from None

    def next(self, times=1, part="actor", **behaviour):
        self("next", times=times, part=part, behaviour=behaviour)

    def release(self, gate, events=1):
        self("release", gate=gate, events=events)

    def record(self, since=0):
        """What came since, without the calls memory makes, once all of it has ended."""
        return [
            entry
            for entry in self("record", **{"from": since}, settled=True)
            if entry["part"] in ("actor", "other")
        ]

    def count(self):
        """How many requests have come, once all of them have ended."""
        return self("count")

    def close(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)


class Diarist:
    """The real binary on free ports, with a database of its own."""

    def __init__(self, upstream, settings):
        self.folder = tempfile.TemporaryDirectory()
        environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        command = [os.environ["DIARIST"], "serve", "--upstream", upstream]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        command += ["--database", f"sqlite://{self.folder.name}/diarist.db"]
        command += ["--audit", f"{self.folder.name}/audit.jsonl"]
        self.log_file = open(f"{self.folder.name}/log", "w+")
        self.process = subprocess.Popen(
            command,
            env={**environment, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        # Not to a terminal, the log is one JSON object a line; one of the first says where it listens.
        lines = (json.loads(line) for line in self.process.stderr)
        listening = next(line["listen"] for line in lines if "listen" in line)
        self.base_url = f"http://{listening}/v1"
        self.tail = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=self.log_file)

    def close(self):
        self.process.terminate()
        code = self.process.wait(PATIENCE)
        self.tail.wait(PATIENCE)
        return code
