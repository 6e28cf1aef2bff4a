"""The model of a sweep's best trial: which trainers have kept networks, and that one writes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..metrics import METRICS
from ..trial import Trial, trial_seed
from .lineage import checkpoint_of
from .messages import CopyFailed, CopyReady, ModelSaved, Outcome, SaveModel, Tags
from .models import BEST, how_to_use, provenance_of
from .rank_queues import RankQueues
from .results import SweepResults

if TYPE_CHECKING:
    from diel import Context

    from ..trial_ranks import TrialRanks

_MORE_PASSES: Final = 10


class BestModel:
    """Has a trainer write the model of the best trial, once all trials have ended.

    Parameters
    ----------
    ctx : Context
    tags : Tags
    session : str
        Of the master.
    trainers : int
    objective : str
        The first one, as the file has it.
    seed : int
        Of the sweep.
    ledger : Path
    results : SweepResults
    checkpoints : Path, optional
        The folder of the states of trials, where these go on from each other.
    ranks_of : TrialRanks, optional
        How many ranks of a copy a trial has, where these differ.
    queues : RankQueues, optional
        The orders for these ranks.
    follow_copy : callable
        Takes what a copy says of its begin, or of its end.
    """

    def __init__(
        self,
        ctx: Context,
        tags: Tags,
        session: str,
        trainers: int,
        objective: str,
        seed: int,
        ledger: Path,
        results: SweepResults,
        checkpoints: Path | None,
        ranks_of: TrialRanks | None,
        queues: RankQueues | None,
        follow_copy: Callable[[CopyReady | CopyFailed], None],
    ) -> None:
        self._ctx, self._tags, self._session, self._trainers = ctx, tags, session, trainers
        self._objective, self._seed, self._ledger = objective, seed, ledger
        self._results, self._checkpoints = results, checkpoints
        self._ranks_of, self._queues, self._follow_copy = ranks_of, queues, follow_copy
        self._saves_models: bool | None = None
        self._kept_trials: dict[int, int | None] = {}
        self.text = ""
        """Where the model is, and what scores new rows with it; empty as long as there is none."""

    def note(self, outcome: Outcome) -> None:
        """Note the network that a trainer has kept."""
        self._saves_models = outcome.saves_models
        self._kept_trials[outcome.trainer] = outcome.kept_trial

    def save(self) -> dict[str, str] | None:
        """Have the trainer write the model that has kept its network; return how to use it.

        If none has, one trains it again, the same network bit for bit. None if there is no best
        trial, or trainers write no models. If all trials were recorded already, that is not known
        before.
        """
        best = self._results.best
        if best is None or self._saves_models is False:
            return None
        trial = self._trial(best)
        holders = [copy for copy, kept in self._kept_trials.items() if kept == trial.number]
        is_kept = trial.checkpoint is not None and trial.checkpoint.exists()
        if not holders and self._saves_models and not is_kept:
            text = "trial %d is trained again, to write its model: no trainer here has kept it"
            self._ctx.log.info(text, trial.number)
        wanted = SaveModel(
            *(self._session, trial, self._ledger.with_name(BEST), self._provenance(best)),
            holder=holders[0] if holders else None,
            most_passes=3 * self._trainers + _MORE_PASSES,
        )
        if self._queues is None:
            self._ctx.tuples.tput(self._tags.lease, wanted)
        else:
            wanted = self._give_to_ranks(wanted)
        while True:
            saved = self._ctx.tuples.tget(self._tags.outcome)
            if isinstance(saved, CopyReady | CopyFailed):
                self._follow_copy(saved)
                if self._queues and not self._queues.has(wanted.ranks):
                    wanted = self._give_to_ranks(wanted)
            if isinstance(saved, ModelSaved) and saved.session == self._session:
                break
        if saved.path is None:
            if self._saves_models:
                self._ctx.log.warning("the best model was not kept: %s", saved.reason)
            return None
        self.text = f"the model of trial {trial.number}: {saved.path}"
        usage = how_to_use(self._ctx.run_dir, self._ledger)
        if usage:
            self.text += f"\nto score new rows with it: {usage['command']}"
        return usage

    def _give_to_ranks(self, wanted: SaveModel) -> SaveModel:
        """Give the order for a model to as many ranks as the trial has had; return it with them."""
        assert self._queues is not None
        assert self._ranks_of is not None
        while not self._queues.are_known:  # all trials were recorded already
            message = self._ctx.tuples.tget(self._tags.outcome)
            if isinstance(message, CopyReady | CopyFailed):
                self._follow_copy(message)
        count = self._ranks_of(wanted.trial.parameters)
        ranks = self._queues.group_of(wanted.holder, count)
        given = replace(wanted, ranks=ranks)
        for rank in ranks:
            self._ctx.tuples.tput(self._tags.lease_of(ranks.copy_index, rank), given)
        return given

    def _trial(self, best: dict[str, Any]) -> Trial:
        number = best["trial"]
        # A trial that was taken over was trained with the seed in its row.
        seed = best["seed"] if type(best.get("seed")) is int else trial_seed(self._seed, number)
        return Trial(
            *(number, self._results.parameters_of(best), seed),
            checkpoint=checkpoint_of(self._checkpoints, number),
            parent_checkpoint=checkpoint_of(
                self._checkpoints, self._results.lineage.parent(number)
            ),
        )

    def _provenance(self, best: dict[str, Any]) -> dict[str, Any]:
        number, score = best["trial"], best[self._objective]
        metrics = {name: best[name] for name in METRICS if name in best}
        return provenance_of(
            *(self._ctx.run_dir, self._ledger.parent.name, self._objective, score, metrics),
            epochs=self._results.ended_at.get(number),
            schedule=self._results.lineage.schedule(number),
        )
