#!/usr/bin/env python3
"""Makes the golden arrays of this folder with PyTorch in float64: every layer and whole training steps, values and gradients.

    python make.py        # needs torch and numpy; writes *.npz beside itself, the same bytes each time

Keys of a file: `param/NAME` initial parameters, `in/NAME` inputs, `out/NAME` results, `grad/NAME` gradients of the loss (of
`sum(out * in/weight)` for single layers) by parameter, `din/NAME` by input. Parameters carry the crate's names: wide matrices are
cut into column blocks only when they are written, so the arithmetic here is that of the papers, on concatenations.
"""
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).parent
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


class Case:
    """Arrays of one file, and a generator of its own so that cases do not depend on each other."""

    def __init__(self, name, seed):
        self.name, self.arrays, self.rng = name, {}, torch.Generator().manual_seed(seed)
        self.params, self.leaves = [], {}

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.rng).float().double()     # exact in f32 as well

    def uniform(self, *shape):
        return torch.rand(*shape, generator=self.rng).float().double()

    def index(self, high, *shape):
        return torch.randint(high, shape, generator=self.rng)

    def put(self, key, value):
        self.arrays[key] = value.detach().numpy().copy() if torch.is_tensor(value) else np.asarray(value)

    def input(self, name, value, grad=False):
        self.put(f"in/{name}", value)
        if grad:
            self.leaves[name] = value.requires_grad_(True)
        return value

    def weight(self, name, d_out, widths, scale=0.4):
        """A [d_out, sum(widths)] matrix, stored as the blocks `name.block`; widths: {block: width}."""
        matrix = (self.normal(d_out, sum(widths.values())) * scale).float().double().requires_grad_(True)
        self.params.append((matrix, {f"{name}.{block}": width for block, width in widths.items()}))
        return matrix

    def tensor(self, name, *shape, scale=0.4):
        value = (self.normal(*shape) * scale).float().double().requires_grad_(True)
        self.params.append((value, name))
        return value

    def constant_param(self, name, value):
        value = value.float().double().requires_grad_(True)
        self.params.append((value, name))
        return value

    def by_name(self, which):
        for value, names in self.params:
            part = value if which == "param" else (torch.zeros_like(value) if value.grad is None else value.grad)
            if isinstance(names, str):
                yield names, part
            else:
                yield from zip((n for n, w in names.items() if w), (b for b in part.split(list(names.values()), 1) if b.shape[1]))

    def save(self, loss):
        for name, value in self.by_name("param"):
            self.put(f"param/{name}", value)
        loss.backward()
        for name, value in self.by_name("grad"):
            self.put(f"grad/{name}", value)
        for name, leaf in self.leaves.items():
            self.put(f"din/{name}", leaf.grad)
        np.savez_compressed(HERE / f"{self.name}.npz", **self.arrays)

    def save_layer(self, out):
        self.put("out/out", out)
        self.save((out * self.input("weight", self.normal(*out.shape))).sum())


# ---- the layers, on concatenations -------------------------------------------------------------------------------------

def code(dt, w, b):
    return torch.cos(dt.unsqueeze(-1) * w + b)


def declare_time(case, dim):
    return case.constant_param("time.w", 10.0 ** -torch.linspace(0, 3, dim)), case.tensor("time.b", dim)


def declare_cell(case, kind, widths):
    d = widths["own"]
    cell = (nn.GRUCell if kind == "gru" else nn.RNNCell)(sum(widths.values()), d)
    gates = 3 * d if kind == "gru" else d
    w_ih, w_hh = case.weight(f"{kind}.w_ih", gates, widths), case.weight(f"{kind}.w_hh", gates, {"own": d})
    values = dict(weight_ih=w_ih, weight_hh=w_hh, bias_ih=case.tensor(f"{kind}.b_ih", gates), bias_hh=case.tensor(f"{kind}.b_hh", gates))
    return lambda x, h: torch.func.functional_call(cell, values, (x, h))


def segment_mean(x, segment, count):
    return torch.stack([x[segment == i].mean(0) for i in range(count)])


