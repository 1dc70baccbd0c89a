"""The derived functions that packets are read and built with are those of the layouts."""

import subprocess
import sys

import pytest

from protocol.codec.write import FOLDER, RECORDS, module_of, text_of


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_a_module_is_derived_from_the_present_layout(record: type) -> None:
    written = (FOLDER / f"{module_of(record)}.py").read_text()
    assert written == text_of(record), "run `python -m protocol.codec.write`"


def test_there_are_no_other_modules() -> None:
    expected = {"__init__", *map(module_of, RECORDS)}
    assert {file.stem for file in FOLDER.glob("*.py")} == expected


def test_packets_are_parsed_without_construct() -> None:
    program = (
        "import protocol.packets, protocol.security_data, protocol.signed_fields, protocol.ping\n"
        "import protocol.framing, protocol.acknowledgments, sys\n"
        "sys.exit('construct' in sys.modules or 'protocol.codec.derive' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
