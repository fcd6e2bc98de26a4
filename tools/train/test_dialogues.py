"""What is held out never occurs in training."""

import json
import random
import unittest
from pathlib import Path

import evaluate
import phrasings
from dialogues import Facts, Generator, held_out

FACTS = Path(__file__).parent / "build/facts.json"
DIALOGUES = 3000


@unittest.skipUnless(FACTS.exists(), "facts.py has not run")
class HeldOut(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.tables = json.loads(FACTS.read_text())
        generator = Generator(Facts(cls.tables))
        cls.trained = [
            turn for i in range(DIALOGUES) for turn in generator.dialogue(random.Random(f"train {i}")).turns
        ]

    def test_no_phrasing_is_in_both_halves(self) -> None:
        for relation, templates in phrasings.HELD_OUT.items():
            self.assertFalse(set(templates) & set(phrasings.TRAINING[relation]), relation)

    def test_no_question_of_the_evaluation_is_trained(self) -> None:
        trained = {turn.user.lower().strip("?.! ") for turn in self.trained}
        asked = evaluate.questions(self.tables)
        single = [q for q in asked if len([m for m in q.messages if m["role"] != "system"]) == 1]
        self.assertGreater(len(single), 600)
        for question in single:
            self.assertNotIn(question.messages[-1]["content"].lower().strip("?.! "), trained)

    def test_questions_have_one_answer(self) -> None:
        answers: dict[str, str] = {}
        for question in evaluate.questions(self.tables):
            key = json.dumps([question.messages, question.thinking])
            self.assertEqual(answers.setdefault(key, question.expected), question.expected)

    def test_held_out_sums_are_never_trained(self) -> None:
        sums = [turn.answer.split() for turn in self.trained if turn.kind in ("sum", "then_add")]
        self.assertGreater(len(sums), 1000)
        for a, operation, b, *_ in sums:
            self.assertFalse(held_out(operation, a, b), (a, operation, b))

    def test_invented_names_are_no_words(self) -> None:
        known = Facts(self.tables).known
        generator = Generator(Facts(self.tables))
        for kind in ("country", "city", "element", "word", "person"):
            for i in range(300):
                name = generator.invented(random.Random(f"{kind} {i}"), kind)
                self.assertNotIn(name.lower(), known)


if __name__ == "__main__":
    unittest.main()
