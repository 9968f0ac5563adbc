"""Scripts that run in several processes at once."""

import subprocess
import sys


def run_together(script: str, *arguments: object, copies: int = 3) -> tuple[list[str], list[list[str]]]:
    """Run copies of a script that prints a line, waits for one, prints another and waits until all have done so.

    Returns:
        The first lines, and the words of the second ones.
    """
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", script, *map(str, arguments)]
    children = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(copies)]
    first = [child.stdout.readline() for child in children]
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    second = [child.stdout.readline().split() for child in children]
    for child in children:
        child.communicate("\n", timeout=300)
    return first, second
