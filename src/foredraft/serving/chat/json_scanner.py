"""A JSON object read as it is written, to know where it ends and whether it is still one."""

import re

WHITE = " \t\r\n"
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
IN_NUMBER = set("0123456789+-.eE")
PLAIN = re.compile(r'[^"\\\x00-\x1f]*')  # characters that mean nothing inside a string
WORDS = {"t": "rue", "f": "alse", "n": "ull"}
CLOSING = {"{": "}", "[": "]"}


class JsonScanner:
    """Reads one JSON object strictly, in pieces of any size.

    Attributes:
        open: Brackets that are open, outermost first.
        failed: Whether a character came that no JSON object can have there.
    """

    def __init__(self):
        self.open: list[str] = []
        self.failed = False
        self.state = self.begin
        self.lexeme = ""  # of a number: what is read; of a word or an escape: what is left
        self.is_key = False

    @property
    def depth(self) -> int:
        return len(self.open)

    def push(self, text: str, *, floor: int = 0) -> int:
        """Read on until `floor` brackets are left open or `text` ends; returns how many characters were read.

        The character that fails is not among them.
        """
        place = 0
        while place < len(text):
            if self.state == self.inside_string:
                place = PLAIN.match(text, place).end()
                if place == len(text):
                    break
            closes = self.depth > floor
            if not self.state(text[place]):
                self.failed = True
                break
            place += 1
            if closes and self.depth == floor:
                break
        return place

    def begin(self, character: str) -> bool:
        return character == "{" and self.enter(character)

    def enter(self, bracket: str) -> bool:
        self.open.append(bracket)
        self.state = self.first_key if bracket == "{" else self.first_value
        return True

    def leave(self, bracket: str) -> bool:
        if not self.open or CLOSING[self.open[-1]] != bracket:
            return False
        self.open.pop()
        self.state = self.after_value
        return True

    def first_key(self, character: str) -> bool:
        return self.leave(character) if character == "}" else self.key(character)

    def key(self, character: str) -> bool:
        if character == '"':
            self.is_key, self.state = True, self.inside_string
            return True
        return character in WHITE

    def colon(self, character: str) -> bool:
        if character == ":":
            self.state = self.value
            return True
        return character in WHITE

    def first_value(self, character: str) -> bool:
        return self.leave(character) if character == "]" else self.value(character)

    def value(self, character: str) -> bool:
        if character in WHITE:
            return True
        if character in CLOSING:
            return self.enter(character)
        if character == '"':
            self.is_key, self.state = False, self.inside_string
        elif character in WORDS:
            self.lexeme, self.state = WORDS[character], self.inside_word
        elif character in "-0123456789":
            self.lexeme, self.state = character, self.inside_number
        else:
            return False
        return True

    def after_value(self, character: str) -> bool:
        if character == ",":
            self.state = self.key if self.open[-1] == "{" else self.value
            return True
        return character in WHITE or (character in "}]" and self.leave(character))

    def inside_string(self, character: str) -> bool:
        if character == '"':
            self.state = self.colon if self.is_key else self.after_value
        elif character == "\\":
            self.state = self.escape
        else:
            return character >= " "
        return True

    def escape(self, character: str) -> bool:
        self.lexeme = "0000" if character == "u" else ""
        self.state = self.hexadecimal if self.lexeme else self.inside_string
        return character in '"\\/bfnrtu'

    def hexadecimal(self, character: str) -> bool:
        self.lexeme = self.lexeme[1:]
        if not self.lexeme:
            self.state = self.inside_string
        return character in "0123456789abcdefABCDEF"

    def inside_word(self, character: str) -> bool:
        expected, self.lexeme = self.lexeme[0], self.lexeme[1:]
        if not self.lexeme:
            self.state = self.after_value
        return character == expected

    def inside_number(self, character: str) -> bool:
        if character in IN_NUMBER:
            self.lexeme += character
            return True
        self.state = self.after_value
        return bool(NUMBER.fullmatch(self.lexeme)) and self.after_value(character)
