"""``memdiag explain``: print the documentation of a rule, rewrite or session option."""

from argparse import ArgumentParser, Namespace

from memdiag.cli import EXIT_CLEAN

ARGUMENTS = "[NAME]"


def configure(parser: ArgumentParser) -> None:
    """Add the argument for the name."""
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="The name or code of a rule, or the name of a rewrite or of an option of a session;"
        " without it, all rules are listed.",
    )


def run(options: Namespace) -> int:
    """Explain a rule, a rewrite or a session option.

    A rule: its waste, the reason why this costs memory, and the remedies. A rewrite or an option:
    what it does, what it costs, and how it is set. Several names as in a table of options, such as
    "rewrite + arena-off", are explained one after the other. Without a name, the rules of memdiag
    check and memdiag profile are listed, and those of memdiag run (MD7).
    """
    from difflib import get_close_matches

    from memdiag.cli.output import print_markdown
    from memdiag.errors import UsageError
    from memdiag.reports.remedy_pages import remedy_page, remedy_page_names
    from memdiag.reports.rule_pages import all_detectors, rule_page
    from memdiag.rules.rule import find_by_name

    if options.name is None:
        _list_rules()
        return EXIT_CLEAN
    texts = []
    for name in options.name.split(" + "):
        try:
            text = rule_page(find_by_name(name, all_detectors()))
        except UsageError as error:
            text = remedy_page(name)
            names = [*(detector.rule.name for detector in all_detectors()), *remedy_page_names()]
            similar_names = get_close_matches(name, names, n=1)
            if not text and similar_names:
                message = f"unknown name {name!r}. Did you mean {similar_names[0]}?"
                raise UsageError(message) from error
            if not text:
                rules = ", ".join(detector.rule.name for detector in all_detectors())
                raise UsageError(
                    f"unknown name {name!r}. Use a remedy, an option or an optimizer that an output"
                    f" names, or a rule: {rules}."
                ) from error
        texts.append(text)
    print_markdown("\n".join(texts))
    return EXIT_CLEAN


def _list_rules() -> None:
    from memdiag.reports.rule_pages import all_detectors

    rules = [detector.rule for detector in all_detectors()]
    width = max(len(rule.name) for rule in rules)
    for rule in rules:
        print(f"{rule.code}  {rule.name:<{width}}  {rule.summary}")
