"""The directory: which public queues, distribution lists, computers and sites there are.

`interface.py` is what the queue manager asks, whatever kind of directory answers; `resolving.py`
turns names into the queues that a message goes to.  [MS-MQDMPR] 3.1.1, [MS-MQMQ] 2.1
"""
