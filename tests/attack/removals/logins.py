"""Protections of logins at the console and the door for AMQP."""

from tests.attack.removals.removal import Change, Removal

_LOGINS = "tests/attack/test_console_logins.py::"
_LOCAL = "wrong passwords and tokens of another local user"

REMOVALS = (
    Removal(
        _LOCAL,
        "qmd/console/entrance.py",
        "        client, is_user = client_of(peer.address, peer.there, peer.here)",
        '        client, is_user = f"address {peer.address}", False',
        f"{_LOGINS}test_wrong_passwords_of_another_local_user_keep_no_user_out",
    ),
    Removal(
        _LOCAL,
        "qmd/console/entrance.py",
        "        is_known = is_user or self._brake.knows(own[-1])",
        "        is_known = self._brake.knows(own[-1])",
        f"{_LOGINS}test_wrong_passwords_of_another_local_user_keep_no_user_out",
    ),
    Removal(
        _LOCAL,
        "qmd/console/entrance.py",
        '        own = [client, *([f"{client} as {name}"] if name else [])]',
        "        own = [client]",
        f"{_LOGINS}test_a_login_of_its_own_gives_a_local_user_no_further_guesses",
    ),
    Removal(
        _LOCAL,
        "qmd/console/entrance.py",
        'if name and not is_user else f"token of {client}"',
        "",
        f"{_LOGINS}test_wrong_tokens_in_all_places_keep_no_other_token_out",
        (
            Change(
                "qmd/console/entrance.py",
                "        client, is_user = client_of(peer.address, peer.there, peer.here)",
                '        client, is_user = f"address {peer.address}", False',
            ),
        ),
    ),
    Removal(
        _LOCAL,
        "qmd/doors/amqp/login.py",
        "        return client_of(self._peer.address, self._peer.there, self._peer.here)[0]",
        "        return self._peer.address",
        "tests/amqp/test_login.py::test_wrong_passwords_of_another_local_user_keep_no_user_out",
    ),
    Removal(
        "a revoked token, with a login that began before",
        "qmd/console/entrance.py",
        "            is_current = await self._has_token(session)",
        "            is_current = True",
        f"{_LOGINS}test_a_revoked_token_is_out_of_the_console",
    ),
    Removal(
        "an export that names a message thousands of times",
        "qmd/console/pages/queues.py",
        "dict.fromkeys(ids[:EXPORT_MESSAGES_MAX])",
        "ids[:EXPORT_MESSAGES_MAX]",
        f"{_LOGINS}test_an_export_reads_each_message_once",
    ),
    Removal(
        "a page of another local user, at another port",
        "qmd/console/entrance.py",
        "        if session.user is not None and session.user != _user_of(peer):",
        "        if False:",
        f"{_LOGINS}test_a_cookie_of_a_local_user_is_of_no_use_to_another_one",
    ),
    Removal(
        "a link among the reports of jobs",
        "qmd/console/pages/work.py",
        " or not place.is_relative_to(folder.resolve())",
        "",
        f"{_LOGINS}test_a_link_among_the_reports_leads_to_no_other_file",
    ),
    Removal(
        "a report that grows while it is read",
        "qmd/console/pages/work.py",
        "stream.read(REPORT_BYTES_MAX + 1)\n        return content if len(content) <= REPORT_BYTES_MAX",
        "stream.read()\n        return content if found.st_size <= REPORT_BYTES_MAX",
        "tests/unit/console/test_report_files.py"
        "::test_a_report_that_grows_while_it_is_read_is_not_read_on",
    ),
    Removal(
        "a body of megabytes that is laid out",
        "qmd/console/pages/queues.py",
        """await asyncio.to_thread(
                bodies.show, found.body, found.body_type, visit.asked("as"), whole=whole
            )""",
        'bodies.show(found.body, found.body_type, visit.asked("as"), whole=whole)',
        "tests/process/test_console_bodies.py::test_while_a_body_is_laid_out_others_are_served",
    ),
    Removal(
        "a body of megabytes that is laid out",
        "qmd/console/bodies.py",
        '    if len(body) > STRUCTURED_BYTES_MAX:\n        raise UnreadableBody("XML", -1',
        '    if False:\n        raise UnreadableBody("XML", -1',
        "tests/unit/console/test_bodies.py"
        "::test_a_body_that_takes_long_to_be_laid_out_is_shown_as_text",
    ),
)
