// The calls, as in `../python/calls.py`: each takes a `Way`, must not know which, and gives what its
// caller would have seen. Whatever it returns or throws is compared.

import OpenAI, { toFile } from 'openai';

import { attempt, plain } from './rig.mjs';

export const CALLS = [];

const MODEL = 'gpt-4o';
const HELLO = [{ role: 'user', content: 'Where does the night train to Lisbon leave from?' }];
const TOOLS = [{
  type: 'function',
  function: {
    name: 'look_up',
    description: 'Looks something up.',
    parameters: { type: 'object', properties: { query: { type: 'integer' } } },
  },
}];
// What the scripted model answers depends on the last words; these were picked for what it does.
const ONE_CALL = 'Please look up number 2.';
const TWO_CALLS = 'Please look up number 6.';
const ask = (content) => [{ role: 'user', content }];
const PATIENCE = 20_000;

const call = (name, made) => CALLS.push([name, made]);

const chat = (way, fields = {}, options = {}) =>
  way.client({ maxRetries: 0 }).chat.completions.create({ model: MODEL, messages: HELLO, ...fields }, options);

/** All chunks in their order, or those that came and the exception after them. */
async function drained(stream) {
  const chunks = [];
  const end = await attempt(async () => {
    for await (const chunk of stream) chunks.push(plain(chunk));
  });
  return { chunks, end };
}

const streamed = async (way, fields = {}, options = {}) =>
  drained(await chat(way, { stream: true, ...fields }, options));

// ---- what is no chat ----

call('models.list', async (way) => {
  const models = [];
  for await (const model of way.client().models.list()) models.push(model);
  return models;
});
call('models.retrieve', (way) => way.client().models.retrieve('gpt-4o'));
call('embeddings.create, a list', (way) =>
  way.client().embeddings.create({ model: 'm', input: ['a', 'ü', '漢字'], encoding_format: 'float' }));
call('embeddings.create, refused', (way) => way.client().embeddings.create({ model: 'm', encoding_format: 'float' }));
call('files.list, an unknown path: 404', (way) => way.client().files.list());
call('responses.create, another API: 404', (way) => way.client().responses.create({ model: MODEL, input: 'hello' }));

/** An upload to the route that gives bodies back, told without its boundary, which is random. */
async function echoed(request) {
  const response = await request.asResponse();
  const type = response.headers.get('content-type');
  const boundary = type.split('boundary=')[1];
  const body = Buffer.from(await response.arrayBuffer()).toString('latin1');
  return { type: type.replace(boundary, ''), body: body.replaceAll(boundary, ''), cookies: response.headers.getSetCookie() };
}

const bytes = (count) => Uint8Array.from({ length: count }, (_, at) => at % 256);

call('files.create, multipart upload of 300 KB, echoed', async (way) =>
  echoed(way.client({}, '/echo').files.create({ file: await toFile(bytes(300_000), 'numbers.bin'), purpose: 'user_data' })));
call('audio.transcriptions.create, multipart, echoed', async (way) =>
  echoed(way.client({}, '/echo').audio.transcriptions.create({ file: await toFile(bytes(9_999), 'speech.wav'), model: 'whisper-1' })));
call('images.edit, multipart with two images, echoed', async (way) =>
  echoed(way.client({}, '/echo').images.edit({
    image: [await toFile(bytes(500), 'a.png', { type: 'image/png' }), await toFile(bytes(700), 'b.png', { type: 'image/png' })],
    prompt: 'a bridge',
    model: 'gpt-image-1',
  })));

// ---- chat, answered at once ----

call('chat', (way) => chat(way));
call('chat, developer message, reasoning model', (way) =>
  chat(way, { model: 'o3-mini', max_completion_tokens: 100, messages: [{ role: 'developer', content: 'Be brief.' }, ...HELLO] }));
call('chat, several turns', async (way) => {
  const messages = [{ role: 'system', content: 'You are a guide.' }];
  const answers = [];
  for (const question of ['Name a river.', 'And a bridge?', 'And a street?']) {
    messages.push({ role: 'user', content: question });
    const answer = await chat(way, { messages });
    answers.push(answer);
    messages.push(answer.choices[0].message);
  }
  return answers;
});
call('chat, scripts and emoji of many languages', (way) =>
  chat(way, { messages: ask('Grüße, 漢字, עברית, 👩‍👩‍👧 \u0000\u001f "quoted" \\ \ud800') }));
