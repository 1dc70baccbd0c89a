"""Conversations with other queue managers, taken apart and checked against the specification.

    capture   ──► network ──► streams ──► conversation ──► report
    pcap, pcapng   IP, TCP    in order    packets, rules   text, JSON
                                              ▲
    probe: a scripted conversation with a peer┘

`qmd interop read` and `qmd interop probe` use it.  It imports the layouts of packets alone: no
part of the daemon judges its own work.
"""
