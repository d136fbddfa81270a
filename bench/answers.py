"""What the answers of a mesh came to, by the accounts that its replies carry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from allroads.training.problems import Problem, read_answer


@dataclass(frozen=True)
class Account:
    """Sums over answers; what is by tier names the small model first and the largest last."""

    num_answers: int
    num_right: int
    """Answers whose number is exactly that of the problem."""
    tokens: dict[str, int]
    """Committed tokens by the name of the tier that wrote them."""
    computed: tuple[int, ...]
    """Token positions that each tier computed: prompts, catch-up and dropped proposals included."""
    num_positions: int
    """Token positions of prompts and answers, each once."""
    num_scored: int
    """Proposals that the router scored."""
    num_drafts: int
    """Drafts that a larger model judged."""
    num_accepted: int
    """Drafts that stood."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(self.tokens.values())

    @property
    def shares(self) -> dict[str, float]:
        """Of the answers' tokens, by tier."""
        return {name: count / self.num_tokens for name, count in self.tokens.items()}

    @property
    def llm_share(self) -> float:
        """Of the answers' tokens, those that the small model did not write."""
        slm, *_ = self.tokens.values()
        return 1 - slm / self.num_tokens


def account(replies: Sequence[dict[str, Any]], sample: Sequence[Problem]) -> Account:
    """The sums of whole replies to these problems, at least one."""
    blocks = [reply["routing"] for reply in replies]
    usages = [reply["usage"] for reply in replies]
    names = list(blocks[0]["tokens"])
    return Account(
        num_answers=len(replies),
        num_right=sum(
            read_answer(reply["choices"][0]["message"]["content"]) == problem.answer
            for reply, problem in zip(replies, sample, strict=True)
        ),
        tokens={name: sum(block["tokens"][name] for block in blocks) for name in names},
        computed=tuple(sum(block["computed_tokens"][tier] for block in blocks) for tier in range(len(names))),
        num_positions=sum(usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages),
        num_scored=sum(block["scored_tokens"] for block in blocks),
        num_drafts=sum(block["drafts"]["judged"] for block in blocks),
        num_accepted=sum(block["drafts"]["accepted"] for block in blocks),
    )
