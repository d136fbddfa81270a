"""The child that `gpus.ask_gpus` starts: facts of the GPUs whose numbers are its arguments, as JSON on stdout."""

import sys

from ..errors import StartupError
from ..gpus import facts_to_json
from .runtime import gpu_facts


def main() -> None:
    """Answer, and end with exit code 0 whether there are such GPUs or not."""
    try:
        answer = facts_to_json([gpu_facts(int(ordinal)) for ordinal in sys.argv[1:]])
    except StartupError as error:
        answer = facts_to_json([], error.message)
    sys.stdout.write(f"{answer}\n")


if __name__ == "__main__":
    main()
