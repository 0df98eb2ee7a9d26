"""Open WebUI, driven over HTTP as its own page drives it: signed in, one chat, the whole history with
each message. Without a page that listens (`session_id`) it answers the call itself.

    on_open_webui.py OPEN-WEBUI
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid

from protocol import drive

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
home = os.environ["HOME"]
settings = {
    "DATA_DIR": home,
    "WEBUI_AUTH": "False",
    "WEBUI_SECRET_KEY": "of-the-test",
    "ENABLE_OLLAMA_API": "False",
    "OPENAI_API_BASE_URL": os.environ["OPENAI_BASE_URL"],
    "ENABLE_FORWARD_USER_INFO_HEADERS": "True",
    "BYPASS_EMBEDDING_AND_RETRIEVAL": "True",
    "RAG_EMBEDDING_ENGINE": "openai",
    "OFFLINE_MODE": "True",
    "HF_HUB_OFFLINE": "1",
}
server = subprocess.Popen(
    [sys.argv[1], "serve", "--host", "127.0.0.1", "--port", str(port)],
    env={**os.environ, **settings},
    stdin=subprocess.DEVNULL,
    stdout=2,
)
token = None


def call(path, body=None, timeout=120):
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        error.msg += f" ({path}: {error.read().decode()[:500]})"
        raise


def ready():
    try:
        return call("/health", timeout=2)
    except (OSError, urllib.error.URLError):
        return None


end = time.monotonic() + 180
while not ready():
    if server.poll() is not None or time.monotonic() > end:
        raise SystemExit("Open WebUI did not come up")
    time.sleep(0.5)


def sign_in():
    """The first sign-in makes the account, and says with 409 that it has to be repeated."""
    try:
        return call("/api/v1/auths/signin", {"email": "", "password": ""})
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise
        return call("/api/v1/auths/signin", {"email": "", "password": ""})


token = json.loads(sign_in())["token"]
call("/api/models")
history, parents = [], [None]
chat = json.loads(call("/api/v1/chats/new", {"chat": {"title": "New Chat", "models": ["gpt-4o"], "messages": []}}))["id"]


def turn(text):
    history.append({"role": "user", "content": text})
    said = {"id": str(uuid.uuid4()), "parentId": parents[-1], "role": "user", "content": text}
    parents.append(str(uuid.uuid4()))
    asked = {
        "model": "gpt-4o",
        "messages": history,
        "stream": False,
        "chat_id": chat,
        "parent_id": said["parentId"],
        "user_message": {**said, "models": ["gpt-4o"]},
        "id": parents[-1],
    }
    told = json.loads(call("/api/chat/completions", asked))
    answer = told["choices"][0]["message"]["content"]
    history.append({"role": "assistant", "content": answer})
    return answer


try:
    drive(turn)
finally:
    server.terminate()
    server.wait(30)
