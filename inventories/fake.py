"""Scripted hosts that need nothing: `pyinfra inventories/fake.py deploys/cuda.py --dry`, or `rackwright plan` on it."""

from rackwright.scripted import hosts as _hosts

fake = _hosts()
