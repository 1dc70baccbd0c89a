"""A strict queue manager of another make, as a Windows host is one, for judging qmd from outside.

It is written from [MS-MQQB] and [MS-MQMQ] alone: its own bytes (`encoding`, `decoding`), its own
sessions with the timers of the text (`session`), its own queues and sequences (`receiving`,
`sending`), joined in `host`.  It shares no code with qmd, nor with the other peers of the tests.

Nothing here waits or opens sockets: time and bytes come in as arguments.  `sockets` runs it in
real time on TCP, `simulated` in the virtual time of the simulation.  `verdict` collects each MUST
that the other side broke, with its clause; the host then does as the text demands of it.
`manner` has the freedom that the text gives to a host: late, partial and repeated
acknowledgments, small windows, odd paddings, cut segments.

`QB` is [MS-MQQB], `MQ` is [MS-MQMQ]; "notes" are rows of docs/protocol-notes.md.
"""
