"""Names that users may give to their files, many of which begin as memdiag's own do."""

import random

_STARTS = ("memdiag", ".memdiag", "Memdiag", "my-memdiag", "memdiag-run", "memdiag-watch", "notes")
_WORDS = ("results", "notes", "weight", "old", "v2", "bert", "model", "x", "tmp", "final copy")
_ENDS = ("", "", ".onnx", ".data", ".txt", ".json", ".onnx.data", ".bak", ".d")


def user_names(count: int, seed: int = 0) -> list[str]:
    """Return `count` different names: words, dates, process numbers and hashes, in any order."""
    chosen = random.Random(seed)

    def part() -> str:
        digits = chosen.choice((8, 16, 32))
        return chosen.choice(
            (
                chosen.choice(_WORDS),
                str(chosen.randrange(1, 100_000)),
                f"{chosen.randrange(2000, 2030)}{chosen.randrange(1, 13):02}",
                f"{chosen.getrandbits(4 * digits):0{digits}x}",
            )
        )

    found: dict[str, None] = {}
    while len(found) < count:
        parts = [chosen.choice(_STARTS), *(part() for _ in range(chosen.randrange(1, 6)))]
        found[chosen.choice("---_.").join(parts) + chosen.choice(_ENDS)] = None
    return list(found)