call('chat, image and text parts', (way) =>
  chat(way, { messages: ask([{ type: 'text', text: 'What is it?' }, { type: 'image_url', image_url: { url: 'data:image/png;base64,iVBORw0KGgo=' } }]) }));
call('chat, a prompt of a megabyte', (way) => chat(way, { messages: ask('All the words there are. '.repeat(42_000)) }));
call('chat, n = 2', (way) => chat(way, { n: 2 }));
call('chat, many documented parameters', (way) =>
  chat(way, { seed: 7, user: 'ada', logprobs: true, top_logprobs: 2, stop: ['END'], temperature: 0.25, top_p: 0.9,
    logit_bias: { 50256: -100 }, metadata: { a: 'b' }, prompt_cache_key: 'k' }));
call('chat, json_object', (way) => chat(way, { messages: ask('Answer in JSON.'), response_format: { type: 'json_object' } }));
call('chat, one tool call', (way) => chat(way, { messages: ask(ONE_CALL), tools: TOOLS }));
call('chat, two tool calls at once', (way) => chat(way, { messages: ask(TWO_CALLS), tools: TOOLS }));
call('chat, a whole tool round', async (way) => {
  const messages = ask(TWO_CALLS);
  const asked = await chat(way, { messages, tools: TOOLS });
  messages.push(asked.choices[0].message);
  for (const { id } of asked.choices[0].message.tool_calls) {
    messages.push({ role: 'tool', tool_call_id: id, content: 'Nothing there.' });
  }
  return [asked, await chat(way, { messages, tools: TOOLS })];
});
call('chat, answer compressed with gzip', async (way) => {
  await way.provider.next({ gzip: true });
  return chat(way);
});
call('chat.withResponse: body and headers', async (way) => {
  await way.provider.next({ headers: [['x-ratelimit-remaining-requests', '59'], ['x-twice', 'a'], ['x-twice', 'b']] });
  const { data, response, request_id } = await chat(way).withResponse();
  return { data, request_id, twice: response.headers.get('x-twice'), left: response.headers.get('x-ratelimit-remaining-requests') };
});
call('chat.asResponse: bytes as they come', async (way) => (await chat(way, { stream: true }).asResponse()).text());

// ---- chat, refused by the provider's own rules ----

const refused = (name, fields) => call(`refused: ${name}`, (way) => chat(way, fields));
const calling = {
  role: 'assistant',
  content: null,
  tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'look_up', arguments: '{}' } }],
};
const result = { role: 'tool', tool_call_id: 'call_1', content: 'ok' };

refused('an unknown parameter', { logprobability: true });
refused('a parameter of the wrong type', { n: 'two' });
refused('temperature on a reasoning model', { model: 'o3-mini', temperature: 0.2 });
refused('json_object without the word', { response_format: { type: 'json_object' } });
refused('a call without its result', { messages: [...HELLO, calling, ...HELLO], tools: TOOLS });
refused('a result without its call', { messages: [...HELLO, result], tools: TOOLS });
refused('an unknown role', { messages: [{ role: 'narrator', content: 'Meanwhile' }] });
refused('no messages', { messages: [] });

call('refused: longer than the context window', async (way) => {
  await way.provider.do('rules', { rules: { window: 1000 } });
  return chat(way, { messages: ask('Too much of a good thing. '.repeat(300)) });
});

// ---- errors ----

for (const fail of [
  ...[400, 401, 403, 404, 409, 422, 429, 500, 503].map((status) => ({ status })),
  { status: 429, retry_after: 7 },
  { status: 502, body: ['text/html', '<html><body>Bad gateway</body></html>'] },
]) {
  call(`error ${Object.values(fail).join(', ')}`, async (way) => {
    await way.provider.next({ fail });
    return chat(way);
  });
}
call('error 401 of a stream', async (way) => {
  await way.provider.next({ fail: { status: 401 } });
  return streamed(way);
});
call('retries: 429 with Retry-After, then an answer', async (way) => {
  await way.provider.next({ fail: { status: 429, retry_after: 1 } });
  return chat(way, {}, { maxRetries: 2 });
});
call('retries: 503 to the end', async (way) => {
  await way.provider.next({ fail: { status: 503 } }, 3);
  return chat(way, {}, { maxRetries: 2 });
});
call('timeout before the head', async (way) => {
  await way.provider.next({ silent: true });
  return chat(way, {}, { timeout: 1500 });
});
call('an answer cut short', async (way) => {
  await way.provider.next({ cut: { after_bytes: 40 } });
  return chat(way);
});

