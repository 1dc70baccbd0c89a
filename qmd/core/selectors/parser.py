"""Parser of selectors: it returns a function of the properties of a message.

    or:      and { OR and }
    and:     not { AND not }
    not:     { NOT } condition
    condition: sum [ comparison sum | [NOT] BETWEEN sum AND sum
                   | [NOT] LIKE text [ESCAPE text] | [NOT] IN ( text, ... ) | IS [NOT] NULL ]
    sum:     product { + product }        product: sign { * sign }        sign: { - } operand
    operand: literal | name | ( or )

Limits hold for the length, the depth and the number of operands, so that a selector is evaluated
without deep recursion and in bounded time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qmd.core.selectors import operations as made
from qmd.core.selectors.like import compile_like
from qmd.core.selectors.operations import Lookup, Node, Value
from qmd.core.selectors.tokens import BadSelector, Token, tokens_of

DEPTH_MAX = 32
OPERANDS_MAX = 500

ANY, NUMBER, TEXT, TRUTH = "a property", "a number", "a text", "a condition"
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")


class Selector:
    """A condition on the properties of a message."""

    def __init__(self, text: str, node: Node, names: frozenset[str], operands: int) -> None:
        self.text = text
        self.names = names  # of the properties that it refers to
        self.operands = operands
        self._node = node

    def matches(self, lookup: Lookup) -> bool:
        """Return whether the condition is true; `lookup` returns a property, None for no value."""
        return self._node(lookup) is True


class Part(NamedTuple):
    """A parsed part: `kind` is the kind of its value, as far as the text shows it."""

    kind: str
    node: Node
    name: str | None = None  # of a part that is a name alone


def parse_selector(text: str) -> Selector:
    """Return the selector of a text.  Raises BadSelector."""
    return _Parser(text).parse()


def _property(name: str) -> Node:
    return lambda lookup: lookup(name)


def _literal(value: Value) -> Node:
    return lambda lookup: value


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._index = 0
        self._depth = 0
        self._operands = 0
        self._names: set[str] = set()

    def parse(self) -> Selector:
        if self._next.kind == "end":
            raise BadSelector("the selector is empty", 0)
        part = self._or()
        if self._next.kind != "end":
            raise BadSelector(f"{self._shown()} is not expected", self._next.at)
        self._need(part, TRUTH, 0)
        return Selector(self._text, part.node, frozenset(self._names), self._operands)

    # Tokens.

    @property
    def _next(self) -> Token:
        return self._tokens[self._index]

    def _take(self) -> Token:
        token = self._next
        self._index += 1
        return token

    def _word(self, *words: str) -> str:
        """Take the next token if it is one of these words or signs; return it, or ""."""
        token = self._next
        if token.kind in ("word", "sign") and token.value in words:
            self._index += 1
            return str(token.value)
        return ""

    def _expect(self, word: str) -> None:
        if not self._word(word):
            raise BadSelector(f"{word} is expected in place of {self._shown()}", self._next.at)

    def _shown(self) -> str:
        token = self._next
        return "the end" if token.kind == "end" else repr(token.value)

    def _string(self) -> str:
        token = self._take()
        if token.kind != "text":
            self._index -= 1
            raise BadSelector(f"a text is expected in place of {self._shown()}", token.at)
        return str(token.value)

    def _need(self, part: Part, kind: str, at: int) -> Node:
        """Return the node of a part that may have a value of this kind.  Raises BadSelector."""
        if part.kind not in (kind, ANY):
            raise BadSelector(f"{kind} is expected in place of {part.kind}", at)
        return part.node

    # Rules.

    def _or(self) -> Part:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise BadSelector(f"there are more than {DEPTH_MAX} levels", self._next.at)
        part = self._joined("OR", self._and, made.disjunction)
        self._depth -= 1
        return part

    def _and(self) -> Part:
        return self._joined("AND", self._not, made.conjunction)

    def _joined(
        self, word: str, rule: Callable[[], Part], join: Callable[[list[Node]], Node]
    ) -> Part:
        at = self._next.at
        part = rule()
        if self._next.kind != "word" or self._next.value != word:
            return part
        nodes = [self._need(part, TRUTH, at)]
        while self._word(word):
            at = self._next.at
            nodes.append(self._need(rule(), TRUTH, at))
        return Part(TRUTH, join(nodes))

    def _not(self) -> Part:
        negations = 0
        while self._word("NOT"):
            negations += 1
        at = self._next.at
        part = self._condition()
        if not negations:
            return part
        node = made.negation(self._need(part, TRUTH, at))
        return Part(TRUTH, node if negations % 2 else made.negation(node))

    def _condition(self) -> Part:
        at = self._next.at
        part = self._sum()
        if sign := self._word(*_COMPARISONS):
            return self._comparison(part, sign, at)
        if self._word("IS"):
            is_not = self._word("NOT")
            self._expect("NULL")
            node = made.is_null(self._name(part, "IS NULL", at))
            return Part(TRUTH, made.negation(node) if is_not else node)
        is_not = ""
        if self._next.kind == "word" and self._next.value == "NOT":
            is_not = self._word("NOT")
        if self._word("BETWEEN"):
            node = self._between(part, at)
        elif self._word("LIKE"):
            node = self._like(part, at)
        elif self._word("IN"):
            node = self._in(part, at)
        elif is_not:
            shown = self._shown()
            raise BadSelector(f"BETWEEN, LIKE or IN is expected in place of {shown}", self._next.at)
        else:
            return part
        return Part(TRUTH, made.negation(node) if is_not else node)

    def _comparison(self, left: Part, sign: str, at: int) -> Part:
        second = self._next.at
        right = self._sum()
        if sign not in made.EQUALITIES:
            self._need(left, NUMBER, at)
            self._need(right, NUMBER, second)
        elif ANY not in (left.kind, right.kind) and left.kind != right.kind:
            raise BadSelector(f"{left.kind} is compared with {right.kind}", at)
        return Part(TRUTH, made.comparison(sign, left.node, right.node))

    def _name(self, part: Part, operator: str, at: int) -> Node:
        if part.name is None:
            raise BadSelector(f"the name of a property is expected before {operator}", at)
        return part.node

    def _between(self, value: Part, at: int) -> Node:
        first = self._next.at
        low = self._need(self._sum(), NUMBER, first)
        self._expect("AND")
        second = self._next.at
        high = self._need(self._sum(), NUMBER, second)
        return made.between(self._need(value, NUMBER, at), low, high)

    def _like(self, value: Part, at: int) -> Node:
        node = self._name(value, "LIKE", at)
        pattern_at = self._next.at
        pattern, escape = self._string(), ""
        if self._word("ESCAPE"):
            escape_at = self._next.at
            escape = self._string()
            if len(escape) != 1:
                raise BadSelector("ESCAPE takes one character", escape_at)
        try:
            return made.is_like(node, compile_like(pattern, escape))
        except ValueError as error:
            raise BadSelector(str(error), pattern_at) from error

    def _in(self, value: Part, at: int) -> Node:
        node = self._name(value, "IN", at)
        self._expect("(")
        texts = [self._string()]
        while self._word(","):
            texts.append(self._string())
        self._expect(")")
        return made.is_among(node, frozenset(texts))

    def _sum(self) -> Part:
        return self._chain(("+", "-"), self._product)

    def _product(self) -> Part:
        return self._chain(("*", "/"), self._signed)

    def _chain(self, signs: tuple[str, ...], rule: Callable[[], Part]) -> Part:
        at = self._next.at
        part = rule()
        rest: list[tuple[str, Node]] = []
        while sign := self._word(*signs):
            second = self._next.at
            rest.append((sign, self._need(rule(), NUMBER, second)))
        if not rest:
            return part
        return Part(NUMBER, made.chain(self._need(part, NUMBER, at), rest))

    def _signed(self) -> Part:
        signs = ""
        while sign := self._word("+", "-"):
            signs += sign
        at = self._next.at
        part = self._operand(is_negative=signs.endswith("-"))
        if not signs:
            return part
        node = self._need(part, NUMBER, at)
        return Part(NUMBER, made.minus(node) if signs.count("-") % 2 else made.plus(node))

    def _operand(self, *, is_negative: bool) -> Part:
        self._operands += 1
        if self._operands > OPERANDS_MAX:
            raise BadSelector(f"there are more than {OPERANDS_MAX} operands", self._next.at)
        token = self._take()
        if token.kind == "number":
            if token.value == 1 << 63 and isinstance(token.value, int) and not is_negative:
                raise BadSelector(f"{token.value} has more than 64 bits", token.at)
            return Part(NUMBER, _literal(token.value))
        if token.kind == "text":
            return Part(TEXT, _literal(token.value))
        if token.kind == "name":
            name = str(token.value)
            self._names.add(name)
            return Part(ANY, _property(name), name)
        if token.value in ("TRUE", "FALSE"):
            return Part(TRUTH, _literal(token.value == "TRUE"))
        if token == Token("sign", "(", token.at):
            part = self._or()
            self._expect(")")
            return part._replace(name=None)
        self._index -= 1
        raise BadSelector(
            f"a property, a literal or ( is expected in place of {self._shown()}", token.at
        )
