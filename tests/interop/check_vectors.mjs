// Holds statements.mjs to tests/vectors/statements.json: every good link is read and written anew, every bad one is
// refused with its reason. Prints one JSON line with the counts, or throws.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { openEnvelope, parseLink, PROTOCOL_VERSION, sealLink } from './statements.mjs'

const vectors = JSON.parse(readFileSync(new URL('../vectors/statements.json', import.meta.url)))
const bytes = value => typeof value === 'string' ? Buffer.from(value, 'hex') : Buffer.alloc(value.zeros)
const scope = Object.fromEntries(['swarm', 'run', 'genesis'].map(name => [name, bytes(vectors.scope[name])]))
const hex = value => Buffer.isBuffer(value) ? value.toString('hex') : value

assert.equal(PROTOCOL_VERSION, vectors.scope.version)

for (const good of vectors.good) {
  const stated = openEnvelope(bytes(good.envelope), scope)
  for (const name of ['kind', 'epoch', 'seq', 'prev', 'payload', 'digest']) assert.equal(hex(stated[name]), good[name])
  if (good.kind !== 'link') continue
  const link = parseLink(stated, scope)
  const { kind: update, ...body } = good.body
  assert.equal(link.update, update)
  const { layers = [], ...plain } = body
  for (const name of Object.keys(plain)) assert.equal(hex(link[name]), plain[name])
  const read = (link.layers ?? []).map(layer => ({ ...layer, address: hex(layer.address) }))
  assert.deepEqual(read, layers)
  assert.equal(hex(sealLink(bytes(good.seed), link)), good.envelope)
}

for (const { envelope, digest } of vectors.good_in_longer_msgpack) {
  assert.equal(hex(parseLink(openEnvelope(bytes(envelope), scope), scope).digest), digest)
}

for (const { what, envelope, reason } of vectors.bad) {
  assert.throws(() => parseLink(openEnvelope(bytes(envelope), scope), scope), { reason }, what)
}

console.log(JSON.stringify({ good: vectors.good.length, bad: vectors.bad.length }))
