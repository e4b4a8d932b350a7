"""Finding peers: the peer store, a Kademlia DHT, dialling, multicast DNS."""
