// Says what its standard input asks for, a word a line, and prints one JSON line for each:
//
//     node speaker.mjs MULTIADDR [SWARM]
//
// `link` is a properly signed link of the run that is heard first, `forged` one whose signature has a wrong bit,
// `garbage` no message at all. It says when it is cut off, and ends with its input.

import { randomBytes } from 'node:crypto'
import { createInterface } from 'node:readline'
import { Refused } from './msgpack.mjs'
import { join, topicOf } from './peer.mjs'
import { digestOf, openEnvelope, sealLink, swarmId } from './statements.mjs'

const [address, swarm = 'p2ptrain'] = process.argv.slice(2)
const seed = randomBytes(32)
const say = line => process.stdout.write(`${JSON.stringify(line)}\n`)

/** What a message states of this swarm; undefined where it is refused, which is the observer's business. */
function statedIn (data) {
  try {
    return openEnvelope(data, { swarm: swarmId(swarm) })
  } catch (error) {
    if (!(error instanceof Refused)) throw error
  }
}

let learned
const heard = new Promise(resolve => { learned = resolve })
const node = await join(address, swarm, seed, data => {
  const stated = statedIn(data)
  if (stated) learned(stated.run)
})
node.addEventListener('peer:disconnect', () => say({ event: 'disconnected' }))
say({ event: 'connected', me: node.peerId.toString() })
const run = await heard
say({ event: 'ready' })

let seq = 0
let prev = digestOf(Buffer.from('the link before'))
const epoch = Date.now()

function made (word) {
  if (word === 'garbage') return Buffer.from('hello?')
  seq += 1
  const payload = digestOf(Buffer.from('nobody will ask for it'))
  const body = { round: seq, update: 'delta', codec: 'q2', size: 7, steps: 1, tokens: 1, state: Buffer.alloc(0) }
  const link = sealLink(seed, { swarm: swarmId(swarm), run, epoch, seq, prev, payload, ...body })
  prev = openEnvelope(link).digest
  if (word === 'forged') link[link.length - 1] ^= 1
  return link
}

for await (const word of createInterface({ input: process.stdin })) {
  const { recipients } = await node.services.pubsub.publish(topicOf(swarm), made(word))
  say({ event: 'said', what: word, digest: word === 'link' ? prev.toString('hex') : '', peers: recipients.length })
}
await node.stop()
