"""Record `foredraft demo` as the picture in the README: python docs/picture.py docs/demo.svg"""

import sys

from rich.console import Console

from foredraft.cli import demo


def main() -> None:
    console = Console(record=True, width=110, force_terminal=True, color_system="truecolor")
    demo.Console = lambda: console
    demo.demo()
    console.save_svg(sys.argv[1], title="make demo")


if __name__ == "__main__":
    main()
