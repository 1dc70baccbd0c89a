"""Format names and path names.  [MS-MQMQ] 2.1"""
