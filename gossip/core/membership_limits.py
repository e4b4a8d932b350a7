"""Every bound of membership in one place, each with the reason for its number. As with the protocol's bounds, none is
configurable: two members that disagreed on a bound would refuse each other's honest messages."""

from typing import Final

KIB: Final = 1024

TOLERANCE_S: Final = 300
"""Seconds that two honest clocks may differ: added to every expiry, and allowed for every time in the future. Kerberos
uses the same five minutes."""

MAX_CERTIFICATE_BYTES: Final = 4096
"""What the handshake carries (`MAX_CREDENTIALS` of the transports). A certificate with all fields at their limits takes
1.2 KiB."""

MAX_NAME_CHARS: Final = 64
"""The name of a swarm, a run or a member: one column of a terminal's table."""

MAX_ADMINS: Final = 16
"""Enough for a board of admins; every signature of a manifest is checked, at 60 us each."""

MAX_SIGNATURES: Final = 2 * MAX_ADMINS
"""A change of admins may be signed by those that leave and those that come."""

MAX_ALLOWED: Final = 1024
"""Peers on an allow list: 32 KiB in a manifest. A larger swarm should use invites."""

MAX_BOOTSTRAP: Final = 16
"""Addresses for a first contact: a node needs one that answers."""

MAX_ADDRESS_CHARS: Final = 256
"""The same bound as on the wire."""

MAX_VERSION: Final = 2**31 - 1
"""Versions of a manifest: one a second for 68 years."""

MAX_APP_CHARS: Final = 32
"""A version of the program, such as `0.4.1rc2`."""

MAX_SETTINGS_BYTES: Final = 16 * KIB
MAX_SETTINGS: Final = 256
"""Entries of all tables and lists together: the whole configuration of a node has under 100."""

MAX_SETTINGS_DEPTH: Final = 4
"""Tables within tables: `[sync.momentum]` is two; lists count."""

MAX_SETTING_CHARS: Final = 4096
"""A string in the settings: a prompt, a list of globs."""

MAX_KEY_CHARS: Final = 64

MAX_MANIFEST_BYTES: Final = 60 * KIB
"""Allow list 32 KiB, settings 16, bootstrap addresses 4, signatures 3.2, and the rest under 2."""

MAX_CHAIN: Final = 64
"""Manifests that a member keeps: the founding one, those that changed the admins, and the newest others."""

MAX_CONFLICTS: Final = 16
"""Forks that are remembered for the operator: one is already a matter for all admins."""

MAX_USES: Final = 10_000

MAX_LINE_CHARS: Final = 128 * KIB - 1
"""The longest argument that Linux passes to a program."""

MAX_LINE_BYTES: Final = 256 * KIB
"""The most that an invite line may unpack to: four manifests of the largest size."""

MAX_LINE_MANIFESTS: Final = 64
"""As many as a chain holds."""

NAMED_BYTES: Final = 16
"""Bytes of a manifest's digest in a short line, as of a swarm's id: nobody can find another manifest with the same 128
bits, and an admin who made two could as well have signed both."""

MAX_LINE_ADDRESSES: Final = 4
"""Bootstrap addresses in a short line, 55 letters each: a newcomer needs one that answers."""

MAX_PIECE_BYTES: Final = 4000
"""Bytes of the manifests that one visit returns: what a handshake carries, less the frame. A usual swarm needs one
visit."""

MAX_REFUSAL_BYTES: Final = 32 * KIB - 1
"""A refusal, with the manifests by which an admin was removed: one of a swarm with ordinary settings takes under 1 KiB,
and one with an allow list of 900 peers fits. The length of a refusal's frame has 15 bits."""

MAX_PIECES: Final = 66
"""Visits for the largest chain that a line may stand for: `MAX_LINE_BYTES` in pieces."""

MAX_ROTATIONS: Final = 4
"""Keys that followed each other in one membership; after that an admin appoints anew. 148 bytes each."""

MAX_REDEMPTIONS: Final = 4096
"""Memberships that a roster holds: sixteen times the peerstore, 4.7 MiB at most."""

MAX_OPEN_USES: Final = 1024
"""Redemptions that a roster holds of an invite without a number of uses: a stolen one fills a quarter of the roster."""

MAX_REVOCATIONS: Final = 4096
"""As many as memberships; one takes 0.5 KiB at most."""

MAX_REASON_CHARS: Final = 200
"""One line for a log, like every refusal's detail."""

MAX_ITEM_BYTES: Final = 1536
"""A roster's item: the largest certificate and its tag."""

MAX_PAGE_BYTES: Final = 8 * KIB
"""Items that are sent together: the limit of a control message."""

BUCKETS: Final = 256
"""Parts of a roster that are compared one by one: by the first byte of an item's digest, 32 items each when full."""

BUCKET_BYTES: Final = 8
"""Bytes of each part's digest: 2 KiB for the whole roster. A member that makes two parts look alike only misses items
itself."""

MAX_REMEMBERED: Final = 4096
"""Peers that an admission remembers: twice the connections of the largest node."""
