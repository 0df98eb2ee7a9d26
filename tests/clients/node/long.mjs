// One long conversation, as in `../python/long.py`.

import { Way, attempt, plain } from './rig.mjs';

const TURNS = 60;
const SETTINGS = {
  DIARIST__MEMORY__OBSERVATION__MESSAGE_TOKENS: '2000',
  DIARIST__MEMORY__OBSERVATION__MODEL: 'observer-mini',
  DIARIST__MEMORY__REFLECTION__OBSERVATION_TOKENS: '1000',
  DIARIST__MEMORY__REFLECTION__MODEL: 'reflector-mini',
};

/** The conversation as an application holds it; every other answer is streamed. */
async function played(way) {
  const told = await way.provider.do('converse', { seed: 12, turns: TURNS });
  const history = [];
  const answers = [];
  const memory = [];
  const client = way.client({ maxRetries: 0, timeout: 20_000 });
  for (const message of told.messages) {
    if (message.role !== 'assistant') {
      history.push(message);
      continue;
    }
    const fields = { model: 'gpt-4o', messages: history, ...(told.tools && { tools: told.tools }) };
    const answer = answers.length % 2
      ? await client.chat.completions.stream(fields).finalChatCompletion()
      : await client.chat.completions.create(fields);
    const { headers } = way.exchanges.at(-1);
    memory.push(new Map(headers).get('x-diarist-memory') ?? null);
    const [{ finish_reason: finish, message: said }] = answer.choices;
    answers.push(plain({ finish, message: said }));
    history.push(said);
    await way.pause();
  }
  return { answers, memory };
}

export async function observed() {
  const seen = {};
  for (const name of ['direct', 'through']) {
    process.stderr.write(`  a long conversation, ${name}\n`);
    const way = await Way.open(name, SETTINGS);
    const result = await attempt(() => played(way));
    seen[name] = { result, record: await way.provider.do('record', { settled: true }) };
    await way.close();
  }
  return seen;
}
