"""completion: what a shell needs to complete the words of this program."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(short_help="Print the completion for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete the words of ratekit.

    \b
    Examples:
      eval "$(ratekit completion bash)"        # in ~/.bashrc
      eval "$(ratekit completion zsh)"         # in ~/.zshrc
      ratekit completion fish > ~/.config/fish/completions/ratekit.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"shell {shell!r} is not known")
    click.echo(kind(context.find_root().command, {}, "ratekit", "_RATEKIT_COMPLETE").source())
