"""A model that is changed, what there is in it to choose from, and hostile values to put in."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from google.protobuf.message import Message
from onnx import ModelProto, defs

from benchmarks.fuzz.encoding import NUMBERS
from benchmarks.fuzz.models import DATA_BYTES, DATA_FILE

NAMES = (
    *("", " ", "\n", "a\nb", "\r", "\t", "\0", "a\0b", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07"),
    *("\u202eevil", "\u200b", "\x85", "\u2028", "é", "界" * 40, "😀", "\ufeff", "\x7f", "\x9b1m"),
    *("[bold red]x[/]", "[/]", "</script><img src=x onerror=alert(1)>", "<b>", "&amp;", "a|b"),
    *("`", "```", "**x**", "[x](y)", "::", "local::Twice", "/", "a/b", "//", "..", "../../etc"),
    *("%s", "{0}", "{}", "\\", "'", '"', "$x$", "#", "-", "--out", "true", "0", "-1", "1e999"),
    *("w0", "x", "y", "n" * 3000),
)
LOCATIONS = (
    *(DATA_FILE, f"./{DATA_FILE}", f"folder/../{DATA_FILE}", "short.bin", "missing.bin", "folder"),
    *("model.onnx", "pipe", "link", "../w.bin", "/etc/passwd", "/dev/zero", "", ".", "..", "\0"),
    *("a" * 300, f"folder\\{DATA_FILE}", "*", "http://localhost/w.bin", "empty.bin", "w.bin\n"),
)
OFFSETS = (
    *("0", "1", "1024", "4096", str(DATA_BYTES), str(DATA_BYTES - 1), "-1", "-4096", "", " 1", "x"),
    *(
        "1e3",
        "0x10",
        str(2**62),
        str(2**63),
        str(2**64),
        "9" * 30,
        "9" * 5000,
        "\u0661",
        "1_000",
        "+5",
    ),
)
OPERATORS = sorted({(schema.domain, schema.name) for schema in defs.get_all_schemas()})
ATTRIBUTES = sorted({name for schema in defs.get_all_schemas() for name in schema.attributes})


class Target:
    """A model that is changed in place, and what there is in it to choose from."""

    def __init__(self, model: ModelProto, bases: Sequence[ModelProto], random: Random) -> None:
        self.model = model
        self.bases = bases
        self.random = random
        self.messages = list(messages_of(model))

    def any(self, kind: type[Any]) -> Any:
        """Return a message of `kind`; a new one, which is nowhere in the model, if it has none."""
        return self.random.choice(
            [each for each in self.messages if type(each) is kind] or [kind()]
        )

    def other(self, kind: type[Any]) -> Any:
        """Return a message of `kind` of any base model."""
        found = [each for each in messages_of(self.random.choice(self.bases)) if type(each) is kind]
        return self.random.choice(found or [kind()])

    def number(self) -> int:
        """Return a number that is rarely one that makes sense."""
        return self.random.choice(NUMBERS)

    def name(self) -> str:
        """Return a hostile name, or one that something in the model has."""
        if self.random.random() < 0.5:
            return self.random.choice(NAMES)
        return text_in(self.random, self.messages) or ""


def messages_of(message: Message) -> Iterator[Message]:
    """Yield `message` and all in it."""
    waiting = [message]
    while waiting:
        found = waiting.pop()
        yield found
        for field, value in found.ListFields():
            if field.message_type is not None:
                waiting += [value] if isinstance(value, Message) else list(value)


def texts_in(messages: Sequence[Message]) -> Iterator[tuple[Message, str, int | None]]:
    """Yield the places of all texts: message, field, and index in a list."""
    for message in messages:
        for field, value in message.ListFields():
            if field.type == field.TYPE_STRING:
                if isinstance(value, str):
                    yield message, field.name, None
                else:
                    yield from ((message, field.name, index) for index in range(len(value)))


def text_in(random: Random, messages: Sequence[Message]) -> str | None:
    places = list(texts_in(messages))
    if not places:
        return None
    message, field, index = random.choice(places)
    value = getattr(message, field)
    return str(value if index is None else value[index])


def put(message: Message, field: str, index: int | None, text: str) -> None:
    if index is None:
        setattr(message, field, text)
    else:
        getattr(message, field)[index] = text
