"""The calls: each takes a `Way` and gives what its caller would have seen.

A call is written once and made on both ways. It may queue behaviours of the provider, may use
several requests, and must not know which way it is on. Whatever it returns or raises is compared.
"""

import asyncio
import io

import httpx2
import openai

CALLS = []

MODEL = "gpt-4o"
HELLO = [{"role": "user", "content": "Where does the night train to Lisbon leave from?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "integer"}}},
    },
}
# What the scripted model answers depends on the last words; these were picked for what it does.
ONE_CALL, TWO_CALLS = "Please look up number 2.", "Please look up number 6."


def call(name):
    def add(function):
        CALLS.append((name, function))
        return function

    return add


def chat(way, messages=None, client=None, **fields):
    client = client or way.client(max_retries=0)
    fields.setdefault("model", MODEL)
    return client.chat.completions.create(messages=messages or HELLO, **fields)


def streamed(way, messages=None, **fields):
    """All chunks in their order, or those that came and the exception after them."""
    return drained(chat(way, messages, stream=True, **fields))


def drained(stream):
    from rig import attempt, plain

    chunks = []

    def read():
        for chunk in stream:
            chunks.append(plain(chunk))

    return {"chunks": chunks, "end": attempt(read)}


# ---- what is no chat ----


@call("models.list")
def _(way):
    return [model.model_dump() for model in way.client().models.list()]


@call("models.retrieve")
def _(way):
    return way.client().models.retrieve("gpt-4o")


@call("embeddings.create, one text")
def _(way):
    return way.client().embeddings.create(model="text-embedding-3-small", input="a harbour")


@call("embeddings.create, a list")
def _(way):
    return way.client().embeddings.create(model="text-embedding-3-small", input=["a", "ü", "漢字"])


@call("embeddings.create, refused")
def _(way):
    return way.client().embeddings.create(model="text-embedding-3-small", input=openai.omit)


@call("files.list, an unknown path: 404")
def _(way):
    return way.client().files.list()


@call("responses.create, another API: 404")
def _(way):
    return way.client().responses.create(model=MODEL, input="hello")


FIXED = {"Content-Type": "multipart/form-data; boundary=fixed-for-comparison"}


@call("files.create, multipart upload of 300 KB, echoed")
def _(way):
    content = bytes(range(256)) * 1200
    upload = ("numbers.bin", io.BytesIO(content), "application/octet-stream")
    client = way.client(path="/echo")
    raw = client.files.with_raw_response.create(file=upload, purpose="user_data", extra_headers=FIXED)
    return {"content": raw.content, "cookies": raw.headers.get_list("set-cookie")}


@call("audio.transcriptions.create, multipart, echoed")
def _(way):
    upload = ("speech.wav", b"RIFF\x00\xff\xfe" * 999, "audio/wav")
    client = way.client(path="/echo")
    raw = client.audio.transcriptions.with_raw_response.create(
        file=upload, model="whisper-1", extra_headers=FIXED
    )
    return raw.content


@call("images.edit, multipart with two images, echoed")
def _(way):
    images = [("a.png", b"\x89PNG\r\n" * 50, "image/png"), ("b.png", b"\x89PNG" * 70, "image/png")]
    client = way.client(path="/echo")
    raw = client.images.with_raw_response.edit(
        image=images, prompt="a bridge", model="gpt-image-1", extra_headers=FIXED
    )
    return raw.content


# ---- chat, answered at once ----


@call("chat")
def _(way):
    return chat(way)


@call("chat, developer message, reasoning model")
def _(way):
    messages = [{"role": "developer", "content": "Be brief."}, *HELLO]
    return chat(way, messages, model="o3-mini", max_completion_tokens=100)


@call("chat, several turns")
def _(way):
    messages = [{"role": "system", "content": "You are a guide."}]
    client = way.client()
    answers = []
    for question in ["Name a river.", "And a bridge?", "And a street?"]:
        messages.append({"role": "user", "content": question})
        answer = chat(way, messages, client=client)
        answers.append(answer)
        messages.append(answer.choices[0].message)
    return answers


