"""How things are asked: a small grammar of phrasings, cut into training and held-out ones.

A relation is asked through frames ("Can you tell me {np}?") filled with its noun phrases ("the capital
of {x}") and through sentences of its own. `{x}` is the name asked about, `{xs}` its possessive.
"""

import hashlib
import re
from collections import Counter

from talk import OUT_OF_DOMAIN, SMALL_TALK

FRAMES = [
    "What is {np}?",
    "What's {np}?",
    "Tell me {np}.",
    "Please tell me {np}.",
    "Can you tell me {np}?",
    "Could you tell me {np}?",
    "Would you tell me {np}?",
    "Name {np}.",
    "Please name {np}.",
    "Do you know {np}?",
    "Do you happen to know {np}?",
    "I want to know {np}.",
    "I would like to know {np}.",
    "I need to know {np}.",
    "Give me {np}.",
    "Say {np}.",
    "{Np}?",
    "{Np}, please.",
    "{Np}, please?",
    "I have a question: what is {np}?",
    "I forgot {np}.",
    "Remind me: what is {np}?",
    "I am looking for {np}.",
    "Let me know {np}.",
    "Do you remember {np}?",
]

NOUN_PHRASES = {
    "capital": [
        "the capital of {x}",
        "the capital city of {x}",
        "{xs} capital",
        "{xs} capital city",
        "the name of the capital of {x}",
    ],
    "currency": [
        "the currency of {x}",
        "{xs} currency",
        "the money of {x}",
        "the currency used in {x}",
        "the money used in {x}",
        "the name of the currency of {x}",
    ],
    "language": [
        "the language of {x}",
        "{xs} language",
        "the language spoken in {x}",
        "the official language of {x}",
        "the main language of {x}",
        "the language people speak in {x}",
    ],
    "continent": [
        "the continent of {x}",
        "{xs} continent",
        "the continent {x} is in",
        "the continent where {x} is located",
        "the continent {x} belongs to",
    ],
    "country": [
        "the country whose capital is {x}",
        "the country with the capital {x}",
        "the country that has {x} as its capital",
        "the nation whose capital is {x}",
        "the country of which {x} is the capital",
    ],
    "symbol": [
        "the symbol of {x}",
        "the chemical symbol of {x}",
        "the symbol for {x}",
        "the chemical symbol for {x}",
        "{xs} symbol",
        "{xs} chemical symbol",
    ],
    "number": [
        "the atomic number of {x}",
        "{xs} atomic number",
        "the number of {x} in the periodic table",
        "the number of protons in {x}",
        "the atomic number for {x}",
    ],
    "element_of_symbol": [
        "the element with the symbol {x}",
        "the element with the chemical symbol {x}",
        "the name of the element with the symbol {x}",
        "the element whose symbol is {x}",
    ],
    "element_of_number": [
        "the element with the atomic number {x}",
        "the element with atomic number {x}",
        "the name of the element with the atomic number {x}",
        "the element number {x}",
        "the element whose atomic number is {x}",
    ],
    "unit": ["the number of {x}", "the count of {x}"],
    "sum": ["{x}", "the result of {x}", "the value of {x}", "the answer to {x}"],
    "definition": [
        "the meaning of the word {w}",
        "the meaning of {w}",
        "the definition of {w}",
        "the definition of the word {w}",
    ],
    "topic": ["the meaning of {x}", "the idea of {x}", "the idea behind {x}"],
    "own": ["my {x}"],
}

