"""What every model and every answer of a node is made of.

A reading is never just `None`: "not there", "cannot tell" and "nobody asked" are different values.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")

Status = Literal["ok", "absent", "unsupported", "error", "timeout", "not_asked", "unknown"]


class Model(BaseModel):
    """A frozen value; bytes become base64 in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    def to_json(self) -> dict[str, Any]:
        """Return the value as plain JSON; pyinfra's `fact --json` calls this."""
        return self.model_dump(mode="json")


class Reading(Model, Generic[T]):
    """One answer of a node.

    `absent` alone means "not there yet". `error` and `timeout` mean that it cannot be told; `unknown` that an
    earlier step will decide it.
    """

    status: Status
    value: T | None = None
    reason: str = ""

    @classmethod
    def ok(cls, value: T) -> Reading[T]:
        """Return the reading of a value."""
        # The parsers have built and checked the value: validating thousands of packages again would only cost time.
        return cls.model_construct(status="ok", value=value, reason="")

    @classmethod
    def absent(cls, reason: str = "") -> Reading[T]:
        """Return the reading of something that is not there."""
        return cls(status="absent", reason=reason)

    @classmethod
    def error(cls, reason: str) -> Reading[T]:
        """Return the reading of something that could not be read."""
        return cls(status="error", reason=reason)

    @classmethod
    def timeout(cls, reason: str) -> Reading[T]:
        """Return the reading of a tool that did not answer in time."""
        return cls(status="timeout", reason=reason)

    @classmethod
    def unknown(cls, reason: str) -> Reading[T]:
        """Return the reading of what a later step decides, such as "after cuda.toolkit"."""
        return cls(status="unknown", reason=reason)

    @property
    def is_ok(self) -> bool:
        """Whether there is a value."""
        return self.status == "ok"

    @property
    def is_absent(self) -> bool:
        """Whether the thing is not there."""
        return self.status == "absent"

    @property
    def is_unknown(self) -> bool:
        """Whether an earlier step decides it."""
        return self.status == "unknown"

    def to_json(self) -> dict[str, Any]:
        """Return the reading as plain JSON, whatever its value is made of."""
        return {"status": self.status, "value": _plain(self.value), "reason": self.reason}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    return value
