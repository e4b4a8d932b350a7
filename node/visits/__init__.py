"""Visitors: devices that take the node's model over HTTP, train some steps, and leave one difference.

`difference_head.py` has the bytes that a visitor signs, `visit_bounds.py` who may leave how many, `visitors.py` what
has come and what a round makes of it, `tls_certificate.py` reads the certificate, and `visit_server.py` answers over
HTTP. Only the last two do I/O.
"""
