"""Names of queues that belong to queue managers themselves."""

ORDER_QUEUE = "order_queue$"  # takes acknowledgments.  [MS-MQQB] 3.1.7.17
HISTORY_QUEUE = "private$\\qmd_history$"  # takes questions for the histories of messages