@call("chat, scripts and emoji of many languages")
def _(way):
    return chat(way, [{"role": "user", "content": "Grüße, 漢字, עברית, 👩‍👩‍👧 \u0000\u001f \"quoted\" \\ "}])


@call("chat, image and text parts")
def _(way):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    return chat(way, [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}])


@call("chat, a prompt of a megabyte")
def _(way):
    return chat(way, [{"role": "user", "content": "All the words there are. " * 42_000}])


@call("chat, n = 2")
def _(way):
    return chat(way, n=2)


@call("chat, many documented parameters")
def _(way):
    return chat(
        way, seed=7, user="ada", logprobs=True, top_logprobs=2, stop=["END"], temperature=0.25,
        top_p=0.9, logit_bias={"50256": -100}, metadata={"a": "b"}, prompt_cache_key="k",
    )  # fmt: skip


@call("chat, json_object")
def _(way):
    return chat(
        way,
        [{"role": "user", "content": "Answer in JSON."}],
        response_format={"type": "json_object"},
    )


@call("chat, cached tokens of a repeated long prompt")
def _(way):
    messages = [{"role": "user", "content": "Again and again the same words. " * 400}]
    client = way.client()
    return [chat(way, messages, client=client).usage for _ in range(2)]


@call("chat, one tool call")
def _(way):
    return chat(way, [{"role": "user", "content": ONE_CALL}], tools=[WEATHER])


@call("chat, two tool calls at once")
def _(way):
    return chat(way, [{"role": "user", "content": TWO_CALLS}], tools=[WEATHER])


@call("chat, a whole tool round")
def _(way):
    messages = [{"role": "user", "content": TWO_CALLS}]
    client = way.client()
    asked = chat(way, messages, client=client, tools=[WEATHER])
    messages.append(asked.choices[0].message)
    for made in asked.choices[0].message.tool_calls:
        messages.append({"role": "tool", "tool_call_id": made.id, "content": "Nothing there."})
    return [asked, chat(way, messages, client=client, tools=[WEATHER])]


@call("chat, answer compressed with gzip")
def _(way):
    way.provider.next(gzip=True)
    return chat(way)


@call("chat, answer in frames of three bytes")
def _(way):
    way.provider.next(frame_bytes=3)
    return chat(way)


@call("chat.with_raw_response: body and every header")
def _(way):
    way.provider.next(
        headers=[["x-ratelimit-remaining-requests", "59"], ["openai-processing-ms", "12"], ["x-twice", "a"], ["x-twice", "b"]]
    )
    raw = way.client().chat.completions.with_raw_response.create(model=MODEL, messages=HELLO)
    return {
        "content": raw.content,
        "parsed": raw.parse(),
        "request_id": raw.request_id,
        "twice": raw.headers.get_list("x-twice"),
        "remaining": raw.headers["x-ratelimit-remaining-requests"],
    }


@call("chat.with_streaming_response: bytes as they come")
def _(way):
    create = way.client().chat.completions.with_streaming_response.create
    with create(model=MODEL, messages=HELLO, stream=True) as response:
        return b"".join(response.iter_bytes())


# ---- chat, refused by the provider's own rules ----


def refused(name, messages=None, model=MODEL, **fields):
    CALLS.append((f"refused: {name}", lambda way: chat(way, messages, model=model, **fields)))


CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "ok"}

