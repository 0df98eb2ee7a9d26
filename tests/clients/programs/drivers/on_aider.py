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
coder = Coder.create(
    main_model=Model("openai/gpt-4o"),
    edit_format="whole",
    fnames=[str(notes)],
    io=InputOutput(yes=True, pretty=False, fancy_input=False),
    auto_commits=False,
    use_git=False,
    suggest_shell_commands=False,
)


def turn(text):
    return coder.run(text)


drive(turn)
