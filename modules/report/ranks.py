"""Where the time of the ranks went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .parts import bar, nothing, section
from .picture import Picture
from .sweep import RankAccount
from .wording import Markup, show, tag

_TRAINERS: Final = 32
_RANKS_LISTED: Final = 32
_PARTS: Final = ("working", "waiting", "communicating")


def ranks(accounts: Sequence[RankAccount], picture: Picture | None = None) -> Markup:
    """Show where the time of each rank went; while a run goes on, what each trainer has done."""
    title = "Where the time went"
    if not accounts:
        return section("ranks", title, *_trainers(picture), wide=True)
    keys = [tag("span", tag("i", class_=part), part) for part in _PARTS]
    if len(accounts) > _RANKS_LISTED:
        cells = [
            tag("i", title=f"{_who(one)}: {_share(one, 'working'):.0%} working",
                style=f"--share:{_share(one, 'working'):.2f}")
            for one in accounts
        ]  # fmt: skip
        body = [tag("div", *cells, class_="cells")]
        rows = _by_kind(accounts)
    else:
        body, rows = [], [(_who(one), [one]) for one in accounts]
    for label, some in rows:
        shares = [(sum(_share(one, part) for one in some) / len(some), part) for part in _PARTS]
        body.append(
            tag(
                "div",
                tag("span", label, class_="label", title=label),
                bar(*shares),
                tag("span", f"{shares[0][0]:.0%}{_cpu(some)}", class_="share"),
                class_="row",
            )
        )
    return section(
        "ranks",
        title,
        tag("div", *keys, class_="keys"),
        tag("div", *body, class_="bars"),
        note="Of each rank: computing, waiting for tuples, messages or other ranks, and moving "
        "payloads. Trainers should mostly work. CPU time well below that: a wait for a core, a "
        "module that sleeps, or one that runs a program.",
        wide=True,
    )


def _trainers(picture: Picture | None) -> list[Markup]:
    trainers = picture.gathered.trainers if picture is not None else {}
    if not trainers:
        return [nothing("The account of the ranks comes with the end of the run.")]
    ranked = sorted(trainers.items(), key=lambda one: (str(type(one[0])), one[0]))
    most = max(trainers.values())
    rows = [
        tag(
            "div",
            tag("span", f"trainer {show(trainer)}", class_="label"),
            bar((many / most, "working")),
            tag("span", f"{many:,} trials", class_="share"),
            class_="row",
        )
        for trainer, many in ranked[:_TRAINERS]
    ]
    more = len(ranked) - _TRAINERS
    tail = f" {more:,} more trainers are left out." if more > 0 else ""
    return [
        tag("div", *rows, class_="bars"),
        tag("p", f"Each trainer, by trials.{tail} The account of all ranks comes with the end of "
            "the run.", class_="fine"),
    ]  # fmt: skip


def _who(account: RankAccount) -> str:
    ran = ", ".join(account.copies[:2]) or "nothing"
    more = len(account.copies) - 2
    tail = f" and {more} more" if more > 0 else ""
    return f"rank {account.rank} on {account.host}: {ran}{tail}"


def _share(account: RankAccount, part: str) -> float:
    whole = account.working_s + account.waiting_s + account.communicating_s
    spent: float = getattr(account, f"{part}_s")
    return spent / whole if whole else 0.0


def _cpu(accounts: Sequence[RankAccount]) -> str:
    wall_s = sum(one.working_s + one.waiting_s + one.communicating_s for one in accounts)
    known_s = [one.cpu_s for one in accounts if one.cpu_s is not None]
    return f", CPU {sum(known_s) / wall_s:.0%}" if known_s and wall_s else ""


def _by_kind(accounts: Sequence[RankAccount]) -> list[tuple[str, list[RankAccount]]]:
    """Put together ranks on which copies of the same modules ran."""
    kinds: dict[str, list[RankAccount]] = {}
    for one in accounts:
        names = sorted({copy.rpartition(".")[0] or copy for copy in one.copies})
        kinds.setdefault(", ".join(names) or "nothing", []).append(one)
    return [(f"{len(some):,} ranks: {kind}", some) for kind, some in kinds.items()]
