"""The fields by which a TensorProto refers to bytes in a file: its external data."""

from memdiag.graph.fields import LENGTH

EXTERNAL_DATA, DATA_LOCATION, EXTERNAL = 13, 14, 1
"""The numbers of the fields, and the location that is not the default."""


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_IS_EXTERNAL = _encode_varint(DATA_LOCATION << 3) + bytes([EXTERNAL])


def length_field(number: int, content: bytes) -> bytes:
    """Return a field that has a length, such as a message inside another."""
    return _encode_varint(number << 3 | LENGTH) + _encode_varint(len(content)) + content


def _entry(key: bytes, value: bytes) -> bytes:
    """Return an entry of a TensorProto's external_data."""
    return length_field(EXTERNAL_DATA, length_field(1, key) + length_field(2, value))


def location_entry(location: str) -> bytes:
    """Return the entry of a TensorProto's external_data that names the file."""
    return _entry(b"location", location.encode())


def reference(location: bytes, offset: int, length: int) -> bytes:
    """Return the fields that make a TensorProto refer to `length` bytes at `offset`.

    `location` is the entry that names the file.
    """
    offset_entry = _entry(b"offset", str(offset).encode())
    length_entry = _entry(b"length", str(length).encode())
    return location + offset_entry + length_entry + _IS_EXTERNAL
