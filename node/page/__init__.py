"""The node's own page: what is served, to whom, and how it stays small. `node/page/status_server.py` combines the
parts.

It is read-only, in the node's process, and requests nothing from elsewhere. `history.py` keeps the curves in bounded
memory. `feed.py` turns the node's events into a browser's next news, and `stream.py` sends them (server-sent events).
`guard.py` decides who may ask, `serving.py` carries it over HTTP, and `static/` is the page itself. The page of a whole
swarm has `members.py` and `swarm_feed.py` in place of `feed.py`.
"""
