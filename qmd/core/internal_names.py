"""Names of internal queues of queue managers."""

ORDER_QUEUE = "order_queue$"  # receives acknowledgments. [MS-MQQB] 3.1.7.17
HEARTBEAT_QUEUE = "private$\\qmd_heartbeat$"  # receives heartbeats and their answers
HISTORY_QUEUE = "private$\\qmd_history$"  # receives queries for message histories
