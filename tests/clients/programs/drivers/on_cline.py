"""cline in its own terminal interface, which is where its conversations go on: the text is pasted, and
the answer is what cline wrote down as the assistant's last message.

    on_cline.py CLINE BASE_URL-KEY from the environment
"""

import glob
import json
import os
import pty
import subprocess
import sys
import threading
import time

from protocol import drive

cline, data = sys.argv[1], os.path.join(os.environ["HOME"], "cline")
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
subprocess.run(
    [cline, "auth", "-p", "openai", "-k", key, "-m", "gpt-4o", "-b", url, "--data-dir", data],
    check=True,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
)
ours, its = pty.openpty()
process = subprocess.Popen(
    [cline, "-i", "--data-dir", data], stdin=its, stdout=its, stderr=its, start_new_session=True
)
screen = bytearray()


def read_on():
    while True:
        try:
            screen.extend(os.read(ours, 65536))
        except OSError:
            return


threading.Thread(target=read_on, daemon=True).start()


def answers():
    """The texts of the assistant so far, as cline keeps them."""
    told = []
    for path in glob.glob(f"{data}/sessions/*/*.messages.json"):
        try:
            with open(path) as file:
                messages = json.load(file)
        except ValueError:
            continue  # it is being written
        messages = messages.get("messages", messages) if isinstance(messages, dict) else messages
        for message in messages:
            if message["role"] == "assistant":
                parts = message["content"]
                parts = [{"text": parts}] if isinstance(parts, str) else parts
                told.append("".join(part.get("text", "") for part in parts))
    return told


def wait(until, what, seconds=60):
    end = time.monotonic() + seconds
    while not until():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{what} did not come: {bytes(screen[-1500:])!r}")
        time.sleep(0.05)


def still(seconds=0.7):
    """The screen has stopped changing: cline draws its prompt only when it is ready for one."""
    seen = -1
    end = time.monotonic() + 30
    while time.monotonic() < end and seen != len(screen):
        seen = len(screen)
        time.sleep(seconds)


wait(lambda: len(screen) > 0, "the first screen")
still(1.5)
if b"any other key to close" in screen:
    # An offer stands in front of the prompt, and Enter would take it.
    os.write(ours, b"q")
    still()


def turn(text):
    before = len(answers())
    os.write(ours, b"\x1b[200~" + text.encode() + b"\x1b[201~")
    still()
    os.write(ours, b"\r")
    wait(lambda: len(answers()) > before and answers()[-1], "an answer")
    return answers()[-1]


try:
    drive(turn)
finally:
    process.terminate()
    process.wait(10)
