"""The door for SRMP: messages over HTTP and HTTPS, as MSMQ sends them.  [MC-MQSRM], docs/srmp.md

    envelope    the SOAP envelope and its attachments: read and written
    mime        multipart/related
    messages    from a packet of the binary protocol to an envelope, and back
    session     a session of the binary protocol with the daemon
    client      requests to other hosts
    outgoing    messages of the daemon for URLs, and the receipts for them
    incoming    requests of other hosts, and the receipts that they get
    redirection mapping of URLs
    program     the process

The door translates between the two protocols and keeps no message: a request is answered when the
daemon has acknowledged the message, and the daemon gets its acknowledgment when the other host has
answered.  Sequences, duplicates, expiry and dead letters are those of the daemon.
docs/decisions/0068.
"""