// ---- streams ----

function oddly(name, behaviour) {
  call(`stream, ${name}`, async (way) => {
    await way.provider.next(behaviour);
    return streamed(way);
  });
}

function leaving(name, after) {
  call(`stream, the client leaves ${name}`, async (way) => {
    await way.provider.next({ gate: name });
    await way.provider.release(name, after);
    const stream = await chat(way, { stream: true });
    const iterator = stream[Symbol.asyncIterator]();
    const read = [];
    while (read.length < after) read.push((await iterator.next()).value);
    stream.controller.abort();
    return read;
  });
}

/**
 * The provider holds every event back until the one before it is in the client's hands: a chunk that
 * waited for its successor anywhere on the way would wait for ever.
 */
async function oneByOne(way) {
  await way.provider.next({ gate: 'steps' });
  const order = [];
  await way.provider.release('steps');
  for await (const chunk of await chat(way, { stream: true }, { signal: AbortSignal.timeout(PATIENCE) })) {
    order.push([order.length, plain(chunk)]);
    // Behind the last chunk come a report that Diarist may have asked for, and [DONE].
    await way.provider.release('steps', chunk.choices[0].finish_reason ? 9 : 1);
  }
  return order;
}

// A provider that Diarist does not know is not asked for usage until it was seen to report it. What
// stands before that call is compared byte for byte; behind it, chunks may carry `usage: null`.
function streams(when) {
  call(`stream${when}`, (way) => streamed(way));
  call(`stream, include_usage = false${when}`, (way) => streamed(way, { stream_options: { include_usage: false } }));
  call(`stream, tool calls in deltas${when}`, async (way) => {
    await way.provider.next({ delta_chars: 2 });
    return streamed(way, { messages: ask(TWO_CALLS), tools: TOOLS });
  });
  call(`stream, n = 2${when}`, (way) => streamed(way, { n: 2 }));
  call(`stream helper: events and the final completion${when}`, async (way) => {
    const events = [];
    const helper = way.client().chat.completions.stream({ model: MODEL, messages: HELLO });
    helper.on('content', (delta, snapshot) => events.push([delta, snapshot]));
    return { final: await helper.finalChatCompletion(), events };
  });
  call(`stream, each chunk arrives before the next is sent${when}`, oneByOne);
  oddly(`frames of one byte${when}`, { frame_bytes: 1 });
  oddly(`data over several lines${when}`, { multi_line: true });
  oddly(`cut between events${when}`, { cut: { after_events: 3 } });
  leaving(`before the first chunk${when}`, 0);
  leaving(`after the third chunk${when}`, 3);
}

call('stream, usage sent unasked', async (way) => {
  await way.provider.next({ unasked_usage: true });
  return streamed(way);
});
oddly('lines that end in CR LF, comments between', { crlf: true, comments: true });
oddly('no [DONE]', { no_done: true });
oddly('gzip', { gzip: true });
oddly('cut in the middle of an event', { cut: { after_bytes: 333 } });
streams('');
call('stream, include_usage = true', (way) => streamed(way, { stream_options: { include_usage: true } }));
streams(', usage asked by Diarist');

call('stream, aborted by a signal', async (way) => {
  const abort = new AbortController();
  await way.provider.next({ gate: 'signal' });
  await way.provider.release('signal', 2);
  const stream = await chat(way, { stream: true }, { signal: abort.signal });
  const read = [];
  const end = await attempt(async () => {
    for await (const chunk of stream) {
      read.push(plain(chunk));
      if (read.length === 2) abort.abort();
    }
  });
  return { read, end };
});
call('aborted before the head', async (way) => {
  const abort = new AbortController();
  await way.provider.next({ silent: true });
  const before = (await way.provider.do('record')).length;
  const asking = chat(way, {}, { signal: abort.signal });
  asking.catch(() => {});
  while ((await way.provider.do('record')).length === before) await new Promise(setImmediate);
  abort.abort();
  return asking;
});

// ---- where Diarist itself has to answer: what the client must see on either way ----

export const OWN = [
  {
    name: 'the provider closes before its head: 502 in the API\'s shape',
    call: async (way) => {
      await way.provider.next({ cut: 'before_head' });
      return chat(way);
    },
    expected: {
      direct: ['APIConnectionError', null, null],
      through: ['InternalServerError', 502, 'upstream_disconnected'],
    },
  },
];
