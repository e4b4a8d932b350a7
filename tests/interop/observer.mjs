// Prints one JSON line for every announcement of a swarm, signature and all checked by this program itself:
//
//     node observer.mjs MULTIADDR [SWARM]
//
// `chained`: whether the link names the one before it that was heard of the same peer; null where that was not heard.

import { randomBytes } from 'node:crypto'
import { publicKeyFromRaw } from '@libp2p/crypto/keys'
import { peerIdFromPublicKey } from '@libp2p/peer-id'
import { Refused } from './msgpack.mjs'
import { join } from './peer.mjs'
import { openEnvelope, parseLink, swarmId } from './statements.mjs'

const [address, swarm = 'p2ptrain'] = process.argv.slice(2)
const newest = new Map()

const say = line => process.stdout.write(`${JSON.stringify(line)}\n`)

function told (data) {
  try {
    const link = parseLink(openEnvelope(data, { swarm: swarmId(swarm) }))
    const { round, update, codec, size, steps, tokens, epoch, seq } = link
    const [run, digest] = [link.run, link.digest].map(bytes => bytes.toString('hex'))
    const peer = peerIdFromPublicKey(publicKeyFromRaw(link.key)).toString()
    const before = newest.get(peer)
    const next = before?.epoch === epoch && before.seq + 1 === seq
    const repeated = before?.digest.equals(link.digest) ?? false
    if (!before || before.epoch < epoch || (before.epoch === epoch && before.seq < seq)) newest.set(peer, link)
    const chained = next ? link.prev.equals(before.digest) : null
    const place = { epoch, seq, digest, chained, repeated }
    say({ event: 'link', peer, run, ...place, round, update, codec, size, steps, tokens })
  } catch (error) {
    if (!(error instanceof Refused)) throw error
    say({ event: 'refused', reason: error.reason })
  }
}

const node = await join(address, swarm, randomBytes(32), told)
node.addEventListener('peer:disconnect', ({ detail }) => say({ event: 'disconnected', peer: detail.toString() }))
say({ event: 'connected', peer: address.split('/p2p/')[1], me: node.peerId.toString() })
