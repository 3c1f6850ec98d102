"""The file of licences: each text once, with its packages and their notices."""

import json
from pathlib import Path

import pytest

from benchmarks.javascript_licences import Package, licence_text, packages_in, script_version

GRANT = "Permission is hereby granted, free of charge."


def test_the_version_is_read_from_the_header() -> None:
    assert script_version("/**\n* plotly.js v4.1.1\n* Copyright") == "4.1.1"
    with pytest.raises(ValueError, match="no header"):
        script_version("(function () {})()")


def test_equal_texts_are_written_once_and_every_notice_stays() -> None:
    text = licence_text(
        "1.2.3",
        [
            Package("a", "1.0", "MIT", (f"MIT License\n\nCopyright (c) 2001 Ann\n\n{GRANT}\n",)),
            Package("b", "2.0", "MIT", (f"The MIT License (MIT)\nCopyright 2002 Bob\n{GRANT}",)),
            Package("c", "3.0", "ISC", ("ISC License\n\nCopyright (c) Cy\n\nOther terms.",)),
            Package("d", "4.0", "MIT", ()),
        ],
    )
    assert text.startswith("Licences of plotly.js 1.2.3,")
    assert text.count(GRANT) == 1
    for notice in ("Copyright (c) 2001 Ann", "Copyright 2002 Bob", "Copyright (c) Cy"):
        assert notice in text
    assert "Other terms." in text
    assert "d 4.0: MIT" in text


def test_packages_are_found_and_their_parts_are_not(tmp_path: Path) -> None:
    for folder, facts in {
        "one": {"name": "one", "version": "1.0", "license": "MIT"},
        "one/dist": {"type": "module"},
        "one/node_modules/two": {"name": "two", "version": "2.0", "licenses": [{"type": "BSD"}]},
    }.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "package.json").write_text(json.dumps(facts))
    (tmp_path / "one" / "LICENSE.md").write_text("text")
    assert packages_in(tmp_path) == [
        Package("one", "1.0", "MIT", ("text",)),
        Package("two", "2.0", "BSD", ()),
    ]
