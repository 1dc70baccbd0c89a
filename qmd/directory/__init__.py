"""Directory: look-up of public queues, distribution lists, computers and sites.

`interface.py` is the interface of the queue manager to every kind of directory; `resolver.py`
resolves names to the queues that receive a message. [MS-MQDMPR] 3.1.1, [MS-MQMQ] 2.1
"""
