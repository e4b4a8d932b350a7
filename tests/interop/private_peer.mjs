// A stock js-libp2p peer in a private network of libp2p's, by its pre-shared key (a swarm.key file) and nothing else:
//
//     node private_peer.mjs KEYFILE dial MULTIADDR     connects, and has its words echoed
//     node private_peer.mjs KEYFILE listen             waits to be dialled, and echoes
//
// KEYFILE `-`: without a key. One JSON line for each thing that happens.

import { readFileSync } from 'node:fs'
import { noise } from '@libp2p/noise'
import { preSharedKey } from '@libp2p/pnet'
import { tcp } from '@libp2p/tcp'
import { yamux } from '@libp2p/yamux'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

// js-libp2p wants it; Node.js has it from version 22 on.
Promise.withResolvers ??= function () {
  let resolve, reject
  const promise = new Promise((...both) => { [resolve, reject] = both })
  return { promise, resolve, reject }
}

const ECHO = '/p2ptrain/1/echo'
const WORDS = 'x'.repeat(100_000)
const [keyFile, what, address] = process.argv.slice(2)
const say = line => process.stdout.write(`${JSON.stringify(line)}\n`)

const node = await createLibp2p({
  addresses: { listen: what === 'listen' ? ['/ip4/127.0.0.1/tcp/0'] : [] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  ...(keyFile === '-' ? {} : { connectionProtector: preSharedKey({ psk: readFileSync(keyFile) }) })
})

async function echoed () {
  const stream = await node.dialProtocol(multiaddr(address), ECHO)
  say({ event: 'connected', me: node.peerId.toString() })
  stream.send(Buffer.from(WORDS))
  let heard = ''
  for await (const piece of stream) {
    heard += Buffer.from(piece.subarray()).toString()
    if (heard.length >= WORDS.length) break
  }
  return heard === WORDS
}

if (what === 'listen') {
  await node.handle(ECHO, async stream => {
    for await (const piece of stream) stream.send(piece)
  })
  say({ event: 'listening', address: node.getMultiaddrs()[0].toString() })
  process.stdin.on('end', () => node.stop()).resume()
} else {
  try {
    say({ event: 'echoed', same: await echoed() })
  } catch (error) {
    say({ event: 'failed', why: error.name })
  }
  await node.stop()
}
