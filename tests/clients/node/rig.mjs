// Two ways to the same kind of provider, and what is seen on each of them: as `../python/rig.py`.
// What the client gets is recorded below the SDK, in the `fetch` it is given.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

import OpenAI from 'openai';

export const KEY = 'sk-of-the-test';

/** The first line of a stream that satisfies `wanted`, parsed; the rest is kept and given by `all`. */
async function found(stream, wanted) {
  const lines = [];
  const reader = createInterface({ input: stream });
  const answer = await new Promise((resolve, reject) => {
    reader.on('line', (line) => {
      lines.push(line);
      const told = JSON.parse(line);
      if (wanted(told)) resolve(told);
    });
    reader.on('close', () => reject(new Error(`it ended: ${lines.join('\n')}`)));
  });
  return { answer, all: () => lines.join('\n') };
}

/** The control port of one scripted provider. */
export class Control {
  static async start() {
    const control = new Control();
    control.process = spawn(process.env.PROVIDER, { stdio: ['pipe', 'pipe', 'inherit'] });
    const { answer } = await found(control.process.stdout, () => true);
    control.baseURL = answer.base_url;
    control.address = answer.control;
    return control;
  }

  async do(what, fields = {}) {
    const body = JSON.stringify({ do: what, ...fields });
    const answer = await fetch(this.address, { method: 'POST', body });
    const told = await answer.json();
    if (!answer.ok) throw new Error(`${what}: ${told.error}`);
    return told;
  }

  next(behaviour, times = 1) {
    return this.do('next', { times, behaviour });
  }

  release(gate, events = 1) {
    return this.do('release', { gate, events });
  }

  /** What came since, without the calls memory makes, once all of it has ended. */
  async record(from = 0) {
    const record = await this.do('record', { from, settled: true });
    return record.filter((entry) => entry.part === 'actor' || entry.part === 'other');
  }

  async close() {
    const exit = once(this.process, 'exit');
    this.process.stdin.end();
    await exit;
  }
}

/** The real binary on free ports, with a database of its own. */
class Diarist {
  static async start(upstream, settings) {
    const diarist = new Diarist();
    diarist.folder = mkdtempSync(join(tmpdir(), 'diarist-'));
    const { PATH, HOME } = process.env;
    diarist.process = spawn(
      process.env.DIARIST,
      ['serve', '--upstream', upstream, '--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0',
        '--database', `sqlite://${diarist.folder}/diarist.db`,
        '--audit', `${diarist.folder}/audit.jsonl`],
      { env: { PATH, HOME, ...settings }, stdio: ['ignore', 'ignore', 'pipe'] },
    );
    // Not to a terminal, the log is one JSON object a line; one of the first says where it listens.
    const { answer, all } = await found(diarist.process.stderr, (line) => line.listen);
    diarist.baseURL = `http://${answer.listen}/v1`;
    diarist.log = all;
    return diarist;
  }

  async close() {
    const exit = once(this.process, 'exit');
    this.process.kill('SIGTERM');
    const [code] = await exit;
    rmSync(this.folder, { recursive: true });
    return code;
  }
}

/** One way to a provider: `direct`, or `through` Diarist. */
export class Way {
  static async open(name, settings = {}) {
    const way = new Way();
    way.name = name;
    way.provider = await Control.start();
    way.baseURL = way.provider.baseURL;
    if (name === 'through') {
      way.diarist = await Diarist.start(way.baseURL, settings);
      way.baseURL = way.diarist.baseURL;
    }
    way.exchanges = [];
    return way;
  }

  client(options = {}, path = '') {
    return new OpenAI({
      apiKey: KEY,
      baseURL: this.baseURL + path,
      fetch: (url, init) => this.fetched(url, init),
      ...options,
    });
  }

  /** Fetches and keeps what passed. */
  async fetched(url, init) {
    const { pathname, search } = new URL(url);
    const kept = { request: `${init.method} ${pathname}${search}`, status: null, headers: [], body: '', end: 'open' };
    this.exchanges.push(kept);
    let response;
    try {
      response = await fetch(url, init);
    } catch (error) {
      kept.end = error.name;
      throw error;
    }
    kept.status = response.status;
    kept.headers = [...response.headers];
    if (!response.body) return response;
    const body = response.body.getReader();
    const watched = new ReadableStream({
      async pull(controller) {
        try {
          const { done, value } = await body.read();
          if (done) {
            kept.end = 'complete';
            return controller.close();
          }
          kept.body += Buffer.from(value).toString('latin1');
          controller.enqueue(value);
        } catch (error) {
          kept.end = error.name;
          controller.error(error);
        }
      },
      cancel(reason) {
        kept.end = 'closed';
        return body.cancel(reason);
      },
    });
    return new Response(watched, response);
  }

  /** Runs one call and gives everything that was seen of it, on both sides. */
  async watch(call) {
    this.exchanges = [];
    const since = await this.provider.do('count');
    const result = await attempt(() => call(this));
    const received = await this.provider.record(since);
    await this.provider.do('rules');
    for (const kept of this.exchanges.slice(0, -1)) {
      // The SDK throws the body of an answer it retries away; how much had come is chance.
      if (kept.status >= 400) Object.assign(kept, { body: '', end: 'retried' });
    }
    return plain({ result, client: this.exchanges, provider: received });
  }

  /**
   * What a person does between two turns: long enough that memory has been silent for a while. It
   * paces the client and decides nothing; a client in a hurry is only remembered later.
   */
  async pause() {
    if (!this.diarist) return;
    for (let before = -1, round = 0; round < 20; round += 1) {
      const count = await this.provider.do('count');
      if (count === before) return;
      before = count;
      await new Promise((resolve) => setTimeout(resolve, 40));
    }
  }

  async close() {
    const code = this.diarist ? await this.diarist.close() : 0;
    await this.provider.close();
    return code;
  }
}

/** What an action gives, or the exception it ends with, as data. */
export async function attempt(action) {
  try {
    return plain(await action());
  } catch (error) {
    if (error instanceof OpenAI.OpenAIError || error instanceof TypeError || error.name === 'AbortError') {
      return { raised: raised(error) };
    }
    throw error;
  }
}

function raised(error) {
  const bases = [];
  for (let type = error.constructor; type?.name; type = Object.getPrototypeOf(type)) bases.push(type.name);
  const { message, status, error: body, code, param, type, requestID } = error;
  return plain({ class: bases[0], bases, message, status, body, code, param, type, requestID, cause: error.cause?.name });
}

/** A value as data: what an application would see if it wrote it down. */
export function plain(value) {
  return value === undefined ? null : JSON.parse(JSON.stringify(value));
}
