"""Errors of `qmd interop`: captures, and conversations with other queue managers."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        9301,
        "bad_capture",
        "The file is not a capture.",
        "It begins neither as pcap nor as pcapng, or cannot be read.",
        "Give a file of tcpdump, Wireshark or pktmon (`pktmon etl2pcap` converts its files).",
    ),
    Entry(
        9302,
        "probe_unreachable",
        "The queue manager that is to be probed cannot be reached.",
        "Its computer is off or does not listen, a firewall drops the connection, or it allows only"
        " listed hosts.",
        "Connect from a host that it accepts; see `qmd session list` or the firewall there.",
    ),
    Entry(
        9303,
        "probe_violations",
        "The conversation or the capture breaks rules of the specification.",
        "The report names each rule with its clause.",
        "Send the report to the developers of the queue manager that breaks the rule.",
    ),
)
