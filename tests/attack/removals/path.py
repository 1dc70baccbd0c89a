"""Protections against an attacker on the network path."""

from tests.attack.removals.removal import Change, Removal

_TLS = "tests/attack/test_tls.py::"
_HOSTS = "tests/process/test_tls.py::"
_KEYS = "tests/attack/test_key_updates.py::"
_SIGNED = "tests/attack/test_message_security.py::"
_AUTHORITIES = "tests/unit/message_security/test_authorities.py::"
_STRICT = (
    "            rule.wanted is Wanted.REQUIRED\n            or row is not None\n"
    "            or dialled.address in self._needed\n"
)

_TLS_NEEDED = Change(
    "qmd/peers/tls_peers.py",
    "        if rule.wanted is Wanted.REQUIRED and not connection.is_encrypted:",
    "        if False:",
)
_MET_OVER_TLS = Change(
    "qmd/peers/tls_peers.py",
    "elif self._is_pinned(guid) or guid_text(guid) in self._met:",
    "elif False:",
)

REMOVALS = (
    Removal(
        "cuts, delays, repeats and reordering",
        "qmd/queues/outgoing_queues.py",
        "wake_at = queue.sequence.next_timer()",
        "wake_at = None",
        "tests/process/test_retransmission.py"
        "::test_unacknowledged_transactional_messages_are_sent_again_on_the_same_session",
    ),
    Removal(
        "a program reads or changes messages on the path",
        "qmd/peers/tls_peers.py",
        _STRICT,
        "            row is not None\n",
        f"{_HOSTS}test_a_host_without_tls_gets_nothing_where_tls_is_required",
        (_TLS_NEEDED,),
    ),
    Removal(
        "a program reads or changes messages on the path",
        "qmd/peers/tls_peers.py",
        "        if strict:\n            return Ways(port or PORT, may_be_plain=False)\n",
        "        return Ways(None, may_be_plain=True)\n",
        f"{_HOSTS}test_two_hosts_with_tls_required_exchange_messages_over_tls",
    ),
    Removal(
        "a program reads or changes messages on the path",
        "qmd/peers/tls_peers.py",
        "        if row.key != certificate.origin_key:\n",
        "        if False:\n",
        f"{_HOSTS}test_a_key_is_bound_on_first_use",
    ),
    Removal(
        "TLS is cut, and only the port without TLS let through",
        "qmd/peers/sessions.py",
        "        if hindrance is not None:\n            connection.close(hindrance)",
        "        if False:\n            connection.close(hindrance)",
        "tests/attack/test_tls.py"
        "::test_a_handshake_without_tls_that_waits_is_refused_when_its_guid_is_bound_to_tls",
    ),
    Removal(
        "TLS is cut, and only the port without TLS let through",
        "qmd/peers/tls_peers.py",
        "            or row is not None\n            or dialled.address in self._needed\n",
        "",
        f"{_TLS}test_no_downgrade_after_a_session_over_tls",
        (_MET_OVER_TLS,),
    ),
    Removal(
        "TLS is cut, and only the port without TLS let through",
        "qmd/peers/tls_peers.py",
        "            self._services.loop.call_soon(self.on_bound)\n",
        "            pass\n",
        f"{_TLS}test_an_open_session_without_tls_ends_when_its_guid_is_bound_to_tls",
    ),
    Removal(
        "TLS is cut, and only the port without TLS let through",
        "qmd/peers/tls_peers.py",
        "elif self._is_pinned(guid) or guid_text(guid) in self._met:",
        "elif False:",
        f"{_TLS}test_the_guid_of_a_bound_peer_is_refused_with_another_key_and_without_tls",
    ),
    Removal(
        "TLS is cut, and only the port without TLS let through",
        "qmd/peers/tls_peers.py",
        "        if rule.wanted is Wanted.REQUIRED and not connection.is_encrypted:",
        "        if False:",
        f"{_HOSTS}test_a_peer_of_which_tls_is_required_is_refused_without_it",
    ),
    Removal(
        "no certificate, an expired, early, revoked or false one",
        "qmd/tls/credentials.py",
        "SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT",
        "SSL.VERIFY_PEER",
        f"{_TLS}test_a_peer_without_a_certificate_gets_no_session",
        (
            Change(
                "qmd/tls/channel.py",
                "        if owner is None or self.proof is None:\n",
                "        if owner is None:\n",
            ),
        ),
    ),
    Removal(
        "no certificate, an expired, early, revoked or false one",
        "qmd/tls/credentials.py",
        "        context.set_min_proto_version(SSL.TLS1_3_VERSION)\n"
        "        context.set_max_proto_version(SSL.TLS1_3_VERSION)\n",
        "        context.set_min_proto_version(SSL.TLS1_2_VERSION)\n",
        f"{_TLS}test_older_versions_of_tls_are_refused",
    ),
    Removal(
        "no certificate, an expired, early, revoked or false one",
        "qmd/tls/credentials.py",
        "    return bool(verifier.verify(shown, error, depth, ok=bool(ok)))",
        "    return bool(verifier.verify(shown, error, depth, ok=True)) or True",
        f"{_TLS}test_false_and_expired_certificates_are_refused_where_an_authority_counts",
    ),
    Removal(
        "no certificate, an expired, early, revoked or false one",
        "qmd/peers/tls_peers.py",
        "            and not any(map(certificate.has_name, dialled.hosts))\n",
        "            and False\n",
        f"{_HOSTS}test_a_wrong_certificate_is_refused_with_a_reason_at_both_ends",
    ),
    Removal(
        "no certificate, an expired, early, revoked or false one",
        "qmd/tls/credentials.py",
        "            store.set_flags(crypto.X509StoreFlags.CRL_CHECK)\n",
        "            pass\n",
        f"{_HOSTS}test_a_revoked_certificate_ends_open_sessions_and_is_refused",
    ),
    Removal(
        "no certificate, an expired, early, revoked or false one",
        "qmd/peers/tls_peers.py",
        "        if is_issued and (fault := ",
        "        if False and (fault := ",
        f"{_HOSTS}test_a_revoked_certificate_ends_open_sessions_and_is_refused",
    ),
    Removal(
        "a certificate of the authority for another use",
        "qmd/tls/credentials.py",
        "    return bool(verifier.verify(shown, error, depth, ok=bool(ok)))",
        "    return bool(verifier.verify(shown, error, depth, ok=True)) or True",
        "tests/attack/test_tls_certificates.py"
        "::test_a_certificate_of_an_authority_for_other_uses_gets_no_session",
    ),
    Removal(
        "a genuine certificate, with the GUID of another",
        "qmd/peers/tls_peers.py",
        "            if proof.certificate.guid == guid:\n                return None\n",
        "            return None\n",
        f"{_TLS}test_a_certificate_is_good_for_its_own_guid_only",
    ),
    Removal(
        "a genuine certificate, with the GUID of another",
        "qmd/tls/certificate.py",
        "        Ed25519PublicKey.from_public_bytes(public).verify("
        "signature, _endorsed(guid, key, issued_s))\n",
        "        pass\n",
        f"{_TLS}test_a_copied_endorsement_is_refused",
    ),
    Removal(
        "a genuine certificate, with the GUID of another",
        "qmd/tls/certificate.py",
        "    except Exception as error:  # cryptography",
        "    except ZeroDivisionError as error:  # cryptography",
        f"{_TLS}test_an_odd_certificate_is_refused_and_ends_nothing_else",
    ),
    Removal(
        "a certificate of its own with the GUID of a host",
        "qmd/peers/tls_peers.py",
        "        if not (is_bound or is_dialled) or certificate.guid == self._services.id:",
        "        if certificate.guid == self._services.id:",
        f"{_TLS}test_a_false_certificate_that_comes_first_does_not_lock_the_genuine_peer_out",
    ),
    Removal(
        "silent or slow handshakes of TLS",
        "qmd/peers/tls_handshakes.py",
        "            self._close_one()\n",
        "            channel.refuse('there are too many')\n",
        f"{_TLS}test_silent_connections_keep_no_genuine_peer_out",
    ),
    Removal(
        "silent or slow handshakes of TLS",
        "qmd/peers/tls_handshakes.py",
        "        most = max(self._by_host.values(), key=len)",
        "        most = min(self._by_host.values(), key=len)",
        f"{_TLS}test_many_handshakes_of_one_address_end_none_of_another",
    ),
    Removal(
        "silent or slow handshakes of TLS",
        "qmd/tls/channel.py",
        "        self._limit = self._loop.call_later(self._timeout_s, self._took_too_long)\n",
        "",
        f"{_TLS}test_a_handshake_has_a_time_limit",
    ),
    Removal(
        "silent or slow handshakes of TLS",
        "qmd/tls/channel.py",
        "        if self._handshake_bytes > HANDSHAKE_BYTES_MAX:\n",
        "        if False:\n",
        f"{_TLS}test_a_handshake_that_is_too_long_is_not_kept",
    ),
    Removal(
        "new keys demanded of TLS without end",
        "qmd/tls/channel.py",
        "                if self._feed.has_too_many(self._loop.time()):",
        "                if False:",
        f"{_KEYS}test_a_peer_that_changes_its_keys_without_end_is_ended",
    ),
    Removal(
        "new keys demanded of TLS without end",
        "qmd/runtime/server_tls.py",
        "        if self._without_data > WITHOUT_DATA_MAX:",
        "        if False:",
        f"{_KEYS}test_a_remote_client_that_changes_its_keys_without_end_is_ended",
    ),
    Removal(
        "new keys demanded of TLS without end",
        "qmd/runtime/server_tls.py",
        "                if taken is Taken.RECORD:\n                    self._had_no_data()\n",
        "",
        f"{_KEYS}test_servers_of_doors_accept_few_changes_of_keys",
    ),
    Removal(
        "new keys demanded of TLS without end",
        "qmd/control/remote.py",
        "        context = server_context(settings.certificate, settings.key, settings.client_ca)\n",
        "        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
        "        context.load_cert_chain(settings.certificate, settings.key)\n",
        f"{_KEYS}test_no_server_has_another_context",
    ),
    Removal(
        "TLS connections are cut in the middle",
        "qmd/queues/outgoing_queue.py",
        "self.sequence.restart()",
        "self.sequence.restart()\n        if not transactional_only:\n            return",
        f"{_HOSTS}test_a_proxy_that_cuts_tls_loses_and_doubles_nothing",
    ),
    Removal(
        "TLS connections are cut in the middle",
        "qmd/peers/tls_peers.py",
        "        if row.key != certificate.origin_key:\n",
        "        if row.key != certificate.fingerprint:\n",
        "tests/process/test_tls_files.py::test_a_rotation_under_traffic_loses_and_doubles_nothing",
    ),
    Removal(
        "a stolen key for TLS that was replaced",
        "qmd/peers/tls_peers.py",
        '        return "its key was replaced by a later one"\n',
        '        return ""\n',
        "tests/process/test_tls_files.py::test_a_replaced_key_is_refused_after_the_overlap",
    ),
    Removal(
        "a false host with a certificate of its own",
        "qmd/peers/tls_peers.py",
        "        if row.key != certificate.origin_key:\n",
        "        if False:\n",
        f"{_HOSTS}test_a_key_is_bound_on_first_use",
    ),
    Removal(
        "a false host with a certificate of its own",
        "qmd/peers/tls_peers.py",
        "            if matches(pins, certificate):\n",
        "            if True:\n",
        f"{_HOSTS}test_a_pin_decides_about_the_key",
    ),
    Removal(
        "a false host with a certificate of its own",
        "qmd/peers/tls_peers.py",
        '            if proof.by_authority:\n                return ""\n',
        '            return ""\n',
        f"{_HOSTS}test_a_certificate_of_another_authority_is_refused_at_both_ends",
    ),
    Removal(
        "a changed field of a signed message",
        "qmd/message_security/checking.py",
        "            if verify(signer, signature, signed_parts(message, style), algorithm):",
        "            if True:",
        f"{_SIGNED}test_each_changed_field_of_a_signed_message_is_refused",
    ),
    Removal(
        "a changed field of a signed message",
        "qmd/transfer/acceptance.py",
        "                can_be_taken=has_room and not too_late and refusal is None"
        " and insecure is None,",
        "                can_be_taken=has_room and not too_late and refusal is None,",
        f"{_SIGNED}test_a_refused_transactional_message_is_final_and_the_sequence_goes_on",
    ),
    Removal(
        "a changed key, algorithm or body of an encrypted message",
        "qmd/message_security/checking.py",
        "        except Unacceptable as error:\n            return Checked("
        "message, packet, error.message_class, error.detail)",
        "        except Unacceptable as error:\n            return Checked(message, packet)",
        f"{_SIGNED}test_each_changed_field_of_an_encrypted_message_is_refused",
    ),
    Removal(
        "a changed key, algorithm or body of an encrypted message",
        "qmd/message_security/checking.py",
        "        check_cipher(properties.privacy_level, algorithm, self._policy)\n",
        "",
        f"{_SIGNED}test_each_changed_field_of_an_encrypted_message_is_refused",
    ),
    Removal(
        "a copy of a signed message, for another queue",
        "qmd/transfer/sender_access.py",
        "        if not self._is_listed(message):\n",
        "        if False:\n",
        f"{_SIGNED}test_a_signature_over_a_list_is_good_for_the_queues_of_that_list_only",
    ),
    Removal(
        "a copy of a signed message, for another queue",
        "qmd/transfer/sender_access.py",
        "        if primary is None or primary == connection.origin:\n",
        "        if True:\n",
        f"{_SIGNED}test_a_copied_signature_does_not_speak_for_a_source_with_a_key",
    ),
    Removal(
        "a certificate of another sender, of no authority",
        "qmd/message_security/checking.py",
        "                if signer.fingerprint in found or signer.key_fingerprint in found:\n",
        "                if True:\n",
        "tests/process/test_directory_keys.py"
        "::test_a_certificate_in_the_directory_proves_its_sender",
    ),
    Removal(
        "a certificate of another sender, of no authority",
        "qmd/message_security/authorities.py",
        "            crypto.X509StoreContext(loaded.store, shown).verify_certificate()\n",
        "            pass\n",
        f"{_AUTHORITIES}test_a_name_of_an_authority_without_its_signature_does_not_count",
    ),
    Removal(
        "a certificate of another sender, of no authority",
        "qmd/message_security/authorities.py",
        "            flags |= crypto.X509StoreFlags.CRL_CHECK\n",
        "",
        f"{_AUTHORITIES}test_a_revoked_certificate_counts_no_more_although_it_is_registered",
    ),
    Removal(
        "signed messages with made-up senders, and a slow directory",
        "qmd/transfer/security_gate.py",
        "            self._works = False\n            self._to_ask[connection] = senders\n",
        "            self._to_ask[connection] = senders\n",
        "tests/integration/transfer/test_security_gate.py"
        "::test_messages_of_others_go_on_while_the_directory_is_asked",
    ),
    Removal(
        "signed messages while the directory is away",
        "qmd/transfer/security_gate.py",
        "            if self._answers.known_certificates(sender) is None:\n",
        "            if False:\n",
        "tests/process/test_directory_keys.py"
        "::test_while_the_directory_is_away_nothing_is_decided_about_a_sender",
    ),
    Removal(
        "changed copies of an encrypted message",
        "qmd/message_security/decryption_failures.py",
        "        return count >= FAILURES_MAX",
        "        return False",
        f"{_SIGNED}test_changed_copies_of_an_encrypted_message_disclose_nothing_of_its_body",
    ),
    Removal(
        "the mark of a verified signature, or of encryption",
        "qmd/message_security/checking.py",
        'encryption_key=header.encryption_key if header.flags.body_encrypted else b"",',
        "encryption_key=header.encryption_key,",
        f"{_SIGNED}test_queues_refuse_messages_that_are_less_protected_than_they_require",
    ),
    Removal(
        "a false server in the place of the remote port",
        "qmd/client/address.py",
        "            context = ssl.create_default_context(cafile=self.ca_file)",
        "            context = ssl._create_unverified_context()",
        "tests/process/test_remote_control.py::test_a_certificate_of_another_authority_is_not_trusted",
    ),
    Removal(
        "a false server in the place of the remote port",
        "qmd/control/remote.py",
        "            if settings.address not in LOOPBACK:",
        "            if False:",
        "tests/process/test_remote_control.py::test_without_tls_only_loopback_is_accepted_and_only_if_configured",
    ),
    Removal(
        "reading and changing the traffic between queue managers",
        "qmd/peers/tls_peers.py",
        "        if rule.wanted is Wanted.REQUIRED and not connection.is_encrypted:",
        "        if False:",
        "tests/process/test_tls.py::test_a_peer_of_which_tls_is_required_is_refused_without_it",
    ),
    Removal(
        "registering a certificate in the directory for another user",
        "qmd/control/server.py",
        "        if not self.rights.are_all:\n            request = self._admitted(request)\n",
        "",
        "tests/attack/test_access.py::test_no_verb_of_another_local_user_has_an_effect",
    ),
    Removal(
        "registering a certificate in the directory for another user",
        "qmd/cli/host/key_directory.py",
        '            return replace(settings, bind="negotiate", user="", password_file=None)',
        "            return settings",
        "tests/directory/test_own_account.py"
        "::test_another_user_of_this_computer_changes_its_own_certificates_alone",
    ),
)
