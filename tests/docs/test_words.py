"""Pages, public docstrings and messages have none of the phrases of `tools.words`."""

from __future__ import annotations

import ast

import pytest

from tools import words

# For each phrase, sentences that must be found.
WRONG = {
    "that holds": "The page names the test that holds it.",
    "what holds": "What holds it is below?",
    "held to": "Draws are held to exact answers.",
    "bits": "Both give the same bits.",
    "beside": "Ribbit beside NumPyro.",
    "by hand": "The figure was written by hand.",
    "nothing": "HMC with nothing set converges.",
    "go on": "The run goes on where it ended.",
    "law": "Draws have their law.",
    "knobs": "Each knob has a default.",
    "house": "Every room has its tests.",
    "rivals": "Its rival takes longer.",
    "other code": "The row is of other code.",
    "verdict": "The verdict is good.",
    "judged": "Parameters are judged.",
    "ever": "Whoever asks for it waits.",
    "nobody": "A warning that nobody sees.",
    "that of": "The sd is that of the prior.",
    "what is there": "It is added to what is there.",
    "where": "The prior's sd where none is given.",
    "is none": "A raw table is none.",
    "stands": "The code runs as it stands.",
    "so do": "Chains stop, and so do fits.",
    "crew": "A crew waits.",
}


def texts(text: str) -> list[str]:
    return [found.text for found in words.findings("page.md", words.page(text))]


def test_words_are_plain() -> None:
    found = words.check([words.ROOT])
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_phrase_is_found(text: str) -> None:
    assert len(texts(text)) == 1
    assert len(texts(text.replace(" ", "\n"))) == 1


def test_every_phrase_has_an_example() -> None:
    left = [
        phrase
        for phrase, advice in words.PHRASES.items()
        if not any(f": {advice}" in found for text in WRONG.values() for found in texts(text))
    ]
    assert not left


@pytest.mark.parametrize("start", ["Of", "What", "Which", "Where", "Who", "Whose"])
def test_a_relative_word_starts_no_sentence(start: str) -> None:
    assert texts(f"It runs. {start} this concerns is below.")
    assert texts(f"## {start} this concerns")
    assert not texts(f"It runs. {start} is this? Read on.")


def test_a_long_sentence_is_found() -> None:
    line = "a " * words.LONGEST + "b"
    assert not texts(line.removesuffix(" b") + ".")
    assert texts(line + ".")
    assert texts(line.replace(" ", "\n"))
    assert not texts("A b c. " * 20)
    assert not texts("- a b c\n" * 20)
    assert not texts(f"```text\n{line}\n```\n\n<!-- {line} -->\n")
    assert texts(f"```{{note}}\n{line}\n```\n")


def test_users_read_of_gpus() -> None:
    blocks = list(words.page("The device has memory."))
    assert [f.line for f in words.findings("a.md", blocks, users=True)] == [1]
    assert not list(words.findings("a.md", blocks))


def test_code_links_and_laws_of_nature_are_fine() -> None:
    assert not texts("`beside`, [text](rooms.md), <https://example.org/rooms>, $law$, 64 bits")
    assert not texts("a power law, the law of large numbers, housing, where $x$ is the input")
    assert not texts("```python\nknobs = 1\n```\n\n<!-- run\nknobs = 1\n-->\n")


def test_a_finding_has_its_line() -> None:
    found = list(words.findings("page.md", words.page("# A\n\nb\nc beside d\n\n| a | knobs |\n")))
    assert [finding.line for finding in found] == [4, 6]


def test_a_docstring_is_read() -> None:
    code = '''
class Seen:
    """Return it.

    >>> knobs = 1
    """

    def method(self):
        """Return that of x."""

    def _inner(self):
        """Return that of x."""

def unseen():
    """Return that of x."""
'''
    blocks = list(words.docstrings(ast.parse(code), {"Seen"}, module=False))
    found = list(words.findings("a.py", blocks))
    assert [finding.line for finding in found] == [9]


def test_public_docstrings_include_bases() -> None:
    trees = {path: words._syntax(path) for path in words.PACKAGE.rglob("*.py")}
    names = words._public(trees)
    assert {"HMC", "Sampler", "Posterior", "Normal", "Dense", "Draws", "from_numpyro"} <= names


@pytest.mark.parametrize(
    "code",
    [
        'raise ValueError(f"[HMC] expected {name} as that of {other}")',
        'warnings.warn("chains " "that nobody sees")',
        'TEXT = {"a": "all knobs"}',
    ],
)
def test_a_message_is_read(code: str) -> None:
    blocks = list(words.messages(ast.parse(code)))
    assert list(words.findings("a.py", blocks))
    assert not list(words.messages(ast.parse(f'"""{code[:9]} knobs."""')))
