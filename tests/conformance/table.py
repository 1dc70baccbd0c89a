"""Write docs/conformance.md from the rules: `python -m tests.conformance.table`."""

from __future__ import annotations

import sys
from collections import Counter

from tests.conformance.rules import ROOT, Rule, faults, read_rules

PAGE = ROOT / "docs" / "conformance.md"
_HEAD = """# Conformance

Use this page to look up how qmd follows a sentence of the specification, and which test shows it.
It has one row for each sentence with MUST or SHOULD of [MS-MQQB] sections 2 and 3, of [MC-MQSRM]
sections 2 and 3 (messages over HTTP) and of [MS-MQMQ] sections 2.2.18 to 2.2.20, in our own words
and in the order of the text. Successive sentences about one matter share their words; the sentences
of [MC-MQSRM] are numbered as its text is divided at the ends of sentences. The rows stand in
`tests/conformance/rules/`; the command `python -m tests.conformance.table` writes this page. A test
fails if a row has no test, if its code or its test is gone, or if this page is out of date.

| verdict | rows | meaning |
| --- | --- | --- |
| works | {works} | the code does it, and the test shows it |
| reading | {reading} | the text is ambiguous, or one of several ways to the same end is taken |
| differs | {differs} | deliberately otherwise, for the reason in the row |
| unused | {unused} | belongs to an option that qmd does not use |

"Notes 12" is the row of that number in [protocol-notes.md](protocol-notes.md). A test is given by
its file below `tests/` and its function, without `test_`. No Windows host has judged these rows:
[interop.md](interop.md) asks for captures, and describes how to make a host judge them.
"""


def page(rules: list[Rule]) -> str:
    """Return the text of the page."""
    count = Counter(rule.verdict for rule in rules)
    lines = [_HEAD.format(**{key: count[key] for key in ("works", "reading", "differs", "unused")})]
    place = ("", "")
    for rule in rules:
        if rule.document != place[0]:
            lines.append(f"## [{rule.document}]\n")
        if (rule.document, rule.clause) != place:
            place = (rule.document, rule.clause)
            lines.append(f"### {rule.document} {rule.clause}\n")
            lines.append("| # | rule | verdict | code | test |\n| --- | --- | --- | --- | --- |")
            before: Rule | None = None
        lines.append(_row(rule, before))
        before = rule
        if rule is _last_of(rules, place):
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(rule: Rule, before: Rule | None) -> str:
    """Return a row; `before` is the row above, of which equal cells are not repeated."""
    code = ", ".join(f"`{each}`" for each in rule.code)
    tests = ", ".join(
        f"`{each.removeprefix('tests/').replace('::test_', '::')}`" for each in rule.tests
    )
    if before is not None and rule.code and (rule.code, rule.tests) == (before.code, before.tests):
        code = tests = "as above"
    verdict = rule.verdict + (f": {rule.reason}" if rule.reason else "")
    return f"| {rule.number} | {rule.summary} | {verdict} | {code} | {tests} |".replace("  ", " ")


def _last_of(rules: list[Rule], place: tuple[str, str]) -> Rule:
    return max(
        (rule for rule in rules if (rule.document, rule.clause) == place),
        key=lambda rule: rule.number,
    )


def main() -> int:
    """Write the page; return 1, and print the faults, if the rules have some."""
    rules = read_rules()
    found = faults(rules)
    for fault in found:
        print(fault, file=sys.stderr)
    if not found:
        PAGE.write_text(page(rules), encoding="utf-8")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
