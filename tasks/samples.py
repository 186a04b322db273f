"""Word problems in GSM8K's form, made from templates: the embedded data of the demo and of the tests.

    Mia has 4 boxes with 7 shells in each. How many shells does she have?
    Mia has 4*7=<<4*7=28>>28 shells.
    #### 28

A problem is a template filled with a person, sometimes a friend, a thing, and small numbers. Each template numbers all
the problems that it can make, so drawing different numbers gives different problems, and how many there are is known.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from tasks.config import SampleSettings
from tasks.errors import UserError

SHE = "Anna Bella Clara Daisy Elena Fiona Grace Hanna Ivy Julia Kate Lucy Mia Nora Olivia Paula Rosa Sarah Tina Zoe"
HE = "Adam Ben Carl David Ethan Felix George Hugo Ian Jack Kevin Leo Max Nick Oscar Paul Ryan Sam Tom Will"
PEOPLE = [(name, "she") for name in SHE.split()] + [(name, "he") for name in HE.split()]

SMALL = (
    "apples pears plums lemons stickers marbles shells stamps pencils buttons beads cards balloons candles books "
    "stones crayons pebbles feathers ribbons"
)
ANIMALS = "ducks geese swans gulls herons"
DISTANCE = "miles kilometers blocks"
FOOD = "cookies muffins pies rolls buns pretzels"
MONEY = "dollars euros pounds"
PLANTS = "roses tulips trees bushes lilies herbs"
READING = "pages chapters poems stories"

# Small enough that no problem is hard; a result is at least 2, so that the plural is always right.
FIRST = {"+": range(2, 11), "-": range(4, 16), "*": range(2, 10), "/": range(4, 41)}
NEXT = {"+": range(2, 11), "-": range(2, 10), "*": range(2, 10), "/": range(2, 10)}
LARGEST_RESULT = 100


@dataclass(frozen=True)
class Template:
    """A problem with its places left open."""

    operations: str  # a sign per step: the first joins {a} and {b}, the second joins that result and {c}
    things: str  # what {thing} may be
    question: str
    solution: tuple[str, ...]  # a line per step, in which {step} stands for the calculation

    @cached_property
    def friends(self) -> int:
        """How many people the friend may be, once the first person is chosen."""
        return len(PEOPLE) - 1 if "{friend}" in self.question else 1

    @cached_property
    def size(self) -> int:
        """How many different problems there are."""
        return len(PEOPLE) * self.friends * len(self.things.split()) * len(_operands(self.operations))

    def problem(self, index: int) -> dict[str, str]:
        """The problem number `index`, from 0 to below `size`."""
        index, person = divmod(index, len(PEOPLE))
        index, other = divmod(index, self.friends)
        things = self.things.split()
        index, thing = divmod(index, len(things))
        numbers = _operands(self.operations)[index]
        name, they = PEOPLE[person]
        friend, _ = PEOPLE[(person + 1 + other) % len(PEOPLE)]
        words = {"name": name, "they": they, "friend": friend, "thing": things[thing]}
        words |= {place: str(number) for place, number in zip("abc", numbers, strict=False)}
        lines, result = [], numbers[0]
        for sign, operand, line in zip(self.operations, numbers[1:], self.solution, strict=True):
            calculation, result = f"{result}{sign}{operand}", _apply(sign, result, operand)
            lines.append(line.format(step=f"{calculation}=<<{calculation}={result}>>{result}", **words))
        return {"question": self.question.format(**words), "answer": "\n".join([*lines, f"#### {result}"])}


def make_problems(settings: SampleSettings) -> dict[str, list[dict[str, str]]]:
    """`settings.train` problems under "train" and `settings.test` under "test", each with `question` and `answer`.

    All questions differ, every gold is a positive whole number, and the same settings give the same problems. With
    two steps, half of the problems have one. Raises UserError if the templates cannot give so many.
    """
    wanted = settings.train + settings.test
    groups = [[t for t in TEMPLATES if len(t.operations) == steps] for steps in range(1, settings.steps + 1)]
    possible = len(groups) * min(len(group) * min(template.size for template in group) for group in groups)
    if wanted > possible:
        raise UserError(
            f"data.samples asks for {wanted} problems, but the templates give at most {possible} different ones "
            f"with steps={settings.steps}; ask for fewer"
        )
    draw = random.Random(settings.seed)
    problems = []
    for group in groups:
        share = -(-wanted // (len(groups) * len(group)))
        for template in group:
            problems += [template.problem(index) for index in draw.sample(range(template.size), share)]
    draw.shuffle(problems)
    return {"train": problems[: settings.train], "test": problems[settings.train : wanted]}


@cache
def _operands(operations: str) -> list[tuple[int, ...]]:
    """All numbers that a template with these operations may hold."""
    return [numbers for numbers, _ in _chains(operations)]


def _chains(operations: str) -> Iterator[tuple[tuple[int, ...], int]]:
    if len(operations) == 1:
        earlier: Iterator[tuple[tuple[int, ...], int]] = (((first,), first) for first in FIRST[operations])
    else:
        earlier = _chains(operations[:-1])
    sign = operations[-1]
    for numbers, value in earlier:
        for operand in NEXT[sign]:
            if sign == "/" and value % operand:
                continue
            result = _apply(sign, value, operand)
            if 2 <= result <= LARGEST_RESULT:
                yield (*numbers, operand), result


def _apply(sign: str, left: int, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[sign]


TEMPLATES = (
    Template(
        "+",
        SMALL,
        "{name} has {a} {thing} and buys {b} more. How many {thing} does {they} have now?",
        ("{name} has {step} {thing} now.",),
    ),
    Template(
        "+",
        SMALL,
        "There are {a} {thing} in a basket. {name} adds {b} more. How many {thing} are in the basket now?",
        ("The basket holds {step} {thing}.",),
    ),
    Template(
        "+",
        SMALL,
        "{name} found {a} {thing} in the morning and {b} more at noon. How many {thing} did {they} find in total?",
        ("{name} found {step} {thing}.",),
    ),
    Template(
        "+",
        SMALL,
        "{name} has {a} {thing} and {friend} has {b} {thing}. How many {thing} do they have together?",
        ("Together they have {step} {thing}.",),
    ),
    Template(
        "+",
        SMALL,
        "{name} had {a} {thing}, and {friend} gave {name} {b} more. How many {thing} does {name} have now?",
        ("{name} has {step} {thing} now.",),
    ),
    Template(
        "+",
        SMALL,
        "A red box holds {a} {thing} and a blue box holds {b}. How many {thing} does {name} get if {they} takes both?",
        ("{name} gets {step} {thing}.",),
    ),
    Template(
        "+",
        SMALL,
        "{name} puts {a} old {thing} and {b} new {thing} into a bag. How many {thing} are in the bag in total?",
        ("The bag holds {step} {thing}.",),
    ),
    Template(
        "+",
        READING,
        "{name} read {a} {thing} on Monday and {b} {thing} on Tuesday. How many {thing} did {they} read?",
        ("{name} read {step} {thing}.",),
    ),
    Template(
        "+",
        DISTANCE,
        "{name} walked {a} {thing} on Saturday and {b} {thing} on Sunday. How many {thing} did {they} walk in total?",
        ("{name} walked {step} {thing}.",),
    ),
    Template(
        "+",
        DISTANCE,
        "It is {a} {thing} to the shop and {b} more to the park. How many {thing} does {name} walk to the park?",
        ("{name} walks {step} {thing}.",),
    ),
    Template(
        "+",
        PLANTS,
        "{name} planted {a} {thing} in spring and {b} more in autumn. How many {thing} did {they} plant in total?",
        ("{name} planted {step} {thing}.",),
    ),
    Template(
        "+",
        MONEY,
        "{name} paid {a} {thing} for lunch and {b} {thing} for a ticket. How many {thing} did {they} pay in total?",
        ("{name} paid {step} {thing}.",),
    ),
    Template(
        "+",
        ANIMALS,
        "{name} counted {a} {thing} on the lake and {b} more on the shore. How many {thing} did {they} count in total?",
        ("{name} counted {step} {thing}.",),
    ),
    Template(
        "+",
        FOOD,
        "{name} made {a} {thing} and {friend} made {b} {thing}. How many {thing} did they make together?",
        ("Together they made {step} {thing}.",),
    ),
    Template(
        "-",
        SMALL,
        "{name} had {a} {thing} and gave {b} to {friend}. How many {thing} does {name} have left?",
        ("{name} has {step} {thing} left.",),
    ),
    Template(
        "-",
        SMALL,
        "{name} had {a} {thing} but lost {b} of them. How many {thing} are left?",
        ("There are {step} {thing} left.",),
    ),
    Template(
        "-",
        SMALL,
        "There were {a} {thing} on a table. {name} took {b} away. How many {thing} are left on the table?",
        ("On the table are {step} {thing}.",),
    ),
    Template(
        "-",
        SMALL,
        "{name} needs {a} {thing} and already has {b}. How many more {thing} does {they} need?",
        ("{name} needs {step} more {thing}.",),
    ),
    Template(
        "-",
        MONEY,
        "{name} saved {a} {thing} and spent {b} {thing} on a gift. How many {thing} does {they} have left?",
        ("{name} has {step} {thing} left.",),
    ),
    Template(
        "-",
        READING,
        "A book has {a} {thing}. {name} has read {b} of them. How many {thing} are left to read?",
        ("There are {step} {thing} left to read.",),
    ),
    Template(
        "-",
        ANIMALS,
        "{name} saw {a} {thing} on a pond. Then {b} flew away. How many {thing} were left?",
        ("There were {step} {thing} left.",),
    ),
    Template(
        "-",
        FOOD,
        "{name} baked {a} {thing} and sold {b} of them. How many {thing} are left?",
        ("There are {step} {thing} left.",),
    ),
    Template(
        "*",
        SMALL,
        "{name} has {a} boxes with {b} {thing} in each. How many {thing} does {they} have?",
        ("{name} has {step} {thing}.",),
    ),
    Template(
        "*",
        SMALL,
        "{name} buys {a} bags with {b} {thing} in each bag. How many {thing} does {they} buy in total?",
        ("{name} buys {step} {thing}.",),
    ),
    Template(
        "*",
        SMALL,
        "{name} buys {a} {thing} for {b} dollars each. How many dollars does {they} pay in total?",
        ("{name} pays {step} dollars.",),
    ),
    Template(
        "*",
        SMALL,
        "{friend} has {b} {thing}. {name} has {a} times as many. How many {thing} does {name} have?",
        ("{name} has {step} {thing}.",),
    ),
    Template(
        "*",
        SMALL,
        "{name} gives {b} {thing} to each of {a} children. How many {thing} does {they} give away?",
        ("{name} gives away {step} {thing}.",),
    ),
    Template(
        "*",
        SMALL,
        "Each of {name}'s {a} shelves holds {b} {thing}. How many {thing} are on the shelves in total?",
        ("The shelves hold {step} {thing}.",),
    ),
    Template(
        "*",
        SMALL,
        "For {a} weeks {name} collects {b} {thing} every week. How many {thing} does {they} collect?",
        ("{name} collects {step} {thing}.",),
    ),
    Template(
        "*",
        FOOD,
        "{name} sets out {a} plates with {b} {thing} on each plate. How many {thing} are there in total?",
        ("On the plates are {step} {thing}.",),
    ),
    Template(
        "*",
        FOOD,
        "{name} bakes {a} trays with {b} {thing} on every tray. How many {thing} does {they} bake?",
        ("{name} bakes {step} {thing}.",),
    ),
    Template(
        "*",
        DISTANCE,
        "For {a} days {name} runs {b} {thing} every day. How many {thing} does {they} run?",
        ("{name} runs {step} {thing}.",),
    ),
    Template(
        "*",
        READING,
        "Every evening {name} reads {b} {thing}. How many {thing} does {they} read in {a} evenings?",
        ("{name} reads {step} {thing}.",),
    ),
    Template(
        "*",
        PLANTS,
        "In a garden, {name} plants {a} rows of {b} {thing}. How many {thing} does {they} plant in total?",
        ("{name} plants {step} {thing}.",),
    ),
    Template(
        "*",
        MONEY,
        "{name} works {a} hours and earns {b} {thing} an hour. How many {thing} does {they} earn?",
        ("{name} earns {step} {thing}.",),
    ),
    Template(
        "/",
        SMALL,
        "{name} shares {a} {thing} equally among {b} friends. How many {thing} does each friend get?",
        ("Each friend gets {step} {thing}.",),
    ),
    Template(
        "++",
        DISTANCE,
        "{name} rode {a} {thing} on Monday, {b} on Tuesday and {c} on Friday. How many {thing} did {they} ride?",
        ("By Tuesday {name} had gone {step} {thing}.", "In all {name} rode {step} {thing}."),
    ),
    Template(
        "+-",
        SMALL,
        "{name} had {a} {thing}, bought {b} more and gave {c} to {friend}. How many {thing} does {name} have now?",
        ("First {name} had {step} {thing}.", "Now {name} has {step} {thing}."),
    ),
    Template(
        "+*",
        SMALL,
        "Each day {name} finds {a} {thing} at home and {b} at school. How many {thing} does {they} find in {c} days?",
        ("Each day {name} finds {step} {thing}.", "In {c} days {name} finds {step} {thing}."),
    ),
    Template(
        "+/",
        SMALL,
        "{name} has {a} {thing}, {friend} has {b}. They share them all equally among {c} children. "
        "How many {thing} does each child get?",
        ("Together they have {step} {thing}.", "Each child gets {step} {thing}."),
    ),
    Template(
        "-+",
        MONEY,
        "{name} had {a} {thing}, spent {b} and then earned {c}. How many {thing} does {they} have now?",
        ("{name} had {step} {thing} left.", "Now {name} has {step} {thing}."),
    ),
    Template(
        "--",
        SMALL,
        "{name} had {a} {thing}, lost {b} and gave {c} to {friend}. How many {thing} does {name} have left?",
        ("After the loss {name} had {step} {thing}.", "{name} has {step} {thing} left."),
    ),
    Template(
        "-*",
        FOOD,
        "A box has {a} {thing}, of which {b} are burnt. {name} buys {c} such boxes. How many good {thing} are in them?",
        ("A box holds {step} good {thing}.", "In {c} boxes are {step} good {thing}."),
    ),
    Template(
        "-/",
        SMALL,
        "{name} had {a} {thing}, kept {b} and shared the rest equally among {c} friends. "
        "How many {thing} did each friend get?",
        ("{name} shared {step} {thing}.", "Each friend got {step} {thing}."),
    ),
    Template(
        "*+",
        MONEY,
        "{name} works {a} hours for {b} {thing} an hour and gets a tip of {c}. How many {thing} is that in all?",
        ("The work brings {step} {thing}.", "With the tip that is {step} {thing}."),
    ),
    Template(
        "*-",
        SMALL,
        "{name} has {a} boxes of {b} {thing} and gives {c} {thing} away. How many {thing} are left?",
        ("The boxes hold {step} {thing}.", "There are {step} {thing} left."),
    ),
    Template(
        "*-",
        SMALL,
        "{name} buys {a} {thing} for {b} dollars each and has a coupon for {c} dollars off. "
        "How many dollars does {they} pay?",
        ("The {thing} cost {step} dollars.", "With the coupon {name} pays {step} dollars."),
    ),
    Template(
        "*/",
        PLANTS,
        "{name} has {a} trays of {b} {thing} and plants them in {c} equal rows. How many {thing} are in each row?",
        ("{name} has {step} {thing}.", "In each row are {step} {thing}."),
    ),
)
