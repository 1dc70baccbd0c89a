"""`qmd pipeline finish`: receive the messages that a stream's last batch has read."""

from __future__ import annotations

import click

from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure


@click.command("finish")
@click.option("--checkpoint", required=True, help="The stream's checkpointLocation.")
@click.option("--endpoint", default="", help="Address to use instead of the checkpoint's.")
@click.option("--token-file", default="", help="The file with the token, for tls:// endpoints.")
@click.option("--ca-file", default="", help="The CA that signs the servers' certificates.")
@click.option("--certificate-file", default="", help="The certificate of this client.")
@click.option("--key-file", default="", help="The key of that certificate.")
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@json_option
def finish(
    checkpoint: str, endpoint: str, token_file: str, ca_file: str, certificate_file: str,
    key_file: str, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Close a stream that has ended: receive the messages that its last batch has read.

    Spark never reports the last batch to a queue, so its messages are in the output and still in
    the queue, reserved.  A running stream is fenced off by this, and fails.  May be repeated.
    """
    from dataclasses import asdict

    from qmd.cli.output import print_rows

    try:
        from pipeline.source.checkpoint import finish as close
        from pipeline.source.errors import SourceError
        from pipeline.source.options import Endpoint
    except ImportError as error:
        raise Failure(
            ExitCode.FAILED,
            f"this needs the extra spark ({error}): pip install '.[spark]'",
            "pipeline_extra_missing",
        ) from error
    if bool(certificate_file) != bool(key_file):
        raise click.UsageError("--certificate-file and --key-file belong together; give both")
    secrets = Endpoint(
        endpoint,
        token_file=token_file,
        ca_file=ca_file,
        certificate_file=certificate_file,
        key_file=key_file,
    )
    try:
        done = close(checkpoint, secrets, dry_run=dry_run)
    except SourceError as error:
        text = str(error).removeprefix("qmd: ")
        raise Failure(ExitCode.FAILED, text, error.code) from error
    print_rows(
        [asdict(each) for each in done],
        [
            ("ENDPOINT", "endpoint"),
            ("READER", "reader"),
            ("BATCH", "batch"),
            ("QUEUES", "queues"),
            ("WOULD RECEIVE" if dry_run else "RECEIVED", "messages"),
        ],
        as_json=as_json,
        none="no batch of this stream is in its output yet",
    )
