"""Two ways to the same kind of provider, and what is seen on each of them.

A `Way` starts a scripted provider of its own and, for the way through, the real `diarist serve` in
front of it. What the client gets is recorded below the SDK, in the transport; what the provider
gets is read from its record. Knows nothing of single calls (`calls.py`) nor of verdicts
(`compare.py`).
"""

import time

import httpx2
import openai

from ways import KEY, Control, Diarist


class Way:
    """One way to a provider: `direct`, or `through` Diarist."""

    def __init__(self, name, settings=None):
        self.name = name
        self.provider = Control()
        self.diarist = None
        self.base_url = self.provider.base_url
        if name == "through":
            self.diarist = Diarist(self.provider.base_url, settings or {})
            self.base_url = self.diarist.base_url
        self.exchanges = []
        self.clients = []

    def client(self, path="", **options):
        http = openai.DefaultHttpxClient(transport=Recording(self.exchanges))
        client = openai.OpenAI(
            api_key=KEY, base_url=self.base_url + path, http_client=http, **options
        )
        self.clients.append(client)
        return client

    def async_client(self, **options):
        http = openai.DefaultAsyncHttpxClient(transport=RecordingAsync(self.exchanges))
        return openai.AsyncOpenAI(
            api_key=KEY, base_url=self.base_url, http_client=http, **options
        )

    def watch(self, call):
        """Runs one call and gives everything that was seen of it, on both sides."""
        self.exchanges.clear()
        since = self.provider.count()
        result = attempt(lambda: call(self))
        for client in self.clients:
            client.close()
        self.clients.clear()
        received = self.provider.record(since)
        self.provider("rules")
        exchanges = [exchange.told() for exchange in self.exchanges]
        return {"result": result, "client": exchanges, "provider": received}

    def pause(self):
        """What a person does between two turns: long enough that memory has been silent for a
        while. It paces the client and decides nothing; a client in a hurry is only remembered
        later."""
        if not self.diarist:
            return
        before = -1
        for _ in range(20):
            count = self.provider.count()
            if count == before:
                return
            before = count
            time.sleep(0.04)

    def close(self):
        code = self.diarist.close() if self.diarist else 0
        self.provider.close()
        return code


def attempt(action):
    """What an action gives, or the exception it ends with, as data."""
    try:
        return plain(action())
    except (openai.OpenAIError, httpx2.HTTPError, ValueError) as error:
        return {"raised": raised(error)}


def raised(error):
    cause = error.__cause__
    told = {
        "class": type(error).__name__,
        "bases": [base.__name__ for base in type(error).__mro__[1:-1]],
        "text": str(error),
        "cause": type(cause).__name__ if cause else None,
    }
    for name in ("status_code", "body", "code", "param", "type", "request_id"):
        told[name] = getattr(error, name, None)
    return told


def plain(value):
    """A result as data: parsed objects as the SDK dumps them, unset fields included."""
    if hasattr(value, "model_dump"):
        return {"class": type(value).__name__, "fields": value.model_dump(mode="json", warnings=False)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value


class Exchange:
    """One request on the wire, as the client's transport saw it."""

    def __init__(self, request):
        self.request = f"{request.method} {request.url.raw_path.decode()}"
        self.status, self.headers, self.body, self.end = None, [], b"", "open"

    def answered(self, response):
        self.status = response.status_code
        self.headers = [(name.decode().lower(), value.decode()) for name, value in response.headers.raw]

    def told(self):
        return {
            "request": self.request,
            "status": self.status,
            "headers": self.headers,
            "body": self.body.decode("latin-1"),
            "end": self.end,
        }


class Recording(httpx2.BaseTransport):
    """Passes everything on and keeps what passed."""

    def __init__(self, exchanges):
        self.inner, self.exchanges = httpx2.HTTPTransport(), exchanges

    def handle_request(self, request):
        exchange = Exchange(request)
        self.exchanges.append(exchange)
        try:
            response = self.inner.handle_request(request)
        except httpx2.TransportError as error:
            exchange.end = type(error).__name__
            raise
        exchange.answered(response)
        response.stream = KeptStream(response.stream, exchange)
        return response

    def close(self):
        self.inner.close()


class KeptStream(httpx2.SyncByteStream):
    def __init__(self, inner, exchange):
        self.inner, self.exchange = inner, exchange

    def __iter__(self):
        try:
            for chunk in self.inner:
                self.exchange.body += chunk
                yield chunk
            self.exchange.end = "complete"
        except httpx2.TransportError as error:
            self.exchange.end = type(error).__name__
            raise

    def close(self):
        if self.exchange.end == "open":
            self.exchange.end = "closed"
        self.inner.close()


class RecordingAsync(httpx2.AsyncBaseTransport):
    """[Recording] for the asynchronous client."""

    def __init__(self, exchanges):
        self.inner, self.exchanges = httpx2.AsyncHTTPTransport(), exchanges

    async def handle_async_request(self, request):
        exchange = Exchange(request)
        self.exchanges.append(exchange)
        try:
            response = await self.inner.handle_async_request(request)
        except httpx2.TransportError as error:
            exchange.end = type(error).__name__
            raise
        exchange.answered(response)
        response.stream = KeptAsyncStream(response.stream, exchange)
        return response

    async def aclose(self):
        await self.inner.aclose()


class KeptAsyncStream(httpx2.AsyncByteStream):
    def __init__(self, inner, exchange):
        self.inner, self.exchange = inner, exchange

    async def __aiter__(self):
        try:
            async for chunk in self.inner:
                self.exchange.body += chunk
                yield chunk
            self.exchange.end = "complete"
        except httpx2.TransportError as error:
            self.exchange.end = type(error).__name__
            raise

    async def aclose(self):
        if self.exchange.end == "open":
            self.exchange.end = "closed"
        await self.inner.aclose()
