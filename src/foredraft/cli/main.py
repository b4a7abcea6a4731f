"""The `foredraft` command: its subcommands, and how mistakes leave it."""

import os
import sys

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from foredraft import __version__
from foredraft.core.errors import UserError

USER_MISTAKE, BROKEN_PIPE, INTERRUPTED = 2, 1, 130

app = App(
    name="foredraft",
    help="Exact speculative decoding: the text your model would write, sooner.",
    version=__version__,
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,
)
# Named, not imported: a command pays for its imports only when it runs.
app.command("foredraft.cli.generate:generate", name="generate", help="Write on from a prompt, sooner, and show how.")
app.command("foredraft.cli.serve:serve", name="serve", help="Serve a model over HTTP as OpenAI's API does.")
app.command("foredraft.cli.inspect:inspect", name="inspect", help="Say what a model is and which drafters fit it.")
app.command("foredraft.cli.export:export", name="export", help="Write a head in the format vLLM or SGLang loads.")
app.command("foredraft.cli.train:train", name="train", help="Teach a drafter to guess what a model writes.")
app.command("foredraft.cli.demo:demo", name="demo", help="Four built-in prompts, with and without speculation.")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, `sys.argv` when none is given; returns the exit code."""
    try:
        app(arguments, print_error=False, exit_on_error=False, result_action="return_value")
        sys.stdout.flush()
    except (UserError, CycloptsError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return USER_MISTAKE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit must not fail again
        return BROKEN_PIPE
    return 0


def one_line(error: Exception) -> str:
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected {' '.join(error.unused_tokens)!r}; a prompt of several words needs quotes"
    return " ".join(str(error).split())
