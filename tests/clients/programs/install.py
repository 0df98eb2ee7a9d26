"""Installs a client program once, at the version its table entry pins; nothing outside this folder's
`.cache` is touched, the home folder included."""

import os
import pathlib
import shutil
import subprocess

CACHE = pathlib.Path(__file__).parent / ".cache"


class Missing(Exception):
    """The program cannot be had here."""


def python(name, packages):
    """A virtual environment of its own: the clients' dependencies exclude each other."""
    folder = CACHE / name
    if not ready(folder, packages):
        run("python3", "-m", "venv", folder)
        run(folder / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)
        done(folder, packages)
    return folder / "bin"


def node(name, packages):
    folder = CACHE / name
    if not ready(folder, packages):
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"private": true, "type": "module"}\n')
        run("npm", "install", "--silent", "--no-audit", "--no-fund", *packages, cwd=folder)
        done(folder, packages)
    return folder / "node_modules" / ".bin"


def run(*command, **options):
    try:
        subprocess.run(command, check=True, timeout=900, **options)
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(str(error)) from None


def ready(folder, packages):
    mark = folder / "installed"
    if mark.exists() and mark.read_text().split() == packages:
        return True
    shutil.rmtree(folder, ignore_errors=True)
    return False


def done(folder, packages):
    (folder / "installed").write_text("\n".join(packages) + "\n")


def environment(home, base_url, key):
    """What a person would set, and a home that is empty."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_STATE_HOME": str(home / ".local/state"),
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_BASE": base_url,
        "OPENAI_API_KEY": key,
        "NO_COLOR": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }
