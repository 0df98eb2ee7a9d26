"""The client programs: how each is installed, started and spoken to. One function each; it is given
an empty folder and the environment, and returns a session."""

import json
import shutil

import install
from gateways import LiteLLM
from sessions import DRIVERS, Commands, Lines


def langchain(folder, environment):
    bin = install.python("langchain", VERSIONS["langchain"])
    return Lines([bin / "python", DRIVERS / "on_langchain.py"], folder, environment)


def litellm(folder, environment):
    bin = install.python("litellm", VERSIONS["litellm"])
    return Lines([bin / "python", DRIVERS / "on_litellm.py"], folder, environment)


def openai_agents(folder, environment):
    bin = install.python("openai-agents", VERSIONS["openai-agents"])
    return Lines([bin / "python", DRIVERS / "on_openai_agents.py"], folder, environment)


def pydantic_ai(folder, environment):
    bin = install.python("pydantic-ai", VERSIONS["pydantic-ai"])
    return Lines([bin / "python", DRIVERS / "on_pydantic_ai.py"], folder, environment)


def ai_sdk(folder, environment):
    bin = install.node("ai-sdk", VERSIONS["ai-sdk"])
    # A module is looked up from where the importing file lies.
    driver = bin.parent.parent / "ai_sdk.mjs"
    shutil.copy(DRIVERS / "ai_sdk.mjs", driver)
    return Lines(["node", driver], folder, environment)


def llm(folder, environment):
    bin = install.python("llm", VERSIONS["llm"])
    config = folder / "llm"
    config.mkdir()
    model = {"model_id": "scripted", "model_name": "gpt-4o", "api_base": environment["OPENAI_BASE_URL"]}
    # JSON is YAML.
    (config / "extra-openai-models.yaml").write_text(json.dumps([{**model, "api_key_name": "openai"}]))

    def command(text, turn):
        return [bin / "llm", "-m", "scripted", *(["-c"] if turn else ["-s", "Be brief."]), text]

    return Commands(command, folder, {**environment, "LLM_USER_PATH": str(config)})


def aider(folder, environment):
    bin = install.python("aider", VERSIONS["aider"])
    return Lines([bin / "python", DRIVERS / "on_aider.py"], folder, environment)


