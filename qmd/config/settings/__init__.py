"""Settings of the queue manager: key, default, allowed values and meaning of each.

These declarations are the only source for the loader, the file that `qmd init` writes, and the
manual. Each module has some sections; `Settings` has all of them, in the order of the manual.
An attribute is named as its key in the file, followed by the unit: `ack_timeout` is
`ack_timeout_s`, seconds; `computer` is `computer_bytes`.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any

from qmd.config.settings.clients import AccessSettings as AccessSettings
from qmd.config.settings.clients import ControlSettings as ControlSettings
from qmd.config.settings.clients import RemoteSettings as RemoteSettings
from qmd.config.settings.console import ConsoleSettings as ConsoleSettings
from qmd.config.settings.declaration import Setting as Setting
from qmd.config.settings.declaration import setting as setting
from qmd.config.settings.delivery import DeliverySettings as DeliverySettings
from qmd.config.settings.delivery import TransactionsSettings as TransactionsSettings
from qmd.config.settings.directory import DirectorySettings as DirectorySettings
from qmd.config.settings.doors import AmqpSettings as AmqpSettings
from qmd.config.settings.doors import HttpSettings as HttpSettings
from qmd.config.settings.doors import MetricsSettings as MetricsSettings
from qmd.config.settings.doors import PipelineSettings as PipelineSettings
from qmd.config.settings.doors import SrmpSettings as SrmpSettings
from qmd.config.settings.doors import TriggersSettings as TriggersSettings
from qmd.config.settings.message_security import MessageSecuritySettings as MessageSecuritySettings
from qmd.config.settings.network import ListenSettings as ListenSettings
from qmd.config.settings.network import PeersSettings as PeersSettings
from qmd.config.settings.network import RoutingSettings as RoutingSettings
from qmd.config.settings.queue_manager import AuditLogSettings as AuditLogSettings
from qmd.config.settings.queue_manager import EventsSettings as EventsSettings
from qmd.config.settings.queue_manager import LogSettings as LogSettings
from qmd.config.settings.queue_manager import QueueManagerSettings as QueueManagerSettings
from qmd.config.settings.queue_manager import StorageSettings as StorageSettings
from qmd.config.settings.quotas import MEMORY_BYTES_MAX as MEMORY_BYTES_MAX
from qmd.config.settings.quotas import MEMORY_BYTES_MIN as MEMORY_BYTES_MIN
from qmd.config.settings.quotas import MEMORY_PART as MEMORY_PART
from qmd.config.settings.quotas import Budgets as Budgets
from qmd.config.settings.quotas import ConsequencesSettings as ConsequencesSettings
from qmd.config.settings.quotas import MemorySettings as MemorySettings
from qmd.config.settings.quotas import QuotasSettings as QuotasSettings
from qmd.config.settings.tls import TlsSettings as TlsSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The complete configuration."""

    queue_manager: QueueManagerSettings = field(default_factory=QueueManagerSettings)
    listen: ListenSettings = field(default_factory=ListenSettings)
    peers: PeersSettings = field(default_factory=PeersSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    control: ControlSettings = field(default_factory=ControlSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    quotas: QuotasSettings = field(default_factory=QuotasSettings)
    consequences: ConsequencesSettings = field(default_factory=ConsequencesSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    transactions: TransactionsSettings = field(default_factory=TransactionsSettings)
    directory: DirectorySettings = field(default_factory=DirectorySettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    events: EventsSettings = field(default_factory=EventsSettings)
    audit_log: AuditLogSettings = field(default_factory=AuditLogSettings)
    message_security: MessageSecuritySettings = field(default_factory=MessageSecuritySettings)
    amqp: AmqpSettings = field(default_factory=AmqpSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    triggers: TriggersSettings = field(default_factory=TriggersSettings)
    srmp: SrmpSettings = field(default_factory=SrmpSettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    log: LogSettings = field(default_factory=LogSettings)


SECTIONS: dict[str, type[Any]] = {
    "queue_manager": QueueManagerSettings,
    "listen": ListenSettings,
    "peers": PeersSettings,
    "tls": TlsSettings,
    "routing": RoutingSettings,
    "control": ControlSettings,
    "access": AccessSettings,
    "remote": RemoteSettings,
    "http": HttpSettings,
    "quotas": QuotasSettings,
    "consequences": ConsequencesSettings,
    "memory": MemorySettings,
    "delivery": DeliverySettings,
    "transactions": TransactionsSettings,
    "directory": DirectorySettings,
    "pipeline": PipelineSettings,
    "storage": StorageSettings,
    "events": EventsSettings,
    "audit_log": AuditLogSettings,
    "message_security": MessageSecuritySettings,
    "amqp": AmqpSettings,
    "metrics": MetricsSettings,
    "triggers": TriggersSettings,
    "srmp": SrmpSettings,
    "console": ConsoleSettings,
    "log": LogSettings,
}


def settings_of(section: str) -> dict[str, Setting]:
    """Return the keys of one section, in the order of declaration."""
    found = (_setting(section, item) for item in fields(SECTIONS[section]))
    return {item.key: item for item in found}


def _setting(section: str, item: Field[Any]) -> Setting:
    kind, default, meaning = item.metadata["setting"]
    key = item.name.removesuffix(kind.attribute_suffix)
    return Setting(section, key, item.name, kind, default, meaning)
