"""The control socket's server side: handlers of each verb, status, remote access, tokens."""
