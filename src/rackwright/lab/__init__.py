"""The rehearsal lab: real systemd, sshd, apt and dpkg hosts in network namespaces of one machine."""
