"""The rehearsal lab: real systemd, sshd, apt and dpkg hosts in network namespaces of one machine."""

from rackwright.lab.lab import HostSpec, Lab, LabHost

__all__ = ["HostSpec", "Lab", "LabHost"]
