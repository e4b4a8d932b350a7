// A stock js-libp2p peer that is subscribed to a swarm's topic: TCP, Noise, yamux, gossipsub, and nothing of its own.

import { generateKeyPairFromSeed } from '@libp2p/crypto/keys'
import { gossipsub, TopicValidatorResult } from '@libp2p/gossipsub'
import { identify } from '@libp2p/identify'
import { noise } from '@libp2p/noise'
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

export const topicOf = swarm => `/p2ptrain/1/${swarm}`

/** A peer of TCP, Noise, yamux, identify and gossipsub; `options` are those of js-libp2p, and go before these. */
export async function made ({ services = {}, ...options } = {}) {
  return await createLibp2p({
    transports: [tcp()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    services: { identify: identify(), pubsub: gossipsub({ allowPublishToZeroTopicPeers: true }), ...services },
    ...options
  })
}

/**
 * A connected peer; `heard(data)` is told of every message on the topic whose gossipsub signature is good. It passes
 * none on: who passes on what is bad is charged for it, and a peer of no run cannot tell links of another run or model.
 */
export async function join (address, swarm, seed, heard) {
  const node = await made({ privateKey: await generateKeyPairFromSeed('Ed25519', seed) })
  node.services.pubsub.topicValidators.set(topicOf(swarm), (_, { data }) => {
    heard(Buffer.from(data))
    return TopicValidatorResult.Ignore
  })
  node.services.pubsub.subscribe(topicOf(swarm))
  await node.dial(multiaddr(address))
  return node
}
