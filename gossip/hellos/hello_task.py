"""The hello: how connected peers become neighbours, and stay so."""

import trio

from gossip.context import ServiceContext
from gossip.core.errors import RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_HELLO_BYTES
from gossip.core.messages import HelloRequest, Refused, parse_bytes_answer
from gossip.session import ask_once
from gossip.transport.base import TransportError


async def say_hello(context: ServiceContext, peer: PeerId) -> bool:
    """Say hello to a connected peer and process its answer; return True when it is a neighbour afterwards, or a bridge
    to its region."""
    engine, config = context.engine, context.config
    try:
        hello = HelloRequest(hello=engine.hello_for(peer, trio.current_time()))
        raw = await ask_once(context.transport, peer, hello, config.request_timeout_s, MAX_HELLO_BYTES + 64)
        engine.on_hello_answer(peer, parse_bytes_answer(raw, MAX_HELLO_BYTES), trio.current_time())
        context.greeted(peer)
    except Refused as refusal:
        engine.hello_refused(peer, refusal)
    except RemoteError as error:
        context.offence(peer, error)
    except TransportError:
        pass
    context.perform()
    return peer in engine.partners
