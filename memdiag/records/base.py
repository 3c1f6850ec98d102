"""What every record shares: frozen, and strict about unknown fields.

msgspec does not hand `kw_only` down: each record says it itself.
"""

import msgspec


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all records; sizes are `int` bytes, times and durations `float` seconds."""
