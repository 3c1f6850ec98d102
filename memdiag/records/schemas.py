"""The JSON Schemas of the records, generated from them and kept beside this file.

``python -m memdiag.records.schemas`` writes them anew after a record has changed.
"""

from pathlib import Path

from memdiag.records.attribution import Attribution
from memdiag.records.base import Record
from memdiag.records.codec import json_schema
from memdiag.records.finding import Check
from memdiag.records.fix import Fix
from memdiag.records.inventory import Inventory
from memdiag.records.profile import Profile

RECORDS: dict[str, type[Record]] = {
    "memdiag.attribution-1": Attribution,
    "memdiag.check-1": Check,
    "memdiag.fix-1": Fix,
    "memdiag.inventory-1": Inventory,
    "memdiag.profile-1": Profile,
}


def path_of(name: str) -> Path:
    """Return where the schema called `name` is kept."""
    return Path(__file__).with_name(f"{name}.schema.json")


if __name__ == "__main__":
    for name, kind in RECORDS.items():
        path_of(name).write_text(json_schema(kind))
