"""The node's own page: what is served, to whom, and how it stays small. `node/page/status_server.py` puts it together.

Read-only, one process, no request to anywhere else. `history.py` keeps the curves in bounded memory, `feed.py` turns
the node's events into what a browser wants to know next, `stream.py` sends it (server-sent events), `guard.py` and
`token.py` say who may ask, `serving.py` carries it over HTTP, and `static/` is the page itself. `members.py` and
`swarm_feed.py` are what the page of a whole swarm has in the place of `feed.py`.
"""
