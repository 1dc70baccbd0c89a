"""Spellings of the name of a queue, with which attacks try to pass a check of names."""

OF_A_QUEUE = (
    "{}",
    "private$\\{}",
    ".\\PRIVATE$\\{}",
    "DIRECT=OS:.\\private$\\{}",
    "DIRECT=OS:localhost\\PRIVATE$\\{}",
    "DIRECT=TCP:127.0.0.1\\private$\\{}",
    "{};journal",
    "{};part",
    "mine,{}",
)
