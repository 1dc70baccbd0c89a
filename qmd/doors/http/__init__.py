"""The HTTP door: REST, server-sent events, CloudEvents and webhooks; docs/http.md.

server ──► routes ──► a handler ──► sessions ──► the daemon
(bytes)    (declarations)           (one control connection for each client)
"""
