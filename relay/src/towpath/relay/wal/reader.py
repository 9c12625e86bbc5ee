"""
A checked cursor over bytes from outside: reading never runs past the end.

Every read that the bytes cannot answer raises ``MalformedMessageError``; ``finish``
raises it for bytes that nobody asked for.
"""

from struct import Struct
from typing import Final

from towpath.relay.errors import MalformedMessageError

_U8: Final = Struct(">B")
_U16: Final = Struct(">H")
_I32: Final = Struct(">i")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_I64: Final = Struct(">q")


class Reader:
    """Reads big-endian numbers and text from ``data``, beginning at ``at``."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    def u8(self) -> int:
        return self._number(_U8)

    def u16(self) -> int:
        return self._number(_U16)

    def i32(self) -> int:
        return self._number(_I32)

    def u32(self) -> int:
        return self._number(_U32)

    def u64(self) -> int:
        return self._number(_U64)

    def i64(self) -> int:
        return self._number(_I64)

    def text(self) -> str:
        """Read UTF-8 up to a zero byte, and the zero byte."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise MalformedMessageError(self._tell("text without an end"))
        piece = self._data[self._at : end]
        self._at = end + 1
        try:
            return piece.decode()
        except UnicodeDecodeError as error:
            raise MalformedMessageError(self._tell("text is not UTF-8")) from error

    def bytes(self, length: int) -> bytes:
        """Read ``length`` bytes."""
        end = self._at + length
        if end > len(self._data):
            raise MalformedMessageError(self._tell(f"{length} bytes announced"))
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def finish(self) -> None:
        """Make sure that nothing is left."""
        left = len(self._data) - self._at
        if left:
            raise MalformedMessageError(self._tell(f"{left} bytes too many"))

    def _number(self, form: Struct) -> int:
        end = self._at + form.size
        if end > len(self._data):
            raise MalformedMessageError(self._tell("cut short"))
        number: int = form.unpack_from(self._data, self._at)[0]
        self._at = end
        return number

    def _tell(self, what: str) -> str:
        return f"malformed message at byte {self._at} of {len(self._data)}: {what}"
