"""The grants of docs/rights.md, executed as they are written there."""

import re
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs/rights.md"


def documented(language: str, section: str = "") -> list[str]:
    """Return the code blocks in a language, from a section or from the whole page."""
    text = _PAGE.read_text(encoding="utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found, f"there is no code block in {language}: {section or _PAGE.name}"
    return found


def search_rights(who: str) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """
    Return the actions of each documented call of sink, verifier or operator.

    Each action has its scope: ``cluster``, ``both``, or none for the indexes alone.
    """
    rows = re.findall(
        r"^\| `(\w+) (/\S*)` \| (.*) \| ([a-z, ]+) \|$",
        _PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return {
        (verb, path): re.findall(r"`(.*?)`(?: \((\w+)\))?", actions)
        for verb, path, actions, whose in rows
        if who in whose.split(", ")
    }


def search_role(route: str, *who: str) -> dict[str, object]:
    """Return the role of the security plugin that allows the documented actions."""
    named = (search_rights(one) for one in who)
    actions = {one for rights in named for some in rights.values() for one in some}
    return {
        "cluster_permissions": sorted(action for action, scope in actions if scope),
        "index_permissions": [
            {
                "index_patterns": [route, f"{route}-*"],
                "allowed_actions": sorted(
                    action for action, scope in actions if scope != "cluster"
                ),
            }
        ],
    }


def search_calls(who: str) -> set[tuple[str, str]]:
    """Return the documented calls of the sink, the verifier or the operator."""
    return set(search_rights(who))


def command_for(user: str) -> list[str]:
    """Return the arguments of the documented command that creates a cache user."""
    lines = (line for block in documented("redis") for line in block.splitlines())
    return next(line.split() for line in lines if line.split()[2] == user)
