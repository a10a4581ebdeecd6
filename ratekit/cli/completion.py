"""The command completion: the completion script for a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script by which a shell completes the commands and options of ratekit.

    \b
    Examples:
      eval "$(ratekit completion bash)"        # in ~/.bashrc
      eval "$(ratekit completion zsh)"         # in ~/.zshrc
      ratekit completion fish > ~/.config/fish/completions/ratekit.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"shell {shell!r} is unknown")
    click.echo(kind(context.find_root().command, {}, "ratekit", "_RATEKIT_COMPLETE").source())