SENTENCES = {
    "capital": [
        "Which city is the capital of {x}?",
        "What city is the capital of {x}?",
        "Which city is {xs} capital?",
        "Which town is the capital of {x}?",
        "What is the capital called in {x}?",
        "What is the capital of {x} called?",
        "In {x}, what is the capital?",
        "In {x}, which city is the capital?",
        "What is the name of {xs} capital?",
        "{X} has which capital?",
        "{X} has which city as its capital?",
        "What capital does {x} have?",
        "Which capital does {x} have?",
        "Which city does {x} have as its capital?",
        "I travel to {x}. What is the capital?",
        "What do you call the capital of {x}?",
        "Which is the capital of {x}?",
    ],
    "currency": [
        "What money do people use in {x}?",
        "What currency do people use in {x}?",
        "Which currency is used in {x}?",
        "Which money is used in {x}?",
        "What do people pay with in {x}?",
        "What do you pay with in {x}?",
        "With what money do people pay in {x}?",
        "Which currency do I need in {x}?",
        "I travel to {x}. Which currency do I need?",
        "I travel to {x}. What money do I need?",
        "What currency does {x} use?",
        "What currency does {x} have?",
        "Which currency does {x} use?",
        "Which currency does {x} have?",
        "Which money does {x} use?",
        "In {x}, what currency do people use?",
        "In {x}, which money do people use?",
        "How do people pay in {x}?",
        "What is the money in {x} called?",
        "What is the currency in {x}?",
        "What is the currency of {x} called?",
    ],
    "language": [
        "What language do people speak in {x}?",
        "Which language do people speak in {x}?",
        "What language is spoken in {x}?",
        "Which language is spoken in {x}?",
        "What do people speak in {x}?",
        "Which languages do people speak in {x}?",
        "What languages do people speak in {x}?",
        "Which languages are spoken in {x}?",
        "What languages are spoken in {x}?",
        "In {x}, what language do people speak?",
        "In {x}, which language is spoken?",
        "Which language is used in {x}?",
        "What language is used in {x}?",
        "How do people talk in {x}?",
        "What language do people use in {x}?",
        "I travel to {x}. Which language do people speak?",
        "I travel to {x}. What language do I need?",
        "What language does {x} use?",
        "What language do I need in {x}?",
        "What is the language in {x}?",
    ],
    "continent": [
        "Where is {x}?",
        "Where is {x} located?",
        "On which continent is {x}?",
        "In which continent is {x}?",
        "Which continent is {x} in?",
        "What continent is {x} in?",
        "What continent is {x} on?",
        "Which continent is {x} on?",
        "Which continent does {x} belong to?",
        "What continent does {x} belong to?",
        "To which continent does {x} belong?",
        "On which continent is {x} located?",
        "On what continent is {x}?",
        "Where in the world is {x}?",
        "Where can I find {x}?",
        "Where can I find {x} on a map?",
        "Where is {x} on the map?",
        "Where on the map is {x}?",
        "Which part of the world is {x} in?",
        "In which part of the world is {x}?",
        "Where does {x} lie?",
        "On which continent does {x} lie?",
        "In which part of the world does {x} lie?",
    ],
    "country": [
        "{x} is the capital of which country?",
        "{x} is the capital of what country?",
        "Which country has {x} as its capital?",
        "Which country has the capital {x}?",
        "What country has the capital {x}?",
        "What country has {x} as its capital?",
        "Of which country is {x} the capital?",
        "Of what country is {x} the capital?",
        "Which nation has {x} as its capital?",
        "Of which nation is {x} the capital?",
        "{x} is the capital of which nation?",
        "Whose capital is {x}?",
        "In which country is {x}?",
        "Which country is {x} in?",
        "What country is {x} in?",
        "Which country does {x} belong to?",
        "To which country does {x} belong?",
        "In which country is the city {x}?",
        "Which country is the city {x} in?",
        "In which country is {x} located?",
        "In which country can I find {x}?",
    ],
    "about": [
        "Tell me about {x}.",
        "What do you know about {x}?",
        "Describe {x}.",
        "Give me some facts about {x}.",
        "What can you tell me about {x}?",
        "Tell me something about {x}.",
        "Say something about {x}.",
        "I want to know more about {x}.",
        "Please tell me about {x}.",
        "Can you tell me about {x}?",
        "Could you tell me something about {x}?",
        "Do you know something about {x}?",
        "Tell me what you know about {x}.",
        "I would like to know more about {x}.",
        "Please describe {x}.",
        "Can you describe {x}?",
        "Give me facts about {x}.",
        "What should I know about {x}?",
        "Tell me more about {x}.",
        "I need some facts about {x}.",
        "What is {x}?",
        "Explain what {x} is.",
        "Can you tell me what {x} is?",
        "Do you know what {x} is?",
        "Tell me what {x} is.",
        "What's {x}?",
    ],
    "symbol": [
        "Which symbol does {x} have?",
        "What symbol does {x} have?",
        "What symbol stands for {x}?",
        "Which symbol stands for {x}?",
        "Which letters stand for {x}?",
        "How do you write {x} in chemistry?",
        "What symbol is used for {x}?",
        "Which symbol is used for {x}?",
        "Which chemical symbol does {x} have?",
        "In the periodic table, what symbol does {x} have?",
        "How do chemists write {x}?",
        "What letters do chemists use for {x}?",
        "Which symbol do chemists use for {x}?",
    ],
    "number": [
        "Which atomic number does {x} have?",
        "What atomic number does {x} have?",
        "How many protons does {x} have?",
        "How many protons are in {x}?",
        "In the periodic table, which number does {x} have?",
        "Which number does {x} have in the periodic table?",
        "How many protons are there in {x}?",
        "What number does {x} have in the periodic table?",
    ],
    "element_of_symbol": [
        "Which element has the symbol {x}?",
        "What element has the symbol {x}?",
        "Which element has the chemical symbol {x}?",
        "What element has the chemical symbol {x}?",
        "What does the symbol {x} stand for?",
        "What does the chemical symbol {x} stand for?",
        "Which element does the symbol {x} stand for?",
        "Which element is {x}?",
        "What element is {x}?",
        "{x} is the symbol of which element?",
        "{x} is the symbol of what element?",
    ],
    "element_of_number": [
        "Which element has the atomic number {x}?",
        "What element has the atomic number {x}?",
        "Which element has atomic number {x}?",
        "What element has atomic number {x}?",
        "Which element has {x} protons?",
        "What element has {x} protons?",
        "Which element is number {x} in the periodic table?",
        "What element is number {x} in the periodic table?",
    ],
    "unit": [
        "How many {x}?",
        "Tell me how many {x}.",
        "Do you know how many {x}?",
        "Can you tell me how many {x}?",
        "Please tell me how many {x}.",
        "I want to know how many {x}.",
        "I forgot how many {x}.",
        "Could you tell me how many {x}?",
        "I need to know how many {x}.",
        "Say how many {x}.",
    ],
    "sum": [
        "How much is {x}?",
        "What does {x} make?",
        "What does {x} give?",
        "Calculate {x}.",
        "Please calculate {x}.",
        "Can you calculate {x}?",
        "How much does {x} make?",
        "Work out {x}.",
        "Can you work out {x}?",
        "{X} makes what?",
        "{X} is what?",
    ],
    "definition": [
        "What is {x}?",
        "What's {x}?",
        "Define {w}.",
        "Define the word {w}.",
        "What does {w} mean?",
        "What does the word {w} mean?",
        "Explain the word {w}.",
        "Explain what {x} is.",
        "Tell me what {x} is.",
        "Can you tell me what {x} is?",
        "Could you tell me what {x} is?",
        "Please define {w}.",
        "Do you know what {x} is?",
        "I want to know what {x} is.",
        "Please explain the word {w}.",
        "Please explain what {x} is.",
        "Can you define the word {w}?",
        "Can you explain what {x} is?",
    ],
    "topic": [
        "What is {x}?",
        "What's {x}?",
        "Explain {x}.",
        "Please explain {x}.",
        "Can you explain {x}?",
        "What does {x} mean?",
        "Tell me what {x} is.",
        "Can you tell me what {x} is?",
        "Do you know what {x} is?",
        "Explain what {x} is.",
        "Please explain what {x} is.",
        "I want to know what {x} is.",
        "Define {x}.",
        "What do you mean by {x}?",
        "Could you explain {x}?",
        "In short, what is {x}?",
        "Describe {x}.",
        "I would like to know what {x} is.",
        "Can you explain what {x} is?",
        "Tell me about {x}.",
    ],
    "own": [
        "What did I say my {x} is?",
        "What was my {x}?",
        "Can you say my {x}?",
        "Which is my {x}?",
        "What did I tell you about my {x}?",
    ],
    "is_capital": [
        "Is {y} the capital of {x}?",
        "Is {y} {xs} capital?",
        "Is the capital of {x} {y}?",
        "Is it true that {y} is the capital of {x}?",
        "{y} is the capital of {x}, right?",
        "Is {xs} capital {y}?",
        "Is it right that {y} is the capital of {x}?",
    ],
    "is_continent": [
        "Is {x} in {y}?",
        "Is {x} a country in {y}?",
        "Is {x} located in {y}?",
        "Is it true that {x} is in {y}?",
        "{X} is in {y}, right?",
        "Does {x} belong to {y}?",
        "Is it right that {x} is in {y}?",
    ],
    "is_currency": [
        "Is {y} the currency of {x}?",
        "Is the currency of {x} {y}?",
        "Is {y} used in {x}?",
        "Do people pay with {y} in {x}?",
        "Do people use {y} in {x}?",
        "Is it true that {y} is the currency of {x}?",
        "Does {x} use {y}?",
    ],
    "is_language": [
        "Do people speak {y} in {x}?",
        "Is {y} spoken in {x}?",
        "Do people in {x} speak {y}?",
        "Is it true that people in {x} speak {y}?",
        "Is {y} a language of {x}?",
        "In {x}, do people speak {y}?",
        "People in {x} speak {y}, right?",
    ],
    # Follow-ups that need the turn before.
    "then_capital": [
        "And its capital?",
        "And what is its capital?",
        "What is its capital?",
        "And the capital?",
        "What about the capital?",
        "What about its capital?",
        "And which city is its capital?",
        "Tell me its capital.",
        "And what is the capital?",
        "Which city is the capital there?",
        "What is the capital there?",
        "And can you tell me its capital?",
        "Name its capital, please.",
    ],
    "then_currency": [
        "And its currency?",
        "And what is its currency?",
        "What is its currency?",
        "And the currency?",
        "What about the currency?",
        "What about its currency?",
        "And which currency do they use?",
        "What money do they use there?",
        "And what do people pay with there?",
        "Which currency is used there?",
        "And the money?",
        "What currency do people use there?",
        "Tell me its currency.",
    ],
    "then_language": [
        "And its language?",
        "And what is its language?",
        "And the language?",
        "What about the language?",
        "What about its language?",
        "What do people speak there?",
        "And what do people speak there?",
        "Which language is spoken there?",
        "And which language do they speak?",
        "What language do they speak there?",
        "What language do people speak there?",
        "Tell me its language.",
    ],
    "then_continent": [
        "And its continent?",
        "And where is it?",
        "Where is it?",
        "And the continent?",
        "What about the continent?",
        "What about its continent?",
        "On which continent is it?",
        "And which continent is it in?",
        "Where is that?",
        "Where is it located?",
        "Where is that country?",
        "And on which continent is it?",
        "What continent is it in?",
    ],
    "then_symbol": [
        "And its symbol?",
        "And what is its symbol?",
        "What is its symbol?",
        "And the symbol?",
        "What about the symbol?",
        "What about its symbol?",
        "Tell me its symbol.",
        "Which symbol does it have?",
        "And which symbol does it have?",
    ],
    "then_number": [
        "And its atomic number?",
        "And what is its atomic number?",
        "What is its atomic number?",
        "And the atomic number?",
        "What about the atomic number?",
        "What about its atomic number?",
        "How many protons does it have?",
        "And how many protons does it have?",
        "Tell me its atomic number.",
    ],
    "then_other": [
        "What about {x}?",
        "And {x}?",
        "And what about {x}?",
        "How about {x}?",
        "And how about {x}?",
        "And for {x}?",
        "The same question for {x}.",
        "Now the same for {x}.",
        "And now {x}?",
        "And what about {x}, please?",
        "What about {x}, please?",
        "Then what about {x}?",
    ],
    "then_add": [
        "Add {x}.",
        "Now add {x}.",
        "Add {x} to that.",
        "And plus {x}?",
        "Now add {x} to that.",
        "And if you add {x}?",
        "Please add {x}.",
    ],
    "then_word": [
        "What was the {x} word?",
        "Which word was the {x}?",
        "What is the {x} word?",
        "Tell me the {x} word.",
        "And the {x} word?",
        "Which was the {x} word?",
        "Say the {x} word.",
        "Can you tell me the {x} word?",
        "And the {x}?",
        "Do you remember the {x} word?",
    ],
    "then_count": [
        "How many words did I give you?",
        "How many words were there?",
        "How many words were in the list?",
        "Count the words.",
        "Can you count the words?",
        "How many words are in the list?",
    ],
    "then_backwards": [
        "Say them backwards.",
        "Now say them backwards.",
        "Say the words backwards.",
        "Can you say them backwards?",
        "Repeat the words backwards.",
        "Please say them backwards.",
    ],
}


