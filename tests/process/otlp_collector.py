"""A collector of OpenTelemetry: a process that takes OTLP over HTTP and prints each span.

python -m tests.process.otlp_collector PORT
"""

from __future__ import annotations

import gzip
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        for resource in request.resource_spans:
            host = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    print(json.dumps(_facts(span, host)), flush=True)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


def _facts(span: Any, resource: dict[str, str]) -> dict[str, Any]:
    return {
        "name": span.name,
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "host": resource["host.name"],
        "service": resource["service.name"],
        "kind": span.kind,
        "begin": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "is_error": span.status.code == 2,
        "attributes": {
            each.key: each.value.string_value or each.value.int_value for each in span.attributes
        },
    }


if __name__ == "__main__":
    server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Collector)
    print(json.dumps({"ready": True}), flush=True)
    server.serve_forever()
