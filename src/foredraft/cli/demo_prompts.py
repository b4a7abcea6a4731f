"""The prompts of `foredraft demo`: four kinds of text, each with a drafter that suits it."""

from dataclasses import dataclass

from foredraft.core.speculation_config import SpeculationConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoPrompt:
    """One prompt.

    Attributes:
        title: Its kind of text.
        text: What the model is asked, or the text it writes on from.
        chat: Whether `text` is a user's message.
        speculation: How to draft.
        trained: How to draft for a target that the project has a trained head of; none drafts as always.
    """

    title: str
    text: str
    chat: bool
    speculation: SpeculationConfig
    trained: SpeculationConfig | None = None


CODE = '''\
Rename the function moving_average to moving_average_fast.

def moving_average(values, width):
    """Mean of each run of `width` neighbouring values.

    >>> moving_average([1, 2, 3, 4], 2)
    [1.5, 2.5, 3.5]
    """
    if width < 1:
        raise ValueError("width must be at least 1")
    total = sum(values[:width])
    averages = [total / width]
    for index in range(width, len(values)):
        total += values[index] - values[index - width]
        averages.append(total / width)
    return averages'''

FORM = """\
Write this form as JSON.

order_id: B-48213
name: Grace Okafor
email: grace.okafor@example.com
product: bicycle
quantity: 2
price: 349.5
city: Oslo
date: 2026-03-14
member: true
status: shipped"""

PASSAGE = """\
Passage:
The miller had three sons, a mill, a donkey and a cat. When he died, the eldest son took the mill and the second took \
the donkey. The youngest was left with the cat, and he sat down by the road and wondered how he should ever earn his \
bread with nothing but a cat to help him. The cat heard every word of this and asked him for a pair of boots and a \
strong sack with a string. By evening it had caught a fat partridge and carried it straight to the palace of the king.

Quote the sentence that says "wondered"."""

STORY = """\
There was once a poor woodcutter who lived with his wife and his two children at the edge of a great forest. One \
evening, when there was nothing left to eat in the house, the"""

SUFFIX = SpeculationConfig(method="suffix", num_speculative_tokens=7, suffix_decoding_max_spec_factor=2.0)

DEMO_PROMPTS = (
    DemoPrompt(
        title="code",
        text=CODE,
        chat=True,
        speculation=SpeculationConfig(method="ngram", num_speculative_tokens=7),
    ),
    DemoPrompt(
        title="JSON form",
        text=FORM,
        chat=True,
        speculation=SpeculationConfig(method="draft_model", model="tiny-draft", num_speculative_tokens=3),
        trained=SpeculationConfig(method="dflash", num_speculative_tokens=7, tree_size=15),
    ),
    DemoPrompt(
        title="quotation",
        text=PASSAGE,
        chat=True,
        speculation=SUFFIX,
    ),
    DemoPrompt(
        title="story",
        text=STORY,
        chat=False,
        speculation=SUFFIX,
        trained=SpeculationConfig(method="mtp", num_speculative_tokens=3),
    ),
)
