"""LiteLLM's proxy as a process: in front of a base URL, on a free port."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request


class LiteLLM:
    """Serves `gpt-4o`, and the models memory is made with, from `base_url`; `kind` is LiteLLM's own name
    for how it is reached."""

    def __init__(self, bin, folder, environment, base_url, kind="openai"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        way = {"api_base": base_url, "api_key": environment["OPENAI_API_KEY"]}
        names = ("gpt-4o", "observer-mini", "reflector-mini")
        settings = {
            "model_list": [
                {"model_name": name, "litellm_params": {**way, "model": f"{kind}/{name}"}} for name in names
            ],
            "router_settings": {"disable_cooldowns": True},
            "general_settings": {
                "forward_client_headers_to_llm_api": True,
                "master_key": environment["OPENAI_API_KEY"],
                "dangerously_permit_weak_or_unset_master_key": True,
            },
            "litellm_settings": {"drop_params": True, "num_retries": 0, "telemetry": False},
        }
        config = folder / "litellm.yaml"
        config.write_text(json.dumps(settings))  # JSON is YAML
        self.log = open(folder / "litellm.log", "w+")
        self.process = subprocess.Popen(
            [bin / "litellm", "--config", config, "--host", "127.0.0.1", "--port", str(port)],
            env={**environment, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        self.base_url = f"http://127.0.0.1:{port}/v1"
        end = time.monotonic() + 120
        while not self.up(port):
            if self.process.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                raise RuntimeError(f"LiteLLM did not come up: {self.log.read()[-1500:]}")
            time.sleep(0.3)

    @staticmethod
    def up(port):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=2):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def close(self):
        self.process.terminate()
        self.process.wait(30)
