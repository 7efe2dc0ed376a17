"""The rehearsal lab: real systemd, sshd, apt and dpkg hosts in network namespaces of one machine."""

from rackwright.lab.lab import Lab, LabHost
from rackwright.lab.papers import HostSpec

__all__ = ["HostSpec", "Lab", "LabHost"]
