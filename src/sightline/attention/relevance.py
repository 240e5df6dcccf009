"""The relevance of input tokens over all layers: attention rollout, and attention weighted by its gradient.

Shapes: B batch, H heads, Q queries, K keys, T tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from ..errors import SightlineError, check
from .attention_map import AttentionMap
from .functional import Kind
from .layout import TOKENS
from .record import Record

Targets = Tensor | Mapping[str, Tensor]
SEQUENCES: dict[Kind, tuple[str, str]] = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}
"""The query and key sequence of each kind."""
KINDS: dict[tuple[str, str], Kind] = {sequences: kind for kind, sequences in SEQUENCES.items()}


class Paths:
    """How much each token of a layer depends on each token of the input.

    The matrices (B, T, T) are those between source tokens, between target tokens, and from target to source. They start
    as the identity or zero, and every layer updates them.
    """

    def __init__(self, maps: Sequence[AttentionMap], measure: str) -> None:
        self.sizes: dict[str, int] = {}
        for m in maps:
            for sequence, size in zip(SEQUENCES[m.kind], m.weights.shape[2:], strict=True):
                known = self.sizes.setdefault(sequence, size)
                fix = "record one forward pass over the whole text, or select one part of the model with layers="
                rule = f"{measure} must be over maps with one number of {sequence} tokens"
                check(known == size, f"{rule}, got {known} and {size} in {m.name}; {fix}")
        example, batch = maps[0].weights, len(maps[0].weights)
        self.matrices = {
            (sequence, sequence): torch.eye(size, device=example.device).expand(batch, -1, -1)
            for sequence, size in self.sizes.items()
        }
        if any(m.kind == "cross" for m in maps):
            target, source = self.sizes["target"], self.sizes["source"]
            self.matrices["target", "source"] = torch.zeros(batch, target, source, device=example.device)

    def follow(self, kind: Kind, weights: Tensor) -> None:
        """Rollout through a layer: weights (B, Q, K), averaged with the identity"""
        if kind == "cross":
            source = weights @ self.matrices["source", "source"]
            self._mix("target", {("target", "source"): source})
        else:
            sequence = SEQUENCES[kind][0]
            self._mix(sequence, {key: weights @ x for key, x in self.matrices.items() if key[0] == sequence})

    def _mix(self, sequence: str, added: Mapping[tuple[str, str], Tensor]) -> None:
        for key, x in self.matrices.items():
            if key[0] == sequence:
                self.matrices[key] = (x + added.get(key, 0)) / 2

    def accumulate(self, kind: Kind, weights: Tensor) -> None:
        """Relevance through a layer by the rules of Chefer et al. (2021): weights (B, Q, K), times their gradient"""
        matrices = self.matrices
        if kind == "cross":
            target, source = (_normalized(matrices[name, name]) for name in ("target", "source"))
            matrices["target", "source"] = matrices["target", "source"] + target.mT @ weights @ source
        else:
            sequence = SEQUENCES[kind][0]
            for key, x in matrices.items():
                if key[0] == sequence:
                    matrices[key] = x + weights @ x


def rollout(record: Record, layers: str = "*") -> Record:
    """Attention rollout, as a map (B, 1, Q, K) of each kind. See `Record.rollout`."""
    maps = []
    for call in _calls(record, layers, "rollout"):
        paths = Paths(call, "rollout")
        for m in call:
            check(m.entropy() is not None, f"rollout must be given weights that sum to 1, got others in {m.name}")
            paths.follow(m.kind, m.weights.float().mean(1))
        maps += [
            _derived(call[0], x, name=f"rollout, {KINDS[key]}", kind=KINDS[key], measure="rollout")
            for key, x in paths.matrices.items()
        ]
    return record.with_maps(maps)


def relevance(record: Record, targets: Targets, layers: str = "*") -> Record:
    """The relevance of each input token for each target. See `Record.relevance`."""
    named = dict(targets) if isinstance(targets, Mapping) else {"target": targets}
    check(named, "targets must contain at least one target, got none")
    maps, unused = [], set(named)
    for call in _calls(record, layers, "relevance"):
        perturbations = [m.perturbation for m in call if m.perturbation is not None]
        fix = "record with record_attention(model, gradients=True)"
        check(len(perturbations) == len(call), f"relevance must be given a record with gradients, got none; {fix}")
        gradients = {name: _gradients(name, x, perturbations) for name, x in named.items()}
        unused -= {name for name, found in gradients.items() if any(g is not None for g in found)}
        rows = [_rows(call, found) for found in gradients.values()]
        for sequence in rows[0]:
            weights = torch.stack([row[sequence] for row in rows], 1)
            name = f"relevance of the {sequence}" if len(rows[0]) > 1 else "relevance"
            kind = KINDS[sequence, sequence]
            maps.append(_derived(call[0], weights, name=name, kind=kind, measure="relevance", queries=tuple(named)))
    rule = "targets must be computed from the outputs of the recorded calls"
    check(not unused, f"{rule}, got {', '.join(map(repr, sorted(unused)))}, which does not depend on their attention")
    return record.with_maps(maps)


def _gradients(name: str, target: Tensor, perturbations: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """The gradient of the target with respect to the weights of each map, (B, H, Q, K) each; None if there is none"""
    is_valid = isinstance(target, Tensor) and target.dim() <= 1 and target.requires_grad
    got = f"{tuple(target.shape)}, requires_grad={target.requires_grad}" if isinstance(target, Tensor) else repr(target)
    rule = "targets must be tensors () or (B,) with a gradient, computed from outputs inside or after the recording"
    check(is_valid, f"{rule}, got {got} for {name!r}")
    try:
        return torch.autograd.grad(target.sum(), perturbations, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        rule = f"the graph of target {name!r} must not be freed"
        raise SightlineError(f"{rule}, got one after backward(); call relevance before it") from error


def _rows(maps: Sequence[AttentionMap], gradients: Sequence[Tensor | None]) -> dict[str, Tensor]:
    """The relevance of the tokens of each sequence that the target depends on: (B, T) each"""
    weighted = [
        replace(m, weights=_times(m, gradient).float(), scores=None).in_place()
        for m, gradient in zip(maps, gradients, strict=True)
    ]
    paths = Paths(weighted, "relevance")
    for m in weighted:
        paths.accumulate(m.kind, m.weights.clamp(min=0).mean(1))
    sequence = "target" if "target" in paths.sizes else "source"
    last = [m for m in weighted if SEQUENCES[m.kind][0] == sequence][-1]
    is_read = last.weights.abs().amax((1, 3)) > 0
    is_read = is_read | ~is_read.any(1, keepdim=True)
    share = is_read / is_read.sum(1, keepdim=True)
    rows = {key[1]: (share[:, None] @ x)[:, 0] for key, x in paths.matrices.items() if key[0] == sequence}
    return rows | {sequence: rows[sequence] - share}  # without the identity: only what attention adds


def _times(m: AttentionMap, gradient: Tensor | None) -> Tensor:
    """The weights times their gradient, zeros without one: (B, H, Q, K), where the model ran"""
    if gradient is None:
        assert m.perturbation is not None
        return torch.zeros_like(m.perturbation)
    return m.weights.to(gradient.device) * gradient


def _normalized(x: Tensor) -> Tensor:
    """The relevance without the identity, with rows that sum to 1, plus the identity: (B, T, T)"""
    identity = torch.eye(x.shape[-1], device=x.device)
    x = x - identity
    return x / x.sum(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny) + identity


def _calls(record: Record, layers: str, name: str) -> list[list[AttentionMap]]:
    """The maps between tokens that take part, by call of the model."""
    calls: dict[int | None, list[AttentionMap]] = {}
    for m in record.of("attention"):
        if fnmatchcase(m.name, layers) and m.over == TOKENS:
            calls.setdefault(m.call_index, []).append(m if name == "relevance" else m.in_place())
    if not calls:
        names = ", ".join(record.names()) or "none"
        raise SightlineError(f"layers must match a map between tokens, got {layers!r}; the record has {names}")
    return list(calls.values())


def _derived(m: AttentionMap, weights: Tensor, **fields: Any) -> AttentionMap:
    """A map (B, 1, Q, K) of the same call: weights (B, Q, K)"""
    return AttentionMap(**fields, weights=weights.unsqueeze(1), heads=(), call_index=m.call_index)
