"""rackwright brings up and keeps up GPU clusters: settings, operations, plan, rehearsal lab."""

__version__ = "0.1.0"
