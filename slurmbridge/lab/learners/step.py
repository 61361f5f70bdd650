#!/usr/bin/python3
"""How long does a gradient step of the scorer take in PyTorch, on one core?

    apt install python3-torch
    taskset -c 0 slurmbridge/lab/learners/step.py [--combos 4] [--seconds 3]

The same step as `go test -run '^$' -bench '^BenchmarkStep' -cpu 1 ./rlcore/dqn`: the same
networks (19-32-1 and 51-32-32-1), 32 decisions of --combos combinations each, Adam, and the
norm of each network's gradient bounded; float32. `rewards` is double Q-learning from
transitions, `lessons` learning from decisions that were played out. All decisions are one
matrix. They lie there ready: drawing them from a memory is no part of the time here, as it
is there. Printed is the median of the steps' times.
"""
import argparse
import math
import statistics
import time
from typing import List

import torch

CONTEXT, COMBO, HIDDEN, BATCH, CLIP = 19, 32, 32, 32, 5.0


class Scorer:
    """V and A, whose parameters lie in one tensor each, as their gradients do: PyTorch's own
    optimisers and clip_grad_norm_ take twice as long for parameters this small."""

    def __init__(self):
        self.value, self.theta_v, self.grad_v = flat((CONTEXT, HIDDEN, 1))
        self.better, self.theta_a, self.grad_a = flat((CONTEXT + COMBO, HIDDEN, HIDDEN, 1))
        self.blocks = [(self.theta_v, self.grad_v), (self.theta_a, self.grad_a)]

    def __call__(self, context, rows, prior):
        return q(context, rows, prior, self.value, self.better)


def flat(sizes):
    """Returns the layers' weights and biases, the tensor that holds them, and its gradient."""
    shapes = [s for i, o in zip(sizes, sizes[1:]) for s in ((o, i), (o,))]
    n = sum(math.prod(s) for s in shapes)
    theta, grad, out, at = 0.1 * torch.randn(n), torch.zeros(n), [], 0
    for s in shapes:
        p = theta[at:at + math.prod(s)].view(s).requires_grad_()
        p.grad = grad[at:at + math.prod(s)].view(s)
        out.append(p)
        at += math.prod(s)
    return out, theta, grad


@torch.jit.script
def q(context, rows, prior, value: List[torch.Tensor], better: List[torch.Tensor]):
    n, combos = rows.shape[0], rows.shape[1]
    x = torch.cat((context.unsqueeze(1).expand(-1, combos, -1), rows), 2).view(n * combos, -1)
    v = torch.addmm(value[1], context, value[0].t()).relu()
    v = torch.addmm(value[3], v, value[2].t())
    a = torch.addmm(better[1], x, better[0].t()).relu()
    a = torch.addmm(better[3], a, better[2].t()).relu()
    a = torch.addmm(better[5], a, better[4].t()).view(n, combos)
    return 0.5 * (prior - 1) + v + a - a.mean(1, keepdim=True)


class Adam:
    def __init__(self, blocks, rate):
        self.blocks, self.rate, self.t = blocks, rate, 0
        self.m, self.v = [[torch.zeros_like(b) for b, _ in blocks] for _ in range(2)]

    @torch.no_grad()
    def step(self):
        self.t += 1
        rate = self.rate * math.sqrt(1 - 0.999 ** self.t) / (1 - 0.9 ** self.t)
        for (theta, grad), m, v in zip(self.blocks, self.m, self.v):
            grad.mul_((CLIP / (grad.norm() + 1e-6)).clamp(max=1))
            m.lerp_(grad, 0.1)
            v.mul_(0.999).addcmul_(grad, grad, value=0.001)
            theta.addcdiv_(m, v.sqrt().add_(1e-8), value=-rate)
            grad.zero_()


def decisions(combos):
    return torch.randn(BATCH, CONTEXT), torch.randn(BATCH, combos, COMBO), torch.rand(BATCH, combos)


def rewards(net, combos):
    """Returns the loss of double Q-learning, as a function."""
    target = Scorer()
    now, after = decisions(combos), decisions(combos)
    reward, decay, weight = torch.randn(BATCH), torch.full((BATCH,), 0.98), torch.rand(BATCH)
    taken = torch.randint(combos, (BATCH, 1))

    def loss():
        with torch.no_grad():
            best = net(*after).argmax(1, keepdim=True)
            goal = reward + decay * target(*after).gather(1, best).squeeze(1)
        q = net(*now).gather(1, taken).squeeze(1)
        return (weight * torch.nn.functional.huber_loss(q, goal, reduction="none")).mean()
    return loss


def lessons(net, combos):
    """Returns the loss against what playing four of the combinations out has shown."""
    now, few = decisions(combos), min(4, combos)
    of, want = torch.rand(BATCH, combos).argsort(1)[:, :few], torch.randn(BATCH, few)

    def loss():
        q = net(*now).gather(1, of)
        return torch.nn.functional.huber_loss(q - q.mean(1, keepdim=True).detach(), want, delta=0.2)
    return loss


def median_us(kind, combos, seconds):
    torch.manual_seed(1)
    net = Scorer()
    loss, adam = kind(net, combos), Adam(net.blocks, 3e-3)
    took, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        loss().backward()
        adam.step()
        took.append(time.perf_counter() - began)
    return 1e6 * statistics.median(took[len(took) // 10:])


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--combos", type=int, default=4)
    p.add_argument("--seconds", type=float, default=3)
    a = p.parse_args()
    torch.set_num_threads(1)
    for kind in (rewards, lessons):
        us = median_us(kind, a.combos, a.seconds)
        print(f"{kind.__name__}: {us:.0f} us a step, torch {torch.__version__}")


if __name__ == "__main__":
    main()
