"""The control socket's server side: handlers of each verb, remote access, tokens."""
