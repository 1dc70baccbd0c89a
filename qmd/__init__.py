"""qmd: a queue manager for Linux that speaks the MSMQ binary protocol.  [MS-MQQB]"""

from qmd.runtime.own_packages import come_first

__version__ = "0.1.0"

come_first()
