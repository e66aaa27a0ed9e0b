"""The `gpucourse` command. Exit 0: done; 1: a lesson or a check failed; 2: bad usage. Errors are one line."""

import sys
from importlib import import_module

import click

from gpucourse import __version__
from gpucourse.errors import BadInput, CourseError, Missing, unknown

# name → (module that holds `command`, what --help says); a module is imported when its command is called
COMMANDS = {
    "doctor": ("doctor", "Devices, ceilings, what each lesson will run on; what is missing and how to get it."),
    "lab": ("lab", "JupyterLab in notebooks/."),
    "run": ("run", "Run lessons in a batch and write one report."),
    "report": ("report", "report.html of one run, or of several machines side by side."),
    "progress": ("progress", "What you have answered, lesson by lesson, and how far off your guesses were."),
    "predict": ("predicting", "Memory, traffic and time of a training step, before it runs."),
    "search": ("searching", "The layouts of N GPUs that hold a training run, best first, each with its reason."),
    "serve-plan": ("serve_plan", "The KV cache that fits beside a model on a GPU, and the requests it holds."),
    "mfu": ("mfu", "From tokens a second to the share of the GPU's peak, MFU and HFU."),
    "build": ("build", "Write the notebooks from their sources; --check says which are out of step."),
}


class Commands(click.Group):
    def list_commands(self, context):
        return list(COMMANDS)

    def get_command(self, context, name):
        if name not in COMMANDS:
            raise unknown("command", name, COMMANDS)
        return import_module(f"gpucourse.course.{COMMANDS[name][0]}").command

    def format_commands(self, context, formatter):
        with formatter.section("Commands"):
            formatter.write_dl([(name, says) for name, (_, says) in COMMANDS.items()])


@click.command(cls=Commands)
@click.version_option(__version__)
def course():
    """Predict what a GPU will do, run it, and see the two side by side."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        return course.main(arguments, prog_name="gpucourse", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as help_page:
        click.echo(help_page.format_message())
        return 2
    except click.ClickException as error:
        return _say(error.format_message(), error.exit_code)
    except (BadInput, Missing) as error:
        return _say(str(error), 2)
    except CourseError as error:
        return _say(str(error), 1)
    except SystemExit as exit:
        return int(exit.code or 0)
    except (click.Abort, KeyboardInterrupt):
        return _say("interrupted", 130)


def _say(message: str, code: int) -> int:
    click.echo("gpucourse: " + " ".join(message.split()), err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