refused("an unknown parameter", extra_body={"logprobability": True})
refused("a parameter of the wrong type", extra_body={"n": "two"})
refused("temperature on a reasoning model", model="o3-mini", temperature=0.2)
refused("json_object without the word", response_format={"type": "json_object"})
refused("a call without its result", [*HELLO, CALLING, *HELLO], tools=[WEATHER])
refused("a result without its call", [*HELLO, RESULT], tools=[WEATHER])
refused("the same result twice", [*HELLO, CALLING, RESULT, RESULT], tools=[WEATHER])
refused("an unknown role", [{"role": "narrator", "content": "Meanwhile"}])
refused("messages that are no list", extra_body={"messages": "hello"})
refused("no messages", extra_body={"messages": []})
refused("stream_options without stream", extra_body={"stream_options": {"include_usage": True}})


@call("refused: longer than the context window")
def _(way):
    way.provider("rules", rules={"window": 1000})
    return chat(way, [{"role": "user", "content": "Too much of a good thing. " * 300}])


@call("refused: longer than the context window, streamed")
def _(way):
    way.provider("rules", rules={"window": 1000})
    return streamed(way, [{"role": "user", "content": "Too much of a good thing. " * 300}])


# ---- errors ----


def failing(status, **fail):
    def made(way):
        way.provider.next(fail={"status": status, **fail})
        return chat(way)

    CALLS.append((f"error {status}" + "".join(f", {key}" for key in fail), made))


for failure in (400, 401, 403, 404, 409, 418, 422, 429, 500, 503, 529):
    failing(failure)
failing(429, retry_after=7)
failing(502, body=["text/html", "<html><body>Bad gateway</body></html>"])
failing(400, body=["application/json", '{"detail": "not the usual shape"}'])


@call("error 401 of a stream")
def _(way):
    way.provider.next(fail={"status": 401})
    return streamed(way)


@call("retries: 429 with Retry-After, then an answer")
def _(way):
    way.provider.next(fail={"status": 429, "retry_after": 1})
    return chat(way, client=way.client())


@call("retries: 500 twice, then an answer")
def _(way):
    way.provider.next(times=2, fail={"status": 500})
    return chat(way, client=way.client())


@call("retries: 503 to the end")
def _(way):
    way.provider.next(times=3, fail={"status": 503})
    return chat(way, client=way.client())


@call("timeout before the head")
def _(way):
    way.provider.next(silent=True)
    return chat(way, client=way.client(max_retries=0, timeout=1.5))


@call("timeout in the middle of a stream")
def _(way):
    way.provider.next(gate="never")
    way.provider.release("never", 2)
    return streamed(way, client=way.client(max_retries=0, timeout=1.5))


@call("an answer cut short")
def _(way):
    way.provider.next(cut={"after_bytes": 40})
    return chat(way)


# ---- streams ----


# A provider that Diarist does not know is not asked for usage until it was seen to report it. What
# stands before that call is compared byte for byte; behind it, chunks may carry `usage: null`.


def streams(when):
    """The calls that are made before and after."""

    @call(f"stream{when}")
    def _(way):
        return streamed(way)

    @call(f"stream, include_usage = false{when}")
    def _(way):
        return streamed(way, stream_options={"include_usage": False})

    @call(f"stream, tool calls in deltas{when}")
    def _(way):
        way.provider.next(delta_chars=2)
        return streamed(way, [{"role": "user", "content": TWO_CALLS}], tools=[WEATHER])

    @call(f"stream, n = 2{when}")
    def _(way):
        return streamed(way, n=2)

    @call(f"stream helper: events and the final completion{when}")
    def _(way):
        with way.client().chat.completions.stream(model=MODEL, messages=HELLO) as stream:
            kinds = [event.type for event in stream]
            return {"events": kinds, "final": stream.get_final_completion()}

    @call(f"stream, each chunk arrives before the next is sent{when}")
    def _(way):
        return one_by_one(way)

    oddly(f"frames of one byte{when}", frame_bytes=1)
    oddly(f"frames across events{when}", frame_bytes=70)
    oddly(f"data over several lines{when}", multi_line=True)
    oddly(f"cut between events{when}", cut={"after_events": 3})
    leaving(f"before the first chunk{when}", 0)
    leaving(f"after the third chunk{when}", 3)


