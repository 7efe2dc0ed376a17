"""Taking a look at a node through pyinfra's connector: one exec, with sudo, bounded in time.

A node that cannot be looked at (gone, no sudo, no answer) raises `LookFailed` with the cure; one section that
fails is a reading like any other.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.host import Host

from rackwright.change import LookFailed, Refusal
from rackwright.config import resolve_secret
from rackwright.connections import FAILURES, tune
from rackwright.errors import RackwrightError
from rackwright_facts.look import Look, Section, answers, script, script_limit_s


def take(
    host: Host,
    sections: Sequence[Section[Any]],
    arguments: Mapping[str, Any],
    *,
    wait_for_packages_s: int = 0,
) -> Look:
    """Ask `sections` of `host` in one exec. `arguments` are pyinfra's connector arguments (`_sudo` and the like)."""
    tune(host)
    _provide_sudo_password(host)
    text = script(sections, wait_for_packages_s=wait_for_packages_s)
    options = {**arguments, "_shell_executable": "bash"}
    options["_timeout"] = script_limit_s(sections, wait_for_packages_s=wait_for_packages_s)
    options.pop("_success_exit_codes", None)
    password = options.get("_sudo_password") or host.connector_data.get("prompted_sudo_password")
    command = StringCommand(text)
    by_sudo = bool(options.get("_sudo"))
    if by_sudo and not password:
        command = _without_prompt(text, options)
    try:
        done, output = host.run_shell_command(command, print_output=False, print_input=False, **options)
    except FAILURES as error:
        raise LookFailed(
            Refusal(
                what=f"no answer: {error or type(error).__name__}",
                where=host.name,
                fix="see whether the host is up and reachable, then run the same command again for it",
            ),
            unreachable=True,
        ) from error
    look = answers(sections, output.stdout_lines)
    if all(reading.status == "error" for reading in look.readings.values()) and sections:
        lines = [line for line in output.stderr_lines if line.strip()]
        said = next((line for line in lines if line.startswith("sudo:")), lines[-1] if lines else "")
        if by_sudo and (not done or "sudo" in said):
            raise LookFailed(_no_sudo(host, said, has_password=bool(password)))
        if not done:
            raise LookFailed(
                Refusal(
                    what=f"the host cannot run a script: {said or 'no output'}",
                    where=host.name,
                    fix="it needs bash, coreutils and a writable /run or /tmp",
                )
            )
    return look


def _without_prompt(text: str, options: dict[str, Any]) -> StringCommand:
    # pyinfra asks for a password when it reads sudo's English message, and then waits at a terminal that may not
    # be there. The exit status says the same in every language; 0 keeps pyinfra from looking at the message.
    user = f"-u {shlex.quote(options['_sudo_user'])} " if options.get("_sudo_user") else ""
    options.update({"_sudo": False, "_sudo_user": None, "_shell_executable": "sh"})
    return StringCommand(f"LC_ALL=C sudo -H -n {user}bash -c", QuoteString(text), "|| echo sudo failed >&2")


def _no_sudo(host: Host, said: str, *, has_password: bool) -> Refusal:
    if has_password:
        what = "sudo did not take the password that the settings name"
        fix = "check the value behind ssh.sudo_password; it is used as it is, without quotes"
    else:
        what = "sudo needs a password here, or does not allow this user"
        fix = "set ssh.sudo_password to env:NAME or file:PATH in the settings, or allow NOPASSWD for this user"
    return Refusal(what=what, where=f"{host.name}: {said.strip()}" if said else host.name, fix=fix)


def _provide_sudo_password(host: Host) -> None:
    """Put the sudo password where pyinfra looks for it; it is never part of host data, which pyinfra prints."""
    reference = host.data.get("rackwright_sudo_password")
    if not reference or host.connector_data.get("prompted_sudo_password"):
        return
    try:
        host.connector_data["prompted_sudo_password"] = resolve_secret(reference)
    except RackwrightError as error:
        problem = error.problems[0]
        raise LookFailed(Refusal(what=problem.what, where=f"{host.name}: {problem.where}", fix=problem.fix)) from error