def _held_out_candidate(relation: str, template: str) -> bool:
    return hashlib.sha256(f"{relation}|{template}".encode()).digest()[0] % 6 == 0


def _templates(relation: str) -> list[str]:
    framed = [
        frame.replace("{np}", phrase).replace("{Np}", phrase[0].upper() + phrase[1:])
        for frame in FRAMES
        for phrase in NOUN_PHRASES.get(relation, [])
    ]
    framed = [t.replace("{X", "{x").replace("{x}", "{X}", 1) if t.startswith("{X") else t for t in framed]
    return list(dict.fromkeys(framed + SENTENCES.get(relation, [])))


def _words(template: str) -> list[str]:
    return [
        w
        for w in template.lower().replace("?", " ").replace(".", " ").replace(",", " ").split()
        if "{" not in w
    ]


def _plain(template: str) -> str:
    """The phrasing without what `Generator.surface` adds or takes away."""
    words = re.sub(r"[^\w{}' ]", "", template.lower()).split()
    return " ".join(w for w in words if w not in {"hey", "hi", "hello", "please", "so", "well", "okay"})


def split_phrasings(groups: dict[str, list[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Cuts phrasings, by a hash of their text, into training ones and one in six held out.

    The first phrasing of a group, the plainest, is always for training. A candidate for holding out goes
    back to training when one of its words occurs in fewer than three training phrasings: a word never seen
    says nothing about generalising over wordings. One that differs from a training phrasing by its
    punctuation or a greeting only is used for neither.
    """
    candidates = {r: [t for t in ts[1:] if _held_out_candidate(r, t)] for r, ts in groups.items()}
    training = {r: [t for t in ts if t not in candidates[r]] for r, ts in groups.items()}
    seen = Counter(w for ts in training.values() for t in ts for w in set(_words(t)))
    held_out = {r: [t for t in ts if all(seen[w] >= 3 for w in _words(t))] for r, ts in candidates.items()}
    training = {r: [t for t in ts if t not in held_out[r]] for r, ts in groups.items()}
    trained = {_plain(t) for ts in training.values() for t in ts}
    held_out = {r: [t for t in ts if _plain(t) not in trained] for r, ts in held_out.items()}
    return training, held_out


RELATIONS = list(dict.fromkeys([*NOUN_PHRASES, *SENTENCES]))
TRAINING, HELD_OUT = split_phrasings(
    {
        **{relation: _templates(relation) for relation in RELATIONS},
        **{intent: phrasings for intent, (_, phrasings) in SMALL_TALK.items()},
        "out_of_domain": OUT_OF_DOMAIN,
    }
)


def possessive(name: str) -> str:
    return name + ("'" if name.endswith("s") else "'s")


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def fill(template: str, **names: str) -> str:
    """Puts names into a template; `{X}` and `{Xs}` start a sentence."""
    x = names.get("x", "")
    return capitalised(
        template.format(**names, xs=possessive(x), X=capitalised(x), Xs=capitalised(possessive(x)))
    )
