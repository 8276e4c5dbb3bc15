"""Help texts: options in named sections, at most a dozen described, the others named; `--help-all` describes all."""

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

import click
import cloup

from treeopt.cli.options import general, printing
from treeopt.terminal import wrapped_command

ADVANCED = "Advanced options"
MOST = 12  # options that a command's --help describes
WIDEST = 24  # characters of choices in the column of names
EXAMPLE = "  "  # before each example in an epilog
ALL = "treeopt.help_all"  # key in a context's meta
OTHERS: Mapping[str, str] = {}


class Command(cloup.Command):
    """A command whose options stand in sections."""

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, str] = OTHERS,
        renamed: Mapping[str, str] = OTHERS,
        **settings: Any,
    ) -> None:
        """Put each option into its section.

        Args:
            args: as for `click.Command`.
            sections: heading -> names of parameters between spaces; the options that none names are advanced. Without
                sections all options stand in one.
            renamed: old name of an option -> its name now; the old one works with a note.
            settings: as for `click.Command`.
        """
        self.renamed = renamed
        settings["params"] = [*settings.get("params", ()), general.quiet()]
        options = [param for param in settings["params"] if isinstance(param, click.Option)]
        for option in options:
            if isinstance(option.type, click.Choice) and option.metavar is None:
                choices = [str(choice) for choice in option.type.choices]
                if len("|".join(choices)) > WIDEST:  # too many for the column of names
                    option.metavar = "NAME"
                    option.help = f"{option.help} One of {', '.join(choices)}."
        by_name = {option.name: option for option in options}
        for heading, names in sections.items():
            group = cloup.OptionGroup(heading)
            for name in names.split():
                by_name.pop(name).group = group  # type: ignore[attr-defined]
        if sections and by_name:
            group = cloup.OptionGroup(ADVANCED)
            for option in by_name.values():
                option.group = group  # type: ignore[attr-defined]
            settings["params"] = [*settings["params"], _help_all()]
        super().__init__(*args, **settings)
        order = [*sections, ADVANCED]
        self.option_groups.sort(key=lambda group: order.index(group.title))
        for group in self.option_groups:
            if group.title != ADVANCED:
                order_in = sections[group.title].split()
                group.options = sorted(group.options, key=lambda option: order_in.index(str(option.name)))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, old names of options as the new ones."""
        for place, argument in enumerate(args):
            name, equals, value = argument.partition("=")
            if name in self.renamed:
                if any(other.partition("=")[0] == self.renamed[name] for other in [*args[:place], *args[place + 1 :]]):
                    raise click.UsageError(f"{name} is {self.renamed[name]}: give it once", ctx)
                printing.say(f"{name} is called {self.renamed[name]} here")
                args[place] = self.renamed[name] + equals + value
        return super().parse_args(ctx, args)

    def get_default_option_group(
        self, ctx: click.Context, is_the_only_visible_option_group: bool = False
    ) -> cloup.OptionGroup:
        """Return the section of options that stand in no other."""
        group = super().get_default_option_group(ctx, is_the_only_visible_option_group)
        if not is_the_only_visible_option_group:
            group.title = "Help"
        return group

    def format_params(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections; the advanced one only names its options unless all are asked for."""
        if ALL in ctx.meta:
            super().format_params(ctx, formatter)
            return
        groups = self.option_groups
        self.option_groups = [group for group in groups if group.title != ADVANCED]
        try:
            super().format_params(ctx, formatter)
        finally:
            self.option_groups = groups
        for group in groups[len(groups) - 1 :]:
            if group.title == ADVANCED:
                names = [max(option.opts, key=len) for option in group.options if not option.hidden]
                formatter.write(f"\n{ADVANCED} (--help-all describes them):\n")
                text = ", ".join(names)
                for row in wrap(text, formatter.width - 2, break_long_words=False, break_on_hyphens=False):
                    formatter.write(f"  {row}\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, broken before options where they are wider than the help text."""
        for line in (self.epilog or "").splitlines():
            if line.startswith(EXAMPLE):
                rows = wrapped_command(line.strip(), formatter.width, indent=2 * EXAMPLE)
            else:
                rows = ["" if line == "\b" else f"  {line}"]
            formatter.write("".join(f"{row}\n" for row in rows))


def _help_all() -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=show,
        help="Show all options and exit.",
    )


def examples(*lines: str) -> str:
    """Return the block of examples that ends a help text.

    >>> print(examples("treeopt doctor").replace(chr(8), "|"))
    |
    Examples:
      treeopt doctor
    """
    return "\n".join(["\b", "Examples:", *(f"{EXAMPLE}{line}" for line in lines)])
