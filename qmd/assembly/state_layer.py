"""The components that hold state: queues, sequences, names and the directory.

`Assembly` (components.py) is made in three layers.  A layer extends the one before it and adds the
components above: a component gets only collaborators that exist, and mypy sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.access.checks import AccessChecks
from qmd.access.local_users import LocalUsers
from qmd.access.register import AccessRegister
from qmd.access.things import ThingFinder
from qmd.directory.factory import open_directory
from qmd.directory.interface import Reloadable
from qmd.directory.registration import Registration
from qmd.directory.resolver import Own, Resolver
from qmd.directory.security_answers import SecurityAnswers
from qmd.events.log_limits import EventLogLimits
from qmd.events.recorder import Recorder
from qmd.message.shared_packet import Parts
from qmd.naming.destinations import Destinations
from qmd.queues import quotas
from qmd.queues.answer_limits import AnswerLimits
from qmd.queues.incoming_sequences import IncomingStreams
from qmd.queues.limits import Limits
from qmd.queues.message_id_history import KnownMessages
from qmd.queues.named_dead_letter_queue import NamedDeadLetterQueues
from qmd.queues.outgoing_ids import OutgoingIds
from qmd.queues.outgoing_queues import OutgoingQueues
from qmd.queues.outgoing_refill import OutgoingRefill
from qmd.queues.quarantine import Damage
from qmd.queues.registry import LocalQueues
from qmd.queues.usage import Usage
from qmd.runtime.bulk_turns import BulkTurns
from qmd.runtime.fair_scheduler import FairScheduler, Light
from qmd.runtime.services import Services

if TYPE_CHECKING:
    from qmd.message_security.keyring import Keyring


class StateLayer:
    """Queues and their state, the event log, the directory, and the names of queues."""

    def __init__(self, services: Services, limits: Limits) -> None:
        self.services = services
        self.limits = limits
        self._keyring: Keyring | None = None
        self._make_queues()
        self._make_names()

    def _make_queues(self) -> None:
        services, settings = self.services, self.services.settings
        light = Light()
        bulk = BulkTurns(services, light)
        self.turns = FairScheduler(services, light, bulk, beside_the_disk=False)  # of peers
        # Of applications.
        self.local_turns = FairScheduler(services, light, bulk, beside_the_disk=True)
        # Of applications whose account has much work while another account has some.
        self.busy_turns = FairScheduler(services, light, bulk, beside_the_disk=False)
        self.usage = Usage(settings.quotas.computer_bytes, quotas.notice)
        self.admission = quotas.Admission(services, self.usage)
        self.queues = LocalQueues(services, self.usage)
        self.parts = Parts()
        self.recorder = Recorder(services)
        self.event_log_limits = EventLogLimits(services)
        self.incoming_streams = IncomingStreams(services)
        self.known_messages = KnownMessages(services)
        self.damage = Damage(services, self.recorder)
        self.outgoing_ids = OutgoingIds(services, destinations_max=self.limits.destinations)
        self._outgoing_refill = OutgoingRefill(services, self.damage, self.parts)
        self.answer_limits = AnswerLimits(services)
        self.outgoing = OutgoingQueues(services, self.usage, self.outgoing_ids, self.answer_limits)
        self.answer_limits.connect(self.outgoing.find, self.outgoing_ids.forget_idle)
        self.own_dead_letters = NamedDeadLetterQueues(services, self.outgoing, self.queues)
        services.clock.when_set = self.outgoing.clock_was_set
        self.damage.connect(self.outgoing.arm_resend)

    def _make_names(self) -> None:
        services, settings = self.services, self.services.settings
        self.directory = open_directory(settings.directory, changed=self._directory_changed)
        self.destinations = Destinations(services, self.directory, self.outgoing, self.queues)
        self.resolver = Resolver(
            self.directory,
            Own(services.id, self.destinations.is_local, self.destinations.path_of_guid),
            settings.directory,
            now=services.loop.time,
        )
        self.destinations.connect(self.resolver)
        self.security_answers = SecurityAnswers(
            self.resolver, settings.directory, now=services.loop.time
        )
        self.things = ThingFinder(self.queues, self.destinations, self.resolver)
        self.access_register = AccessRegister(services, self.queues, self.destinations)
        self.access_checks = AccessChecks(services, self.access_register, self.recorder)
        self.local_users = LocalUsers(services, self.access_checks)
        self.registration = Registration(
            services,
            self.directory,
            self.queues,
            self.resolver,
            self.destinations.queue_by_guid,
        )
        self.queues.on_added = self.destinations.forget
        self.own_dead_letters.connect(self.destinations.find_here)

    def keyring(self) -> Keyring:
        """Return the keys of message security; made at the first use, which takes 30 ms."""
        if self._keyring is None:
            from qmd.message_security.keyring import Keyring

            self._keyring = Keyring(self.services.settings.queue_manager.data)
        return self._keyring

    async def reload_directory(self) -> None:
        """Look everything up anew; read the file of a file directory again.  Raises Refusal."""
        self._directory_changed()
        if isinstance(self.directory, Reloadable):
            await self.directory.reload()

    def _directory_changed(self) -> None:
        """Forget what was looked up in the directory; each layer adds what it has looked up."""
        self.resolver.forget()
        self.destinations.forget()
