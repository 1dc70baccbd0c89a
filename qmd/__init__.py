"""qmd: a queue manager for Linux that speaks the MSMQ binary protocol.  [MS-MQQB]"""

__version__ = "0.1.0"
