"""The training and evaluation dialogues: a generator, no stored corpus.

A dialogue is a function of (facts, seed). Every question has one fixed answer, so that exact match is the
measure. Phrasings (`phrasings.py`), some follow-up pairs and some sums never occur in training; invented
names are drawn from other seeds in evaluation.
"""

import hashlib
import random
from dataclasses import dataclass, field

import phrasings
import talk
from phrasings import capitalised, fill

COUNTRY_RELATIONS = ["capital", "currency", "language", "continent"]
ELEMENT_RELATIONS = ["symbol", "number"]
ORDINALS = ["first", "second", "third", "fourth", "fifth"]
# Where "No" to a question about the continent would be half a lie.
TWO_CONTINENTS = {"Armenia", "Azerbaijan", "Cyprus", "Egypt", "Georgia", "Kazakhstan", "Russia", "Turkey"}
# Spoken in too many countries to be a wrong answer anywhere.
WORLD_LANGUAGES = {
    "Arabic",
    "Chinese",
    "English",
    "French",
    "Hindi",
    "Portuguese",
    "Russian",
    "Spanish",
    "Tamil",
}
LAST_ELEMENT = 94  # plutonium: nobody asks a small model about the ones after it


@dataclass
class Turn:
    """A question and its answer. `kind` groups turns in the evaluation's table."""

    kind: str
    user: str
    answer: str
    thought: str
    short: str | None = None  # the answer in one word, where there is one
    french: str | None = None


@dataclass
class Dialogue:
    turns: list[Turn]
    system: str | None = None
    style: str = "plain"  # plain, short (one word) or french
    thinking: list[bool] = field(default_factory=list)  # per turn

    def answer(self, turn: Turn) -> str:
        return {"plain": turn.answer, "short": turn.short, "french": turn.french}[self.style] or turn.answer


def held_out(*parts: object) -> bool:
    """Whether a combination of facts (a sum, a pair of countries in a follow-up) is kept for evaluation."""
    return hashlib.sha256("|".join(map(str, parts)).encode()).digest()[0] % 10 == 0


def join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


class Facts:
    """The fact tables with the sentences that state them."""

    def __init__(self, tables: dict):
        self.countries = {("the " if c.get("the") else "") + c["name"]: c for c in tables["countries"]}
        self.elements = {e["name"].lower(): e for e in tables["elements"] if e["number"] <= LAST_ELEMENT}
        self.definitions = {d["word"]: d for d in tables["definitions"]}
        self.by_capital = {
            c["capital"]: name for name, c in self.countries.items() if c["capital"] != c["name"]
        }
        self.french = [name for name, c in self.countries.items() if c.get("french")]
        self.weights = {name: 2 if c["famous"] else 1 for name, c in self.countries.items()}
        self.known = {
            w.lower() for w in [*self.countries, *self.elements, *self.definitions, *self.by_capital]
        }
        self.known |= {c["name"].lower() for c in self.countries.values()}
        self.known |= {e["name"].lower() for e in tables["elements"]}
        self.known |= set(tables["lemmas"])
        for group in (talk.FIRST_NAMES, talk.LIST_WORDS, talk.FRUITS, talk.ANIMALS, talk.COLOURS):
            self.known |= {w.lower() for w in group}

    def value(self, name: str, relation: str) -> str:
        if relation in ELEMENT_RELATIONS:
            return str(self.elements[name][relation])
        country = self.countries[name]
        if relation == "language":
            return join(country["languages"])
        if relation == "currency":
            return "the " + country["currency"]
        return country[relation]

    def sentence(self, name: str, relation: str) -> str:
        return self.statement(name, relation, self.value(name, relation))

    @staticmethod
    def statement(name: str, relation: str, value: str) -> str:
        return {
            "capital": f"The capital of {name} is {value}.",
            "currency": f"The currency of {name} is {value}.",
            "language": f"People in {name} speak {value}.",
            "continent": f"{capitalised(name)} is in {value}.",
            "symbol": f"The symbol of {name} is {value}.",
            "number": f"The atomic number of {name} is {value}.",
        }[relation]

    def short(self, name: str, relation: str) -> str:
        if relation == "language":
            return self.countries[name]["languages"][0] + "."
        if relation == "currency":
            return capitalised(self.countries[name]["currency"].split()[-1]) + "."
        return self.value(name, relation) + "."


