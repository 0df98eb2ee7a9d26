"""A conversation with a client program: one process that takes line after line, or one command for
each turn that picks the conversation up again."""

import json
import pathlib
import subprocess

from ways import PATIENCE

DRIVERS = pathlib.Path(__file__).parent / "drivers"


class Failed(Exception):
    """The program ended, or said that it could not."""


class Lines:
    """A driver in `drivers/`; the lines are described in `drivers/protocol.py`."""

    def __init__(self, command, folder, environment):
        self.log = open(folder / "program.log", "w+")
        self.process = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env={**environment, "PYTHONPATH": str(DRIVERS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def turn(self, text):
        self.process.stdin.write(json.dumps({"say": text}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise Failed(f"it ended: {self.log.read()[-2000:]}")
        told = json.loads(line)
        if "error" in told:
            raise Failed(told["error"])
        return told["answer"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)


class Commands:
    """`command(text, turn)` is run for each turn; `answer(stdout)` is what it printed for its user."""

    def __init__(self, command, folder, environment, answer=str.strip):
        self.command, self.folder, self.environment = command, folder, environment
        self.answer, self.turns = answer, 0

    def turn(self, text):
        command = [str(part) for part in self.command(text, self.turns)]
        self.turns += 1
        ran = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=8 * PATIENCE,
        )
        if ran.returncode:
            raise Failed(f"{command[0]} ended with {ran.returncode}: {(ran.stdout + ran.stderr)[-2000:]}")
        return self.answer(ran.stdout)

    def close(self):
        pass
