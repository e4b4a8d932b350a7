// Announcements by docs/protocol.md, without libp2p: `openEnvelope` and `parseLink` check what came, in the page's
// order, and throw Refused with the page's reason; `sealLink` signs a link of one's own. check_vectors.mjs tries them.

import { createPrivateKey, createPublicKey, sign, verify } from 'node:crypto'
import { blake2b } from '@noble/hashes/blake2.js'
import { pack, Refused, unpack } from './msgpack.mjs'

export const PROTOCOL_VERSION = 3
const DOMAIN = Buffer.from('p2ptrain-envelope-v1\0')
const MAX_ENVELOPE_BYTES = 8192
const MAX_BODY_BYTES = 6144
const MAX_BLOB_BYTES = 2 ** 34
const NONE = Buffer.alloc(32)
const STATEMENTS = ['link', 'offer', 'record', 'goodbye', 'part', 'regional', 'secure', 'statistics']
const UPDATES = ['genesis', 'snapshot', 'delta']
// Before a key's 32 bytes (RFC 8410), as node:crypto wants it.
const PUBLIC_DER = Buffer.from('302a300506032b6570032100', 'hex')
const PRIVATE_DER = Buffer.from('302e020100300506032b657004220420', 'hex')

export const digestOf = data => Buffer.from(blake2b(data, { dkLen: 32 }))
export const swarmId = name => digestOf(Buffer.from(name)).subarray(0, 16)

const refuse = (reason, detail) => { throw new Refused(reason, detail) }

// Checks of one field each: they give the value back, or refuse it.
const when = (holds, value, detail) => holds ? value : refuse('malformed', detail)
const uint = (most = Number.MAX_SAFE_INTEGER) => value =>
  when(typeof value === 'number' && value <= most, value, `a number of at most ${most}`)
const exactly = size => value => when(Buffer.isBuffer(value) && value.length === size, value, `${size} bytes`)
const short = (value, most) => value.length <= most ? value : refuse('oversize', `more than ${most}`)
const text = most => value => short(when(typeof value === 'string', value, 'text'), most)
const bin = most => value => short(when(Buffer.isBuffer(value), value, 'bytes'), most)

const OUTER = { signed: bin(MAX_ENVELOPE_BYTES), signature: exactly(64) }
const SIGNED = {
  version: uint(),
  swarm: exactly(16),
  run: exactly(16),
  kind: text(16),
  key: exactly(32),
  epoch: uint(),
  seq: uint(),
  prev: exactly(32),
  payload: exactly(32),
  body: bin(MAX_BODY_BYTES)
}
const UPDATE = { round: uint(), update: text(16) }
const SNAPSHOT = { ...UPDATE, codec: text(32), size: uint(MAX_BLOB_BYTES), steps: uint(), tokens: uint() }
const GENESIS = { ...SNAPSHOT, genesis: exactly(32) }
const DELTA = { ...SNAPSHOT, state: bin(32) }
const LAYER = { codec: text(32), size: uint(MAX_BLOB_BYTES), address: exactly(32) }
const MAX_LAYERS = 4
const array = (value, most) => short(when(Array.isArray(value), value, 'an array'), most)
const layers = value => when(array(value, MAX_LAYERS).length > 0, value, 'a layer')
  .map(layer => fields(array(layer, Object.keys(LAYER).length), LAYER))
const REFINED = { ...DELTA, layers }
const BODIES = { genesis: GENESIS, snapshot: SNAPSHOT, delta: DELTA }
const MARK_EVERY = 4

/** An array with exactly these fields, by name. */
function fields (items, shape) {
  when(Array.isArray(items), items, 'an array')
  const found = {}
  Object.entries(shape).forEach(([name, check], index) => {
    found[name] = check(when(index < items.length, items[index], `no ${name}`))
  })
  when(items.length === Object.keys(shape).length, items, 'fields too many')
  return found
}

/** A signed statement that holds here. `scope`: { swarm, run }, each a Buffer, or undefined where any will do. */
export function openEnvelope (raw, scope = {}) {
  const { signed, signature } = fields(unpack(raw, MAX_ENVELOPE_BYTES), OUTER)
  const stated = fields(unpack(signed, MAX_ENVELOPE_BYTES), SIGNED)
  const key = createPublicKey({ key: Buffer.concat([PUBLIC_DER, stated.key]), format: 'der', type: 'spki' })
  if (!verify(null, Buffer.concat([DOMAIN, signed]), key, signature)) refuse('forged', 'the signature does not verify')
  if (stated.version !== PROTOCOL_VERSION) refuse('protocol', `version ${stated.version}`)
  if (scope.swarm && !stated.swarm.equals(scope.swarm)) refuse('wrong_swarm')
  if (scope.run && !stated.run.equals(scope.run)) refuse('wrong_run')
  if (!STATEMENTS.includes(stated.kind)) refuse('unknown_kind', stated.kind)
  return { ...stated, digest: digestOf(signed) }
}

/** The link of an opened envelope, whose rules hold. `scope.genesis`: the initial model's digest, where it is known. */
export function parseLink (stated, scope = {}) {
  if (stated.kind !== 'link') refuse('unknown_kind', stated.kind)
  const items = unpack(stated.body, MAX_BODY_BYTES)
  const { update } = fields(Array.isArray(items) ? items.slice(0, 2) : items, UPDATE)
  if (!UPDATES.includes(update)) refuse('unknown_kind', update)
  const refined = update === 'delta' && items.length > Object.keys(DELTA).length
  const body = fields(items, refined ? REFINED : BODIES[update])
  const base = stated.seq === 0
  if (base === (update === 'delta')) refuse('protocol', 'a chain begins with a base, and nowhere else is one')
  if (base !== stated.prev.equals(NONE)) refuse('protocol', 'only a base has no previous link')
  const empty = update === 'genesis'
  const bare = [stated.payload.equals(NONE), body.size === 0]
  if (bare.some(each => each !== empty)) refuse('protocol', 'a genesis, and nothing else, has no payload')
  if (update === 'delta') {
    when([0, 32].includes(body.state.length), body.state, 'a state of 32 bytes, or none')
    const hollow = ({ size, address }) => size === 0 || address.equals(NONE)
    if (refined && body.layers.some(hollow)) refuse('protocol', 'a layer without a payload')
    if (body.state.length > 0 && stated.seq % MARK_EVERY !== 0) refuse('protocol', 'a state where none is due')
  }
  if (empty && scope.genesis && !body.genesis.equals(scope.genesis)) refuse('wrong_model')
  return { ...stated, ...body }
}

/** A signed link by the key of `seed` (32 bytes); `stated` as `parseLink` returns it, without `key` and `digest`. */
export function sealLink (seed, stated) {
  const key = createPrivateKey({ key: Buffer.concat([PRIVATE_DER, seed]), format: 'der', type: 'pkcs8' })
  const own = createPublicKey(key).export({ format: 'der', type: 'spki' }).subarray(-32)
  const { round, update, codec, size, steps, tokens, genesis, state, layers } = stated
  const refined = layers ? [layers.map(layer => Object.values(layer))] : []
  const last = genesis ? [genesis] : state ? [state, ...refined] : []
  const body = pack([round, update, codec, size, steps, tokens, ...last])
  const { swarm, run, epoch, seq, prev, payload } = stated
  const signed = pack([PROTOCOL_VERSION, swarm, run, 'link', own, epoch, seq, prev, payload, body])
  return pack([signed, sign(null, Buffer.concat([DOMAIN, signed]), key)])
}
