# SPDX-License-Identifier: Apache-2.0
"""Every message that docs/how-to/troubleshooting.md explains is one that the sources have."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/how-to/troubleshooting.md"
LITERALS = re.compile(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+')
CONVERSION = re.compile(r"%[-+ #0]*[\d.*]*(?:ll|z|l|h)*[a-zA-Z]")


def messages():
    """A message of Box is a heading that is nothing but code."""
    return re.findall(r"^### `(.+)`$", PAGE.read_text(), re.M)


def literals():
    """Texts of the sources, adjacent ones joined as the compiler does; each conversion is a gap."""
    for path in sorted((ROOT / "src").rglob("*.c")):
        for run in LITERALS.findall(path.read_text()):
            text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', run)).replace('\\"', '"')
            yield CONVERSION.sub("\0", text)


def pattern(message):
    """The words in their order, within one text; … is a gap, which other words may fill."""
    parts = [re.escape(part) for part in message.split("…")]
    return re.compile("[^\n]*?".join(parts).strip())


def missing(wanted, texts):
    return [message for message in wanted if not any(pattern(message).search(text) for text in texts)]


def test_every_message_of_the_page_is_in_the_sources():
    texts = list(literals())
    assert len(texts) > 3000 and len(messages()) > 50
    assert missing(messages(), texts) == []
    # It tells when the words of one change.
    assert missing(["boxd did not begin"], texts) == ["boxd did not begin"]


def test_every_message_has_something_to_do():
    sections = re.split(r"^##+ ", PAGE.read_text(), flags=re.M)
    silent = [text.splitlines()[0] for text in sections if text.startswith("`") and "*Do.*" not in text
              and "what to use instead" not in text]
    assert silent == []
