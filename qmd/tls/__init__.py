"""TLS between queue managers: certificates, the files of this host, and channels over TCP."""