def opencode(folder, environment):
    bin = install.node("opencode", VERSIONS["opencode"])
    room = int(environment.get("ROOM", 200_000))
    model = {"name": "scripted", "limit": {"context": room, "output": 8_000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": environment["OPENAI_BASE_URL"], "apiKey": environment["OPENAI_API_KEY"]},
        "models": {"gpt-4o": model},
    }
    settings = {"provider": {"scripted": provider}, "model": "scripted/gpt-4o", "autoupdate": False}
    (folder / "opencode.json").write_text(json.dumps(settings))

    def command(text, turn):
        # What has a blank in it is put between quotes, and its own are escaped.
        return [bin / "opencode", "run", *(["--continue"] if turn else []), *text.split(" ")]

    return Commands(command, folder, environment)


def continue_(folder, environment):
    bin = install.node("continue", VERSIONS["continue"])
    model = {
        "name": "scripted",
        "provider": "openai",
        "model": "gpt-4o",
        "apiBase": environment["OPENAI_BASE_URL"],
        "apiKey": environment["OPENAI_API_KEY"],
        "roles": ["chat"],
    }
    if "ROOM" in environment:
        model["defaultCompletionOptions"] = {"contextLength": int(environment["ROOM"]), "maxTokens": 1_000}
    config = folder / "config.yaml"
    config.write_text(json.dumps({"name": "test", "version": "1.0.0", "schema": "v1", "models": [model]}))

    def command(text, turn):
        more = ["--resume"] if turn else []
        return [bin / "cn", "--config", config, *more, "-p", text]

    return Commands(command, folder, environment)


def cline(folder, environment):
    bin = install.node("cline", VERSIONS["cline"])
    return Lines(["python3", DRIVERS / "on_cline.py", bin / "cline"], folder, environment)


def open_webui(folder, environment):
    bin = install.python("open-webui", VERSIONS["open-webui"])
    return Lines([bin / "python", DRIVERS / "on_open_webui.py", bin / "open-webui"], folder, environment)


def litellm_in_front(folder, environment):
    """The application talks with LiteLLM's proxy, and that with us."""
    bin = install.python("litellm-proxy", VERSIONS["litellm-in-front"])
    gateway = LiteLLM(bin, folder, environment, environment["OPENAI_BASE_URL"])
    return through(gateway, Lines([bin / "python", DRIVERS / "on_openai.py"], folder, at(environment, gateway)))


def litellm_behind(folder, environment):
    """The application talks with us, and we with LiteLLM's proxy: see `BEHIND`."""
    bin = install.python("litellm-proxy", VERSIONS["litellm-behind"])
    return Lines([bin / "python", DRIVERS / "on_openai.py"], folder, environment)


def codex(folder, environment):
    """Codex speaks the Responses API alone; LiteLLM's proxy makes chat completions of it."""
    bin = install.python("litellm-proxy", VERSIONS["litellm-in-front"])
    # Reached as a server that knows chat completions only.
    gateway = LiteLLM(bin, folder, environment, environment["OPENAI_BASE_URL"], "deepseek")
    program = install.node("codex", VERSIONS["codex"][:1]) / "codex"
    home = folder / "codex"
    home.mkdir()
    room = f"model_auto_compact_token_limit = {environment['ROOM']}\n" if "ROOM" in environment else ""
    (home / "config.toml").write_text(
        room + 'model = "gpt-4o"\nmodel_provider = "litellm"\n[model_providers.litellm]\nname = "LiteLLM"\n'
        f'base_url = "{gateway.base_url}"\nenv_key = "OPENAI_API_KEY"\nwire_api = "responses"\n'
    )
    told = folder / "answer.txt"
    always = ["--skip-git-repo-check", "-o", told]

    def command(text, turn):
        return [program, "exec", *(["resume", "--last"] if turn else []), *always, text]

    environment = {**environment, "CODEX_HOME": str(home)}
    return through(gateway, Commands(command, folder, environment, lambda _: told.read_text().strip()))


def smolagents(folder, environment):
    bin = install.python("smolagents", VERSIONS["smolagents"])
    return Lines([bin / "python", DRIVERS / "on_smolagents.py"], folder, environment)


def autogen(folder, environment):
    bin = install.python("autogen", VERSIONS["autogen"])
    return Lines([bin / "python", DRIVERS / "on_autogen.py"], folder, environment)


def llama_index(folder, environment):
    bin = install.python("llama-index", VERSIONS["llama-index"])
    return Lines([bin / "python", DRIVERS / "on_llama_index.py"], folder, environment)


def shell_gpt(folder, environment):
    bin = install.python("shell-gpt", VERSIONS["shell-gpt"])
    settings = {
        "API_BASE_URL": environment["OPENAI_BASE_URL"],
        "OPENAI_API_KEY": environment["OPENAI_API_KEY"],
        "DEFAULT_MODEL": "gpt-4o",
        "PRETTIFY_MARKDOWN": "false",
        "OPENAI_USE_FUNCTIONS": "false",
        "CHAT_CACHE_PATH": folder / "chat",
        "CHAT_CACHE_LENGTH": environment.get("ROOM", "100"),
    }
    config = folder / "home" / ".config" / "shell_gpt"
    config.mkdir(parents=True)
    (config / ".sgptrc").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def command(text, turn):
        return [bin / "sgpt", "--no-cache", "--chat", "one", text]

    return Commands(command, folder, environment)


def qwen_code(folder, environment):
    bin = install.node("qwen-code", VERSIONS["qwen-code"])
    if "ROOM" in environment:
        config = folder / "home" / ".qwen"
        config.mkdir()
        model = {"generationConfig": {"contextWindowSize": int(environment["ROOM"])}}
        (config / "settings.json").write_text(json.dumps({"model": model}))

    def command(text, turn):
        more = ["--continue"] if turn else []
        return [bin / "qwen", "--auth-type", "openai", *more, "-p", text]

    return Commands(command, folder, {**environment, "OPENAI_MODEL": "gpt-4o"})


def at(environment, gateway):
    return {**environment, "OPENAI_BASE_URL": gateway.base_url, "OPENAI_API_BASE": gateway.base_url}


def through(gateway, session):
    """The gateway ends with the session."""
    close = session.close

    def both():
        close()
        gateway.close()

    session.close = both
    return session


# Programs that stand between Diarist and the provider, or where it would stand.
BEHIND = {
    "litellm-behind": lambda folder, environment, base_url: LiteLLM(
        install.python("litellm-proxy", VERSIONS["litellm-behind"]), folder, environment, base_url
    )
}

# name -> packages, pinned. What was run stands in docs/clients/NAME.md.
VERSIONS = {
    "langchain": ["langchain==1.4.7", "langchain-openai==1.7.3"],
    "litellm": ["litellm==1.106.2", "mcp==2.3.0"],
    "openai-agents": ["openai-agents==0.24.0"],
    "pydantic-ai": ["pydantic-ai-slim[openai]==2.68.0"],
    "ai-sdk": ["ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92"],
    "llm": ["llm==0.36"],
    "opencode": ["opencode-ai@1.18.33"],
    "continue": ["@continuedev/cli@1.5.47"],
    "cline": ["cline@3.0.65"],
    "aider": ["aider-chat==0.86.2"],
    "open-webui": ["open-webui==0.12.4"],
    "litellm-in-front": ["litellm[proxy]==1.106.2"],
    "litellm-behind": ["litellm[proxy]==1.106.2"],
    "codex": ["@openai/codex@0.169.0", "litellm[proxy]==1.106.2"],
    "smolagents": ["smolagents[openai]==1.26.0"],
    "autogen": ["autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"],
    "llama-index": ["llama-index-core==0.12.52.post1", "llama-index-llms-openai-like==0.4.0"],
    # It imports click and does not ask for it.
    "shell-gpt": ["shell-gpt==1.5.1", "click==8.5.1"],
    "qwen-code": ["@qwen-code/qwen-code@0.15.10"],
}

# name -> how much of a history the program is given room for, in its own unit (tokens, or messages where the
# number is small): what it does when that is used up is what the corpus is to hold.
ROOM = {
    "langchain": 6_000,
    "openai-agents": 9,
    "ai-sdk": 4,
    "opencode": 22_000,
    "continue": 14_000,
    "cline": 20_000,
    "aider": 4_000,
    "codex": 22_000,
    "autogen": 8,
    "llama-index": 6_000,
    "shell-gpt": 8,
    "qwen-code": 40_000,
}

# Programs that know no size and compact when they are refused.
REFUSED_BEYOND = {"cline"}

# name -> what the person of a captured run has the model do in every third turn, where the program has tools of
# its own; `/project` is where it runs.
ORDERS = {
    "aider": "SAY<<I write it down.\n\nnotes.txt\n```\nlocker NUMBER\n```\n>>",
    # In a history that is to be summarised it would stand once more, and be obeyed.
    "aider-little-room": "",
    "opencode": 'CALL<<read {"filePath":"/project/list.txt"}>>',
    "continue": 'CALL<<Read {"filepath": "/project/list.txt"}>>',
    "codex": 'CALL<<exec_command {"cmd": "cat list.txt"}>>',
    "qwen-code": 'CALL<<read_file {"file_path": "/project/list.txt"}>>',
}

PROGRAMS = {
    "langchain": langchain,
    "litellm": litellm,
    "openai-agents": openai_agents,
    "pydantic-ai": pydantic_ai,
    "ai-sdk": ai_sdk,
    "llm": llm,
    "opencode": opencode,
    "continue": continue_,
    "cline": cline,
    "aider": aider,
    "open-webui": open_webui,
    "litellm-in-front": litellm_in_front,
    "litellm-behind": litellm_behind,
    "codex": codex,
    "smolagents": smolagents,
    "autogen": autogen,
    "llama-index": llama_index,
    "shell-gpt": shell_gpt,
    "qwen-code": qwen_code,
}
