"""The fields of one config.json, checked as they are read, and remembered.

What nothing has read in the end may announce a feature that the decoders lack, and
`lts.models.features` looks at just that.
"""

from collections.abc import Mapping
from typing import Any

from lts.models.checks import check_number, check_size, fault


class Fields:
    """A parsed object of fields; every method that reads one marks it as read.

    Args:
      values: the object. A field that is null counts as absent.
      name: what messages call the model.
    """

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values, self.name = values, name
        self._read: set[str] = set()

    def get(self, field: str, default: Any = None) -> Any:
        """The field as it is, or `default` where it is absent."""
        self._read.add(field)
        value = self.values.get(field)
        return default if value is None else value

    def needed(self, field: str) -> Any:
        """The field as it is.

        Raises:
          ValueError: if it is absent.
        """
        value = self.get(field)
        if value is None:
            raise self.fault(f"field '{field}' is missing")
        return value

    def name_of(self, field: str) -> str:
        """A string that has to be there."""
        value = self.needed(field)
        if not isinstance(value, str):
            raise self.fault(f"field '{field}' must be a string, got {value!r}")
        return value

    def size(self, field: str, default: int | None = None) -> int:
        """A positive integer, needed where there is no default."""
        value = self.needed(field) if default is None else self.get(field, default)
        check_size(value, field, self.name)
        return value

    def count(self, field: str, default: int | None = None) -> int:
        """As `size`, but zero is a number, too."""
        value = self.needed(field) if default is None else self.get(field, default)
        return value if value == 0 and value is not False else self.size(field, default)

    def number(self, field: str, default: float) -> float:
        """A positive number."""
        value = self.get(field, default)
        check_number(value, field, self.name)
        return value

    def flag(self, field: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(field, default)
        if not isinstance(value, bool):
            raise self.fault(f"field '{field}' must be true or false, got {value!r}")
        return value

    def object(self, field: str) -> Mapping[str, Any]:
        """An object; an empty one where it is absent."""
        value = self.get(field, {})
        if not isinstance(value, Mapping):
            raise self.fault(f"field '{field}' must be an object, got {value!r}")
        return value

    def list(self, field: str, length: int | None = None) -> list[Any] | None:
        """A list, of `length` entries or more; None where it is absent or empty."""
        value = self.get(field)
        if value is not None and not isinstance(value, list):
            raise self.fault(f"field '{field}' must be a list, got {value!r}")
        if not value:
            return None
        if length is not None and len(value) < length:
            raise self.fault(
                f"field '{field}' has {len(value)} entries for {length} layers"
            )
        return value

    def only(self, field: str, *accepted: Any) -> None:
        """Reads a field that may be absent, or have one of the accepted values.

        Raises:
          ValueError: if it says anything else.
        """
        value = self.get(field)
        if value is not None and value not in accepted:
            have = " or ".join(repr(known) for known in accepted)
            raise self.fault(f"{field}: {value!r} is not supported, only {have} is")

    def ignore(self, *fields: str) -> None:
        """Marks fields that change neither what a step costs nor what it computes."""
        self._read.update(fields)

    @property
    def unread(self) -> dict[str, Any]:
        """Fields that nothing has read and that are not null, false, zero or empty."""
        return {
            field: value
            for field, value in self.values.items()
            if value and field not in self._read
        }

    def fault(self, what: str) -> ValueError:
        """The error of this config, in one line."""
        return fault(self.name, what)
