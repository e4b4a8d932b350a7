// Stock js-libp2p at each place of a circuit (circuit relay v2), as its words say; prints JSON lines, ends with its input:
//
//     node relay_peer.mjs relay                  relays for whoever asks
//     node relay_peer.mjs listen RELAY           reserves with the relay at this multiaddr, and is to be found through it
//     node relay_peer.mjs dial CIRCUIT [SWARM]   dials through a relay, pings, and subscribes to the swarm's topic

import { randomBytes } from 'node:crypto'
import { circuitRelayServer, circuitRelayTransport } from '@libp2p/circuit-relay-v2'
import { multiaddr } from '@multiformats/multiaddr'
import { tcp } from '@libp2p/tcp'
import { made, topicOf } from './peer.mjs'

const PING = '/ipfs/ping/1.0.0'
const ECHO = '/p2ptrain/1/echo'
const LOOPBACK = '/ip4/127.0.0.1/tcp/0'

const [role, address, swarm = 'p2ptrain'] = process.argv.slice(2)
const say = line => process.stdout.write(`${JSON.stringify(line)}\n`)
const transports = [tcp(), circuitRelayTransport()]

/** Sends back whatever comes. */
async function echo (stream) {
  for await (const data of stream) stream.send(data.subarray())
  await stream.close()
}

/** What comes back of 32 bytes by libp2p's ping. */
async function ping (connection) {
  const stream = await connection.newStream(PING)
  const sent = randomBytes(32)
  stream.send(sent)
  let back = Buffer.alloc(0)
  for await (const data of stream) {
    back = Buffer.concat([back, data.subarray()])
    if (back.length >= sent.length) break
  }
  await stream.close()
  return back.equals(sent)
}

const roles = {
  // Its default is two minutes and 128 KiB of each circuit, which no member could train over.
  async relay () {
    const relay = circuitRelayServer({ reservations: { applyDefaultLimit: false } })
    return await made({ addresses: { listen: [LOOPBACK] }, transports, services: { relay } })
  },
  async listen () {
    const node = await made({ addresses: { listen: [`${address}/p2p-circuit`] }, transports })
    await node.handle(ECHO, echo, { runOnLimitedConnection: false })
    return node
  },
  async dial () {
    const node = await made({ transports })
    node.services.pubsub.subscribe(topicOf(swarm))
    const connection = await node.dial(multiaddr(address))
    say({ event: 'connected', peer: connection.remotePeer.toString(), limits: connection.limits ?? null })
    say({ event: 'pinged', same: await ping(connection) })
    while (!node.services.pubsub.getSubscribers(topicOf(swarm)).some(peer => peer.equals(connection.remotePeer))) {
      await new Promise(resolve => node.services.pubsub.addEventListener('subscription-change', resolve, { once: true }))
    }
    say({ event: 'subscribed' })
    return node
  }
}

const node = await roles[role]()
say({ event: 'ready', me: node.peerId.toString(), addresses: node.getMultiaddrs().map(String) })
process.stdin.resume()
process.stdin.on('end', () => node.stop())
