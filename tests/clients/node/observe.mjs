// Makes every call directly and through Diarist and writes down what was seen, for `judge.py`.

import { readFileSync } from 'node:fs';

import { CALLS, OWN } from './calls.mjs';
import { observed as conversation } from './long.mjs';
import { Way } from './rig.mjs';

const ways = [await Way.open('direct'), await Way.open('through')];

const calls = [];
for (const [name, call] of CALLS) {
  process.stderr.write(`  ${name}\n`);
  const [direct, through] = ways;
  calls.push([name, await direct.watch(call), await through.watch(call)]);
}

const own = [];
for (const { name, call, expected } of OWN) {
  const got = {};
  for (const way of ways) {
    const { raised } = (await way.watch(call)).result;
    got[way.name] = [raised?.class, raised?.status, raised?.code].map((value) => value ?? null);
  }
  own.push({ name, expected, got });
}

const codes = [];
for (const way of ways) codes.push(await way.close());

const manifest = new URL('../node_modules/openai/package.json', import.meta.url);
const { version } = JSON.parse(readFileSync(manifest));
const client = `openai ${version} on Node ${process.version}`;
process.stdout.write(JSON.stringify({ client, calls, own, codes, long: await conversation() }));
