"""aider by its own scripting interface: a folder with one file in the chat, whole-file edits."""

import os
import pathlib

from aider.coders import Coder
from aider.io import InputOutput
from aider.models import Model

from protocol import drive

notes = pathlib.Path("notes.txt")
notes.write_text("nothing yet\n")
os.environ["OPENAI_API_BASE"] = os.environ["OPENAI_BASE_URL"]
model = Model("openai/gpt-4o")
# What is longer is summarised, by a model of its own beside the turns.
model.max_chat_history_tokens = int(os.environ.get("ROOM", model.max_chat_history_tokens))


def start(again=False):
    return Coder.create(
        main_model=model,
        edit_format="whole",
        fnames=[str(notes)],
        io=InputOutput(yes=True, pretty=False, fancy_input=False, chat_history_file="history.md"),
        auto_commits=False,
        use_git=False,
        suggest_shell_commands=False,
        restore_chat_history=again,
    )


coder, turns = start(), 0


def turn(text):
    global coder, turns
    # It is when it starts again that a summary comes into use.
    if turns == 8 and "ROOM" in os.environ:
        coder = start(again=True)
    turns += 1
    return coder.run(text)


drive(turn)