class Names:
    """Names that no table and no dictionary has: random syllables, and real names with a part exchanged."""

    ONSETS = "b c d f g h j k l m n p r s t v w z br dr gr kr tr pl sk st th sh ch".split()
    VOWELS = "a e i o u a e i o ai ou".split()
    CODAS = ["", "", "", "n", "r", "l", "s", "m", "x", "nd", "rk"]
    ENDINGS = {
        "country": ["ia", "land", "stan", "a", "o", "or", "ar", "any", "ania", "istan", "ova"],
        "city": ["ville", "burg", "grad", "a", "o", "ton", "opolis", "ad", "in", "ek", "is"],
        "element": ["ium", "um", "on", "ine", "ogen", "ite", "ium"],
        "word": ["", "le", "er", "et", "y", "ock", "ing", "op"],
        "person": ["", "a", "o", "ky", "er", "ov", "ini"],
    }

    def __init__(self, facts: Facts):
        self.known = facts.known
        self.real = {
            "country": [c["name"] for c in facts.countries.values()],
            "city": list(facts.by_capital),
            "element": list(facts.elements),
            "word": list(facts.definitions),
            "person": talk.FIRST_NAMES,
        }

    def syllable(self, rng: random.Random) -> str:
        return rng.choice(self.ONSETS) + rng.choice(self.VOWELS) + rng.choice(self.CODAS)

    def invented(self, rng: random.Random, kind: str, evaluation: bool) -> str:
        """A name of four to fourteen letters; one in ten of all such names occurs in evaluation only."""
        while True:
            how = rng.random()
            if how < 0.6:
                name = "".join(self.syllable(rng) for _ in range(rng.choice([1, 1, 2]))) + rng.choice(
                    self.ENDINGS[kind]
                )
                name += rng.choice(self.VOWELS) if len(name) < 4 else ""
            elif how < 0.8:
                real = rng.choice(self.real[kind]).lower()
                name = (
                    real[: max(3, len(real) - rng.randint(1, 3))]
                    + rng.choice(self.ENDINGS[kind])
                    + rng.choice(["", "l", "n"])
                )
            else:
                one, other = (rng.choice(self.real[kind]).lower() for _ in range(2))
                name = one[: (len(one) + 1) // 2] + other[len(other) // 2 :]
            name = name.strip(" -'")
            if len(name) < 4 or len(name) > 14 or name in self.known or " " in name:
                continue
            if held_out("name", name) != evaluation:
                continue
            return name if kind in ("element", "word") else name.title()


class Generator:
    """Turns and dialogues, from training phrasings or from held-out ones."""

    def __init__(self, facts: Facts, evaluation: bool = False):
        self.facts = facts
        self.names = Names(facts)
        self.evaluation = evaluation
        self.phrasings = phrasings.HELD_OUT if evaluation else phrasings.TRAINING

    # ---- pieces -------------------------------------------------------------------------------

    def ask(self, rng: random.Random, relation: str, **names: str) -> str:
        # Groups too small to hold one out count in no evaluation; validation takes them as they are.
        options = self.phrasings[relation] or phrasings.TRAINING[relation]
        template = options[0] if not self.evaluation and rng.random() < 0.1 else rng.choice(options)
        return self.surface(rng, fill(template, **names))

    def surface(self, rng: random.Random, text: str) -> str:
        """What people do to a question: small letters, no question mark, a greeting in front."""
        if self.evaluation or rng.random() > 0.25:
            return text
        how = rng.randrange(5)
        if how == 0:
            return text.lower()
        if how == 1:
            return text.rstrip("?.!")
        if how == 2:
            return (
                rng.choice(["Hey, ", "Hi, ", "Hello, ", "Please, ", "So, ", "Well, ", "Okay, "])
                + text[0].lower()
                + text[1:]
            )
        if how == 3:
            return text[0].lower() + text[1:]
        return text.lower().rstrip("?.!")

    def country(self, rng: random.Random) -> str:
        names = list(self.facts.countries)
        return rng.choices(names, [self.facts.weights[n] for n in names])[0]

    def element(self, rng: random.Random) -> str:
        names = list(self.facts.elements)
        return rng.choices(names, [2 if self.facts.elements[n]["number"] <= 36 else 1 for n in names])[0]

    def invented(self, rng: random.Random, kind: str) -> str:
        return self.names.invented(rng, kind, self.evaluation)

    # ---- single questions ---------------------------------------------------------------------

    def fact(self, name: str, relation: str, question: str, kind: str | None = None) -> Turn:
        subject = {
            "capital": "the capital of {}",
            "currency": "the currency of {}",
            "language": "the language of {}",
            "continent": "the continent of {}",
            "symbol": "the symbol of {}",
            "number": "the atomic number of {}",
        }[relation].format(name)
        value = self.facts.value(name, relation)
        french = None
        if relation == "capital" and name in self.facts.french:
            words = self.facts.countries[name]["french"]
            french = f"La capitale {words['of']} est {words['capital']}."
        return Turn(
            kind or relation,
            question,
            self.facts.sentence(name, relation),
            f"The question is about {subject}. It is {value}.",
            self.facts.short(name, relation),
            french,
        )

    def country_fact(self, rng: random.Random, name: str | None = None, relation: str | None = None) -> Turn:
        name = name or self.country(rng)
        relation = relation or rng.choice(COUNTRY_RELATIONS)
        return self.fact(name, relation, self.ask(rng, relation, x=name))

    def element_fact(self, rng: random.Random, name: str | None = None, relation: str | None = None) -> Turn:
        name = name or self.element(rng)
        relation = relation or rng.choice(ELEMENT_RELATIONS)
        return self.fact(name, relation, self.ask(rng, relation, x=name))

    def country_of_city(self, rng: random.Random, city: str | None = None) -> Turn:
        city = city or rng.choice(list(self.facts.by_capital))
        name = self.facts.by_capital[city]
        return Turn(
            "country",
            self.ask(rng, "country", x=city),
            f"{city} is the capital of {name}.",
            f"The question is about the country of {city}. It is {name}.",
            capitalised(name) + ".",
        )

    def about(self, rng: random.Random) -> Turn:
        f = self.facts
        if rng.random() < 0.3:
            name = self.element(rng)
            answer = (
                f"{capitalised(name)} is a chemical element with the symbol {f.value(name, 'symbol')} "
                f"and the atomic number {f.value(name, 'number')}."
            )
            return Turn("about", self.ask(rng, "about", x=name), answer, f"The question is about {name}.")
        name = self.country(rng)
        answer = (
            f"{capitalised(name)} is in {f.value(name, 'continent')}. "
            f"Its capital is {f.value(name, 'capital')}, its currency is {f.value(name, 'currency')}, "
            f"and people there speak {f.value(name, 'language')}."
        )
        return Turn("about", self.ask(rng, "about", x=name), answer, f"The question is about {name}.")

    def element_of(self, rng: random.Random) -> Turn:
        name = self.element(rng)
        relation = rng.choice(ELEMENT_RELATIONS)
        value = self.facts.value(name, relation)
        answer = (
            f"{value} is the symbol of {name}."
            if relation == "symbol"
            else f"{capitalised(name)} has the atomic number {value}."
        )
        question = fill(rng.choice(self.phrasings[f"element_of_{relation}"]), x=value)
        return Turn(
            f"element_of_{relation}",
            question,
            answer,
            f"The question is about the element {value}. It is {name}.",
            capitalised(name) + ".",
        )

    def is_true(self, rng: random.Random) -> Turn:
        name, relation = (
            self.country(rng),
            rng.choice([r for r in COUNTRY_RELATIONS if self.phrasings[f"is_{r}"]]),
        )
        right = self.facts.value(name, relation)
        asked = right
        if rng.random() < 0.5 and not (relation == "continent" and name in TWO_CONTINENTS):
            while asked == right:
                other = self.country(rng)
                asked = self.facts.value(other, relation)
                if relation == "language":
                    # The tables list three languages at most; one from another continent is surely wrong.
                    far = self.facts.countries[other]["continent"] != self.facts.countries[name]["continent"]
                    asked = self.facts.countries[other]["languages"][0] if far else right
                    if asked in WORLD_LANGUAGES or asked in self.facts.countries[name]["languages"]:
                        asked = right
        elif relation == "language":
            asked = rng.choice(self.facts.countries[name]["languages"])
        true = asked == right or relation == "language" and asked in self.facts.countries[name]["languages"]
        thought = f"The question is about {asked} and {name}. The right one is {right}."
        answer = ("Yes, " if true else "No, ") + self.within(self.facts.sentence(name, relation))
        return Turn(
            "yes_no",
            self.ask(rng, f"is_{relation}", x=name, y=asked),
            answer,
            thought,
            "Yes." if true else "No.",
        )

    @staticmethod
    def within(sentence: str) -> str:
        """A sentence after "Yes,": its article or its "People" loses the capital letter."""
        return sentence[0].lower() + sentence[1:] if sentence.startswith(("The ", "People ")) else sentence

    def unit(self, rng: random.Random) -> Turn:
        many, place, number = rng.choice(talk.UNITS)
        verb = rng.choice(["are in", "are there in"])
        template = rng.choice(self.phrasings["unit"])
        if "how many" in template.lower():
            # "How many metres are in a kilometre?", but "Tell me how many metres are in a kilometre."
            asked = f"{many} {verb if template.startswith('How') else 'are in'} {place}"
        else:
            asked = f"{many} in {place}"
        return Turn(
            "unit",
            self.surface(rng, fill(template, x=asked)),
            f"There are {number} {many} in {place}.",
            f"The question is about {many} in {place}. It is {number}.",
            number + ".",
        )

    def sum(self, rng: random.Random, terms: tuple[str, int, int] | None = None) -> Turn:
        while terms is None:
            operation = rng.choice(["plus", "plus", "minus", "times"])
            a, b = rng.randint(0, 12), rng.randint(0, 12)
            if operation == "minus":
                a = a + b
            if operation == "times":
                a, b = rng.randint(1, 10), rng.randint(1, 10)
            if held_out(operation, a, b) == self.evaluation:
                terms = operation, a, b
        operation, a, b = terms
        result = {"plus": a + b, "minus": a - b, "times": a * b}[operation]
        sign = {"plus": "+", "minus": "-", "times": rng.choice(["x", "*"])}[operation]
        written = rng.choice(
            [f"{a} {operation} {b}", f"{a} {operation} {b}", f"{a} {sign} {b}", f"{a}{sign}{b}"]
        )
        return Turn(
            "sum",
            self.ask(rng, "sum", x=written),
            f"{a} {operation} {b} is {result}.",
            f"This is a sum. {a} {operation} {b} is {result}.",
            f"{result}.",
        )

    def definition(self, rng: random.Random, word: str | None = None) -> Turn:
        word = word or rng.choice(list(self.facts.definitions))
        entry = self.facts.definitions[word]
        named = f"{entry['article']} {word}".strip()
        return Turn(
            "definition",
            self.ask(rng, "definition", x=named, w=word),
            f"{capitalised(named)} is {entry['gloss']}.",
            f"The question is about the word {word}.",
        )

    def topic(self, rng: random.Random) -> Turn:
        name, answer = rng.choice(talk.TOPICS)
        return Turn("engine", self.ask(rng, "topic", x=name), answer, f"The question is about {name}.")

    def small_talk(self, rng: random.Random) -> Turn:
        intent = rng.choice([intent for intent in talk.SMALL_TALK if self.phrasings[intent]])
        return Turn("small_talk", self.ask(rng, intent), talk.SMALL_TALK[intent][0], "This is small talk.")

    def unknown(self, rng: random.Random) -> Turn:
        # The three ways to ask for a person are all trained.
        persons = 0 if self.evaluation else 1
        kind = rng.choices(["country", "city", "element", "word", "person"], [8, 2, 4, 3, persons])[0]
        name = self.invented(rng, kind)
        if kind == "country":
            relation = rng.choice([*COUNTRY_RELATIONS, *COUNTRY_RELATIONS, "about"])
            question = self.ask(rng, relation, x=name)
        elif kind == "city":
            question = self.ask(rng, "country", x=name)
        elif kind == "element":
            question = self.ask(rng, rng.choice(ELEMENT_RELATIONS), x=name)
        elif kind == "word":
            question = self.ask(rng, "definition", x=f"{'an' if name[0] in 'aeiou' else 'a'} {name}", w=name)
        else:
            question = self.surface(
                rng,
                rng.choice(["Who is {}?", "Who was {}?", "Do you know {}?"]).format(
                    f"{rng.choice([name, rng.choice(talk.FIRST_NAMES)])} "
                    f"{rng.choice([self.invented(rng, 'person'), rng.choice(talk.LAST_NAMES)])}"
                ),
            )
        return Turn(
            "unknown",
            question,
            f"I do not know that {kind}.",
            f"I know no {kind} of that name.",
            "Unknown.",
            "Je ne connais pas ce pays." if kind == "country" else None,
        )

    def out_of_domain(self, rng: random.Random) -> Turn:
        template = rng.choice(self.phrasings["out_of_domain"] or phrasings.TRAINING["out_of_domain"])
        question = template.format(
            game=rng.choice(talk.GAMES),
            city=rng.choice(list(self.facts.by_capital)),
            country=self.country(rng),
            person=f"{rng.choice(talk.FIRST_NAMES)} {rng.choice(talk.LAST_NAMES)}",
            element=self.element(rng),
            thing=rng.choice(list(self.facts.definitions)),
        )
        return Turn(
            "out_of_domain",
            self.surface(rng, question),
            talk.OUT_OF_DOMAIN_ANSWER,
            "This is outside of what I know.",
        )

    # ---- several turns ------------------------------------------------------------------------

    def then_relation(self, rng: random.Random, name: str, last: str | None) -> Turn:
        """The same country or element, another relation: "And its currency?"."""
        relations = COUNTRY_RELATIONS if name in self.facts.countries else ELEMENT_RELATIONS
        relation = rng.choice([r for r in relations if r != last])
        turn = self.fact(name, relation, self.ask(rng, f"then_{relation}"), "follow_up")
        turn.thought = f"It is still about {name}. " + turn.thought
        return turn

    def then_other(self, rng: random.Random, relation: str, last: str) -> tuple[Turn, str]:
        """The same relation, another country or element: "What about Spain?"."""
        draw = self.country if relation in COUNTRY_RELATIONS else self.element
        name = draw(rng)
        while name == last or held_out(relation, last, name) != self.evaluation:
            name = draw(rng)
        turn = self.fact(name, relation, self.ask(rng, "then_other", x=name), "what_about")
        turn.thought = f"It is the same question for {name}. " + turn.thought
        return turn, name

    def topic_chain(self, rng: random.Random, length: int) -> list[Turn]:
        """A question about a country or an element and follow-ups to it."""
        how = rng.random()
        if how < 0.2:
            city = rng.choice(list(self.facts.by_capital))
            turns, name, relation = [self.country_of_city(rng, city)], self.facts.by_capital[city], "capital"
        elif how < 0.8:
            name, relation = self.country(rng), rng.choice(COUNTRY_RELATIONS)
            turns = [self.country_fact(rng, name, relation)]
        else:
            name, relation = self.element(rng), rng.choice(ELEMENT_RELATIONS)
            turns = [self.element_fact(rng, name, relation)]
        while len(turns) < length:
            if rng.random() < 0.55 or (turns[0].kind == "country" and len(turns) == 1):
                turn = self.then_relation(rng, name, relation)
                relation = next(
                    r
                    for r in COUNTRY_RELATIONS + ELEMENT_RELATIONS
                    if turn.answer == self.sentence_or_none(name, r)
                )
            else:
                turn, name = self.then_other(rng, relation, name)
            turns.append(turn)
        if rng.random() < 0.1:
            kind = "country" if name in self.facts.countries else "element"
            turns.append(
                Turn(
                    "unknown",
                    self.ask(rng, "then_other", x=self.invented(rng, kind)),
                    f"I do not know that {kind}.",
                    f"I know no {kind} of that name.",
                    "Unknown.",
                )
            )
        return turns

    def sentence_or_none(self, name: str, relation: str) -> str | None:
        known = self.facts.countries if relation in COUNTRY_RELATIONS else self.facts.elements
        return self.facts.sentence(name, relation) if name in known else None

    def sum_chain(self, rng: random.Random) -> list[Turn]:
        first = self.sum(rng)
        total = int(first.short.rstrip("."))
        more = rng.choice([n for n in range(1, 10) if held_out("plus", total, n) == self.evaluation] or [0])
        result = total + more
        return [
            first,
            Turn(
                "then_add",
                self.ask(rng, "then_add", x=str(more)),
                f"{total} plus {more} is {result}.",
                f"It was {total}. {total} plus {more} is {result}.",
                f"{result}.",
            ),
        ]

    def word_list(self, rng: random.Random) -> list[Turn]:
        """Words told, then asked for by their place: needs positions."""
        words = rng.sample(talk.LIST_WORDS, rng.randint(2, 5))
        tell = rng.choice(
            [
                "Remember these words: {}.",
                "Please remember these words: {}.",
                "Here is a list of words: {}.",
                "Remember this list: {}.",
                "These are my words: {}.",
            ]
        ).format(", ".join(words))
        turns = [Turn("list", tell, f"I have {len(words)} words.", f"There are {len(words)} words.")]
        for _ in range(rng.randint(1, 3)):
            how = rng.random()
            if how < 0.7:
                place = rng.randrange(len(words))
                name = "last" if place == len(words) - 1 and rng.random() < 0.6 else ORDINALS[place]
                turns.append(
                    Turn(
                        "list",
                        self.ask(rng, "then_word", x=name),
                        f"The {name} word is {words[place]}.",
                        f"The words are {join(words)}.",
                        capitalised(words[place]) + ".",
                    )
                )
            elif how < 0.85:
                turns.append(
                    Turn(
                        "list",
                        self.ask(rng, "then_count"),
                        f"I have {len(words)} words.",
                        f"The words are {join(words)}.",
                        f"{len(words)}.",
                    )
                )
            else:
                turns.append(
                    Turn(
                        "list",
                        self.ask(rng, "then_backwards"),
                        capitalised(", ".join(reversed(words))) + ".",
                        f"The words are {join(words)}.",
                    )
                )
        return turns

    def memory(self, rng: random.Random, distractors: int) -> list[Turn]:
        """Something told, perhaps changed, and asked for after other turns: needs overwriting."""
        choices = {
            "name": talk.FIRST_NAMES,
            "favourite colour": talk.COLOURS,
            "favourite fruit": talk.FRUITS,
            "favourite animal": talk.ANIMALS,
            "lucky number": [str(n) for n in range(2, 21)],
        }
        turns: list[Turn] = []
        told: dict[str, str] = {}
        for key in rng.sample(list(choices), rng.choice([1, 1, 2])):
            told[key] = rng.choice(choices[key])
            turns.append(self.tell(rng, key, told[key], again=False))
            if rng.random() < 0.35:
                told[key] = rng.choice([v for v in choices[key] if v != told[key]])
                turns.append(self.tell(rng, key, told[key], again=True))
        for _ in range(distractors):
            turns.append(rng.choice([self.country_fact, self.element_fact, self.small_talk, self.sum])(rng))
        key = rng.choice(list(choices) if rng.random() < 0.15 else list(told))
        if key in told:
            turns.append(
                Turn(
                    "memory",
                    self.ask(rng, "own", x=key),
                    f"Your {key} is {told[key]}.",
                    f"The {key} told before is {told[key]}.",
                    capitalised(told[key]) + ".",
                )
            )
        else:
            turns.append(
                Turn(
                    "memory",
                    self.ask(rng, "own", x=key),
                    f"You have not told me your {key}.",
                    f"No {key} was told.",
                    "Unknown.",
                )
            )
        return turns

    def tell(self, rng: random.Random, key: str, value: str, again: bool) -> Turn:
        if again:
            text = rng.choice(
                [
                    "No, my {k} is {v}.",
                    "Sorry, my {k} is {v}.",
                    "My {k} is now {v}.",
                    "I was wrong: my {k} is {v}.",
                    "From now on my {k} is {v}.",
                ]
            )
        elif key == "name":
            text = rng.choice(
                ["My {k} is {v}.", "I am {v}.", "Hello, my {k} is {v}.", "Hi, I am {v}.", "Call me {v}."]
            )
        else:
            text = rng.choice(
                ["My {k} is {v}.", "Remember that my {k} is {v}.", "Please remember: my {k} is {v}."]
            )
        answer = (
            f"Nice to meet you, {value}." if key == "name" and not again else f"I see, your {key} is {value}."
        )
        return Turn("tell", self.surface(rng, text.format(k=key, v=value)), answer, f"The {key} is {value}.")

    # ---- dialogues ----------------------------------------------------------------------------

    def segment(self, rng: random.Random, style: str) -> list[Turn]:
        """One to a few turns that belong together."""
        if style == "french":
            name = rng.choice(self.facts.french)
            return [
                rng.choices([self.country_fact(rng, name, "capital"), self.unknown_country(rng)], [5, 1])[0]
            ]
        kinds = {
            "country_fact": 22,
            "topic_chain": 20,
            "country_of_city": 6,
            "about": 4,
            "is_true": 7,
            "element_fact": 8,
            "element_of": 5,
            "unit": 3,
            "sum": 6,
            "unknown": 12,
            "memory": 7,
            "word_list": 4,
            "sum_chain": 1,
        }
        if style == "plain":
            kinds |= {"definition": 9, "topic": 6, "small_talk": 9, "out_of_domain": 4}
        else:
            del kinds["about"]
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        if kind == "topic_chain":
            return self.topic_chain(rng, rng.choice([2, 2, 3, 4]))
        if kind == "memory":
            return self.memory(rng, rng.choice([0, 0, 1, 2]))
        turns = getattr(self, kind)(rng)
        return turns if isinstance(turns, list) else [turns]

    def unknown_country(self, rng: random.Random) -> Turn:
        name = self.invented(rng, "country")
        return Turn(
            "unknown",
            self.ask(rng, "capital", x=name),
            "I do not know that country.",
            "I know no country of that name.",
            "Unknown.",
            "Je ne connais pas ce pays.",
        )

    def dialogue(self, rng: random.Random) -> Dialogue:
        """An endless-feeling talk; the caller cuts it at its row length."""
        style = rng.choices(["plain", "short", "french"], [80, 14, 6])[0]
        if style == "plain":
            system = rng.choice(talk.SYSTEM_PLAIN) if rng.random() < 0.25 else None
        else:
            system = rng.choice(talk.SYSTEM_ONE_WORD if style == "short" else talk.SYSTEM_FRENCH)
        turns: list[Turn] = []
        while len(turns) < 12:
            turns += self.segment(rng, style)
        thinking_share = rng.choice([0.0, 0.0, 0.0, 0.5, 1.0])
        return Dialogue(turns, system, style, [rng.random() < thinking_share for _ in turns])
