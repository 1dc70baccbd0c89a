"""Message security: signatures of senders, and encrypted bodies.  [MS-MQQB] 3.1.5.8.3, 3.1.7.1

All primitives are those of the library `cryptography`.
"""