def one_by_one(way):
    """The provider holds every event back until the one before it is in the client's hands: a chunk
    that waited for its successor anywhere on the way would wait for ever."""
    way.provider.next(gate="steps")
    order = []
    way.provider.release("steps")
    for chunk in chat(way, client=way.client(max_retries=0, timeout=20), stream=True):
        order.append((len(order), chunk.model_dump()))
        # Behind the last chunk come a report that Diarist may have asked for, and [DONE].
        way.provider.release("steps", 9 if chunk.choices[0].finish_reason else 1)
    return order


def oddly(name, **behaviour):
    def made(way):
        way.provider.next(**behaviour)
        return streamed(way)

    CALLS.append((f"stream, {name}", made))


def leaving(name, after):
    def made(way):
        way.provider.next(gate=name)
        way.provider.release(name, after)
        stream = chat(way, stream=True)
        read = [next(stream).model_dump() for _ in range(after)]
        stream.close()
        return read

    CALLS.append((f"stream, the client leaves {name}", made))


@call("stream, usage sent unasked")
def _(way):
    way.provider.next(unasked_usage=True)
    return streamed(way)


oddly("lines that end in CR LF, comments between", crlf=True, comments=True)
oddly("a byte-order mark", byte_order_mark=True)
oddly("no [DONE]", no_done=True)
oddly("gzip", gzip=True)
oddly("deltas of one character", delta_chars=1)
oddly("cut in the middle of an event", cut={"after_bytes": 333})
streams("")


@call("stream, cut by a TCP reset")
def _(way):
    # Read one by one: a reset may discard what was not.
    way.provider.next(gate="reset", cut={"reset_after_events": 2})
    way.provider.release("reset")
    stream, read = chat(way, stream=True), []
    read.append(next(stream).model_dump())
    way.provider.release("reset")
    return {"read": read, "end": drained(stream)}


@call("stream, include_usage = true")
def _(way):
    return streamed(way, stream_options={"include_usage": True})


streams(", usage asked by Diarist")


# ---- the asynchronous client ----


def asynchronous(name):
    def add(function):
        async def made(way):
            async with way.async_client(max_retries=0) as client:
                return await function(way, client)

        CALLS.append((f"async: {name}", lambda way: asyncio.run(made(way))))
        return function

    return add


@asynchronous("chat")
async def _(_, client):
    return await client.chat.completions.create(model=MODEL, messages=HELLO)


@asynchronous("stream")
async def _(_, client):
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    return [chunk async for chunk in stream]


@asynchronous("models.list")
async def _(_, client):
    return [model async for model in client.models.list()]


@asynchronous("error 429")
async def _(way, client):
    way.provider.next(fail={"status": 429, "retry_after": 3})
    return await client.chat.completions.create(model=MODEL, messages=HELLO)


@asynchronous("cancelled in the middle of a stream")
async def _(way, client):
    way.provider.next(gate="async")
    way.provider.release("async", 2)
    chunks = []

    async def read():
        stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        async for chunk in stream:
            chunks.append(chunk.model_dump())
            if len(chunks) == 2:
                two.set()

    two = asyncio.Event()
    reading = asyncio.create_task(read())
    await asyncio.wait_for(two.wait(), 30)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return {"chunks": chunks, "cancelled": reading.cancelled()}


@asynchronous("timeout before the head")
async def _(way, client):
    way.provider.next(silent=True)
    client = client.with_options(timeout=1.5)
    return await client.chat.completions.create(model=MODEL, messages=HELLO)


# ---- where Diarist itself has to answer: (name, call, what the client must see through it) ----


def gone(way):
    way.provider.next(cut="before_head")
    return chat(way)


OWN = [
    (
        "the provider closes before its head: 502 in the API's shape",
        gone,
        {"direct": ("APIConnectionError", None, None), "through": ("InternalServerError", 502, "upstream_disconnected")},
    ),
]
