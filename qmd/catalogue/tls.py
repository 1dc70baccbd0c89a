"""Errors about TLS between queue managers."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        8001,
        "tls_failed",
        "A session over TLS with another queue manager cannot be opened.",
        "The line has the reason: no program listens at its port for TLS, or one end has refused "
        "the certificate of the other.",
        "Messages wait. Compare `qmd tls show` of both hosts with `qmd tls show --peers`, and see "
        "docs/tls.md for each reason.",
        "",
        "MQ_ERROR_REMOTE_MACHINE_NOT_AVAILABLE",
    ),
    Entry(
        8002,
        "tls_refused",
        "A certificate of another queue manager, or a session with it without TLS, was refused.",
        "The certificate is expired, revoked, of another authority, key, name or queue manager; "
        "or the peer has to use TLS, and did not.",
        "The line has the reason. If the peer has a new key that is genuine: `qmd tls pin`, or "
        "`qmd tls forget`.",
        "",
        "MQ_ERROR_ACCESS_DENIED",
    ),
    Entry(
        8003,
        "tls_not_used",
        "TLS is preferred with a peer, has failed, and was left out.",
        "The peer offers TLS, and the handshake failed with the reason in the line.",
        "Remove the cause; TLS is tried again after ten minutes. To let messages wait instead, add "
        "a rule `required` for it to `policy` in the section [tls].",
    ),
    Entry(
        8004,
        "tls_files_faulty",
        "A file of TLS cannot be used.",
        "It is missing, half-written, not PEM, too long, readable by all users, or the key is not "
        "that of the certificate.",
        "Correct the file. A running daemon keeps the previous content until then.",
        "",
        "MQ_ERROR_CERTIFICATE_NOT_PROVIDED",
    ),
    Entry(
        8005,
        "tls_expires",
        "A certificate or a revocation list of this host expires soon, or has expired.",
        "Its period of validity ends. After it other queue managers refuse this one, or this one "
        "refuses them.",
        "`qmd tls rotate` makes a new certificate; an authority issues a new one for `qmd tls "
        "request`. The daemon reads it without a restart.",
    ),
    Entry(
        8006,
        "tls_not_changed",
        "A file of TLS was not changed.",
        "It exists already, cannot be read or written, or an argument does not fit.",
        "The line has the reason.",
    ),
    Entry(
        8007,
        "tls_peers_full",
        "A queue manager that was met over TLS is not recorded: the table is full.",
        "Very many queue managers were met over TLS.",
        "It is accepted without TLS, too, unless a rule of `policy` in the section [tls] requires "
        "TLS of it. Forget those that no longer exist: `qmd tls forget`.",
    ),
    Entry(
        8008,
        "tls_handshake_failed",
        "A handshake of TLS with another host ended early.",
        "The host closed the connection, was too slow, spoke no TLS 1.3, or showed no certificate: "
        "the line has the reason. A port scanner does that, too.",
        "Check the address; exclude it with `allow` in the section [peers].",
    ),
)