def declare_attention(case, name, d, d_edge, d_time, heads, root_time=True):
    q, kv = d + d_time, {"memory": d, "edge": d_edge, "time": d_time}
    wq = case.weight(f"{name}.wq", q, {"memory": d, "time": d_time} if root_time else {"memory": d})
    wk, wv = case.weight(f"{name}.wk", q, kv), case.weight(f"{name}.wv", q, kv)
    bq, bv, bo = (case.tensor(f"{name}.b{c}", q) for c in "qvo")
    wo = case.tensor(f"{name}.wo", q, q)

    def attend(query, key, valid, keep, p):
        """query [R, .], key [R, K, .], valid [R, K], keep [R, H, K] or None -> [R, q]"""
        bias = torch.cat([bq, torch.zeros(q), bv])
        has = valid.any(1)
        split = lambda x: x.unflatten(-1, (heads, -1)).movedim(-2, 1)       # [R, H, L, q / H]
        qs, ks, vs = (split(F.linear(x, w, b)) for x, w, b in ((query[:, None], wq, bq), (key, wk, None), (key, wv, bv)))
        score = (qs @ ks.mT).squeeze(2) / (q // heads) ** 0.5               # [R, H, K]
        a = torch.where(has[:, None, None], score.masked_fill(~valid[:, None], -torch.inf), 0.0).softmax(-1)
        a = a if keep is None else a * keep / (1 - p)
        out = F.linear((a.unsqueeze(2) @ vs).squeeze(2).flatten(1), wo, bo) * has[:, None]
        if keep is None and root_time:                                      # PyTorch's own module says the same
            theirs, _ = F.multi_head_attention_forward(
                query[has][None], key[has].transpose(0, 1), key[has].transpose(0, 1), q, heads, None, bias, None, None, False, 0.0,
                wo, bo, key_padding_mask=~valid[has], use_separate_proj_weight=True, q_proj_weight=wq, k_proj_weight=wk, v_proj_weight=wv)
            torch.testing.assert_close(out[has], theirs[0], rtol=0, atol=1e-13)
        return out

    return attend


def declare_mlp(case, name, widths, hidden, d_out):
    w1, b1 = case.weight(f"{name}.w1", hidden, widths), case.tensor(f"{name}.b1", hidden)
    w2, b2 = case.tensor(f"{name}.w2", d_out, hidden), case.tensor(f"{name}.b2", d_out)
    return lambda *x: F.linear(F.relu(F.linear(torch.cat(x, -1), w1, b1)), w2, b2)


def declare_embedding(case, kind, name, d, d_edge, d_time, z, heads, root_time):
    """-> forward(time, below, roots) with roots as `make_roots` returns them."""
    if kind == "identity":
        return lambda time, below, r: below[r["root"]]
    if kind == "time":
        w = case.tensor(f"{name}.time.w", d)
        return lambda time, below, r: below[r["root"]] * (1 + r["root_dt"][:, None] * w)
    if kind == "sum":
        w1, b1 = case.weight(f"{name}.sum.w1", z, {"memory": d, "edge": d_edge, "time": d_time}), case.tensor(f"{name}.sum.b1", z)
        w2, b2 = case.weight(f"{name}.sum.w2", z, {"memory": d, "sum": z}), case.tensor(f"{name}.sum.b2", z)

        def forward(time, below, r):
            x = F.linear(torch.cat([below[r["neighbor"]], r["edge_features"], code(r["dt"], *time)], -1), w1, b1)
            return F.linear(torch.cat([below[r["root"]], F.relu((x * r["valid"][..., None]).sum(1))], -1), w2, b2)
        return forward

    attend = declare_attention(case, f"{name}.attn", d, d_edge, d_time, heads, root_time)
    merge = declare_mlp(case, f"{name}.merge", {"attn": d + d_time, "memory": d}, z, z)

    def forward(time, below, r):
        root = below[r["root"]]
        query = torch.cat([root, code(torch.zeros(len(root)), *time)], -1) if root_time else root
        key = torch.cat([below[r["neighbor"]], r["edge_features"], code(r["dt"], *time)], -1)
        return merge(attend(query, key, r["valid"], r["keep"], r["dropout"]), root)
    return forward


def make_roots(case, prefix, below, count, fanout, d_edge, heads, dropout):
    """Roots of one hop; root 1 has no neighbor, root 2 all of them."""
    valid = case.uniform(count, fanout) < 0.6
    valid[1], valid[2] = False, True
    roots = dict(
        root=case.index(below, count), neighbor=case.index(below, count, fanout) * valid, valid=valid,
        dt=case.uniform(count, fanout).mul(30).float().double() * valid, root_dt=case.uniform(count).mul(30).float().double(),
        edge_features=case.normal(count, fanout, d_edge))
    keep = (case.uniform(count, heads, fanout) >= dropout).double() if dropout else None
    for name, value in (roots | ({"keep": keep} if dropout else {})).items():
        case.input(prefix + name, value)
    return roots | dict(keep=keep, dropout=dropout)


# ---- the files -----------------------------------------------------------------------------------------------------------

def time_encoder():
    case = Case("time_encoder", 1)
    w, b = declare_time(case, 5)
    case.save_layer(code(case.input("dt", case.uniform(3, 4).mul(1000).float().double()), w, b))


def updater(kind, seed):
    case = Case(kind, seed)
    d, d_edge, d_time, m = 6, 5, 4, 7
    cell = declare_cell(case, kind, {"own": d, "peer": d, "edge": d_edge, "time": d_time})
    own, payload, edge = (case.input(n, case.normal(m, w)) for n, w in (("own", d), ("payload", d), ("edge_features", d_edge)))
    time = case.input("code", case.normal(m, d_time), grad=True)
    case.save_layer(cell(torch.cat([own, payload, edge, time], -1), own))


def mean_message():
    case = Case("mean_message", 4)
    segment = case.input("segment", torch.tensor([0, 1, 1, 1, 2, 2, 3]))
    payload, edge = case.input("payload", case.normal(7, 3)), case.input("edge_features", case.normal(7, 2))
    time = case.input("code", case.normal(7, 4), grad=True)
    case.save_layer(segment_mean(torch.cat([payload, edge, time], -1), segment, 4))


def attention(name, seed, dropout, d_edge, root_time):
    case = Case(name, seed)
    d, d_time, heads, r, k = 5, 3, 2, 6, 4
    attend = declare_attention(case, "attn", d, d_edge, d_time, heads, root_time)
    valid = case.uniform(r, k) < 0.6
    valid[1], valid[2] = False, True
    case.input("valid", valid)
    keep = case.input("keep", (case.uniform(r, heads, k) >= dropout).double()) if dropout else None
    root, zero = case.input("root", case.normal(r, d), grad=True), case.input("zero_code", case.normal(d_time), grad=root_time)
    row, edge, time = (case.input(n, case.normal(r, k, w), grad=w > 0) for n, w in (("memory", d), ("edge", d_edge), ("time", d_time)))
    query = torch.cat([root, zero.expand(r, -1)], -1) if root_time else root
    case.save_layer(attend(query, torch.cat([row, edge, time], -1), valid, keep, dropout))


def decoder(name, seed, reduction):
    """5 of the global batch's 8 events, 3 negatives each."""
    case = Case(name, seed)
    z = case.input("z", case.normal(9, 4), grad=True)
    mlp = declare_mlp(case, "dec", {"source": 4, "destination": 4}, 4, 1)
    src, dst, neg = (case.input(n, case.index(9, c)) for n, c in (("source", 5), ("destination", 5), ("negative", 15)))
    case.save(score(case, mlp, z, src, dst, neg, 8, reduction))


def score(case, mlp, z, src, dst, neg, events, reduction):
    draws = len(neg) // len(src)
    pos, negative = mlp(z[src], z[dst])[:, 0], mlp(z[src.repeat_interleave(draws)], z[neg])[:, 0]
    case.put("out/positive", pos), case.put("out/negative", negative)
    bce = lambda x, target: F.binary_cross_entropy(x.sigmoid(), torch.full_like(x, target), reduction="sum")
    loss = (bce(pos, 1.0) / events + bce(negative, 0.0) / (events * draws)) * (1.0 if reduction == "sum" else 0.5)
    case.put("out/loss", loss)
    return loss


def transformer(name, seed, d=5, d_edge=2, d_time=3, z=6, heads=2, p=0.3):
    """Attention with a skip (arXiv:2009.03509), as PyTorch Geometric's TransformerConv, which is asked too where it is there."""
    case = Case(name, seed)
    R, K = 6, 4
    ws, bs = {c: case.weight(f"t.w{c}", z, {"memory": d}) for c in "qvs"}, {c: case.tensor(f"t.b{c}", z) for c in "qvs"}
    wk, we = case.weight("t.wk", z, {"memory": d}), case.weight("t.we", z, {"edge": d_edge, "time": d_time})
    root, memory = case.input("root", case.normal(R, d), True), case.input("memory", case.normal(R, K, d), True)
    edge, time = case.input("edge", case.normal(R, K, d_edge), True), case.input("time", case.normal(R, K, d_time), True)
    count = torch.tensor([4, 2, 0, 1, 3, 0])
    valid = case.input("valid", torch.arange(K) < count[:, None])
    keep = case.input("keep", (case.uniform(R, heads, K) >= p).double()) if p else None
    e = F.linear(torch.cat([edge, time], -1), we)
    split = lambda x: x.unflatten(-1, (heads, -1))                          # [.., H, z / H]
    q, k, v = split(F.linear(root, ws["q"], bs["q"])), split(F.linear(memory, wk) + e), split(F.linear(memory, ws["v"], bs["v"]) + e)
    score = torch.einsum("rhd,rkhd->rhk", q, k) / (z // heads) ** 0.5
    some = valid.any(1)[:, None, None]
    a = torch.where(some, score.masked_fill(~valid[:, None], -torch.inf), 0.0).softmax(-1) * some
    a = a if keep is None else a * keep / (1 - p)
    out = torch.einsum("rhk,rkhd->rhd", a, v).flatten(1) + F.linear(root, ws["s"], bs["s"])
    if keep is None:
        same_as_transformer_conv(out, ws, bs, wk, we, root, memory, torch.cat([edge, time], -1), valid, heads)
    case.save_layer(out)


def same_as_transformer_conv(out, ws, bs, wk, we, root, memory, edge, valid, heads):
    try:
        from torch_geometric.nn import TransformerConv
    except ImportError:
        return print("no torch_geometric: the transformer layer is not held against it")
    conv = TransformerConv(root.shape[1], out.shape[1] // heads, heads=heads, edge_dim=edge.shape[-1]).double()
    named = dict(query="q", value="v", skip="s")
    values = {f"lin_{k}.weight": ws[c] for k, c in named.items()} | {f"lin_{k}.bias": bs[c] for k, c in named.items()}
    values |= {"lin_key.weight": wk, "lin_key.bias": torch.zeros(out.shape[1]), "lin_edge.weight": we}
    R = root.shape[0]
    r, k = valid.nonzero(as_tuple=True)
    index = torch.stack([R + torch.arange(len(r)), r])
    theirs = torch.func.functional_call(conv, values, (torch.cat([root, memory[r, k]]), index, edge[r, k]))[:R]
    torch.testing.assert_close(out, theirs, rtol=0, atol=1e-13)


def embedding(kind, seed):
    case = Case(f"embedding_{kind}", seed)
    time = declare_time(case, 3)
    z = 4 if kind == "sum" else 5
    forward = declare_embedding(case, kind, "layer", 5, 2, 3, z, 1, True)
    below = case.input("below", case.normal(8, 5), grad=True)
    case.save_layer(forward(time, below, make_roots(case, "", 8, 6, 3, 2, 1, 0.0)))


def step(name, seed, *, layers=1, learned=True, stored=False, mean=False, cell="gru", kind="attention", root_time=True, dropout=0.0, d_node=0):
    """A whole training step: mail, embedding, scores, loss, all gradients."""
    case = Case(name, seed)
    d, d_edge, d_time, z, heads, n, m, k = 6, 3, 4, 8, 2, 12, 7, 3
    time = declare_time(case, d_time)
    if not learned:                                                         # the constants that `fixed` prescribes
        case.params.clear()
        time = ((10.0 ** -torch.linspace(0, 9, d_time)).float().double(), torch.zeros(d_time))
    project = case.tensor("node.w", d, d_node) if d_node not in (0, d) else None
    update = declare_cell(case, cell, {"own": d, "peer": d, "edge": d_edge, "time": d_time})
    forwards = [declare_embedding(case, kind, f"layer{i}", d if i == 0 else z, d_edge, d_time, z, heads, root_time) for i in range(layers)]
    mlp = declare_mlp(case, "dec", {"source": z, "destination": z}, z, 1)

    memory = case.input("memory", case.normal(n, d))
    row = case.input("mail/row", torch.randperm(n, generator=case.rng)[:m])
    segment = torch.tensor([0, 0, 1, 2, 3, 3, 3, 4, 5, 6]) if mean else torch.arange(m)
    if mean:
        case.input("mail/segment", segment)
    mails = len(segment)
    payload, edge = case.input("mail/payload", case.normal(mails, d)), case.input("mail/edge_features", case.normal(mails, d_edge))
    dt = case.input("mail/dt", case.uniform(mails).mul(30).float().double())
    codes = case.input("mail/code", case.normal(mails, d_time)) if stored else code(dt, *time)
    message = segment_mean(torch.cat([payload, edge, codes], -1), segment, m)
    rows = memory.index_put((row,), update(torch.cat([memory[row], message], -1), memory[row]))
    x = rows
    if d_node:
        features = case.input("node_features", case.normal(n, d_node))
        x = x + (features if project is None else features @ project.T)
    counts = [8] if layers == 1 else [10, 8]
    for i, (forward, count) in enumerate(zip(forwards, counts)):
        x = forward(time, x, make_roots(case, f"layer{i}/", len(x), count, k, d_edge, heads, dropout))
    src, dst, neg = (case.input(c, case.index(8, 4)) for c in ("source", "destination", "negative"))
    case.put("out/rows", rows), case.put("out/z", x)
    case.save(score(case, mlp, x, src, dst, neg, 4, "sum"))


def optimizer(name, seed, kind, **options):
    """Six steps of torch.optim on given gradients; gradients of very different sizes, some zero."""
    case = Case(name, seed)
    value = case.normal(40)
    case.put("param/x", value)
    param = nn.Parameter(value.clone())
    rule = kind([param], **options)
    grads = case.normal(6, 40) * 10.0 ** (case.uniform(40) * 8 - 6)
    grads[:, :4] = 0
    case.input("grads", grads.float().double())
    values = []
    for grad in grads.float().double():
        param.grad = grad.clone()
        rule.step()
        values.append(param.detach().clone())
    case.put("out/values", torch.stack(values))
    case.put("out/m", rule.state[param]["exp_avg"]), case.put("out/v", rule.state[param]["exp_avg_sq"])
    np.savez_compressed(HERE / f"{name}.npz", **case.arrays)


def clip(seed):
    case = Case("clip_norm", seed)
    param = nn.Parameter(torch.zeros(30))
    param.grad = case.input("grads", case.normal(30)).clone()
    case.put("out/norm", nn.utils.clip_grad_norm_([param], 2.0))
    case.put("out/grads", param.grad)
    np.savez_compressed(HERE / "clip_norm.npz", **case.arrays)


if __name__ == "__main__":
    time_encoder()
    updater("gru", 2), updater("rnn", 3)
    mean_message()
    attention("attention", 5, 0.0, 4, True)
    attention("attention_dropout", 6, 0.3, 4, True)
    attention("attention_plain", 7, 0.0, 0, False)
    decoder("decoder_sum", 8, "sum"), decoder("decoder_mean", 9, "mean")
    transformer("transformer", 40, p=0), transformer("transformer_dropout", 41)
    embedding("attention", 10), embedding("sum", 11), embedding("time", 12), embedding("identity", 13)
    step("step_default", 20, learned=False, dropout=0.1)
    step("step_learned", 21)
    step("step_two_layers", 22, layers=2, dropout=0.2)
    step("step_stored_mean_rnn", 23, stored=True, mean=True, cell="rnn", root_time=False)
    step("step_mean_node_features", 24, mean=True, d_node=6)
    step("step_sum_projected", 25, kind="sum", layers=2, d_node=4)
    optimizer("adam", 30, torch.optim.Adam, lr=1e-2)
    optimizer("adam_decay", 31, torch.optim.Adam, lr=1e-2, weight_decay=0.1)
    optimizer("adamw", 32, torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
    clip(33)
