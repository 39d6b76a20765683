"""Small jobs, written as people write them, and what their loops have at hand."""

from __future__ import annotations

import argparse
import collections
import functools
import math
import random
from collections import OrderedDict, deque, namedtuple
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

# ---------------------------------------------------------------- a classifier of images


class AverageMeter:
    """Computes and stores the average and current value."""

    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.reset()

    def reset(self):
        self.val = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count if self.count else 0

    def __str__(self):
        fmtstr = "{name} {val" + self.fmt + "} ({avg" + self.fmt + "})"
        return fmtstr.format(name=self.name, val=self.val, avg=self.avg)


def accuracy(output, target, topk=(1,)):
    """Computes the accuracy over the k top predictions."""
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        res = []
        for k in topk:
            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / batch_size))
        return res


def confusion_matrix(pred, target, num_classes=10):
    matrix = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    for p, t in zip(pred.view(-1), target.view(-1)):
        matrix[t.long(), p.long()] += 1
    return matrix


def f1_score(pred, target):
    pred, target = pred.cpu().numpy(), target.cpu().numpy()
    tp = np.logical_and(pred == 1, target == 1).sum()
    fp = np.sum((pred == 1) & (target != 1))
    fn = np.sum((pred != 1) & (target == 1))
    return 2 * tp / (2 * tp + fp + fn + 1e-8)


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0, alpha=None):
        super().__init__()
        self.gamma = gamma
        self.alpha = alpha

    def forward(self, logits, target):
        log_p = F.log_softmax(logits, dim=-1)
        ce = F.nll_loss(log_p, target, weight=self.alpha, reduction="none")
        pt = torch.exp(-ce)
        return ((1 - pt) ** self.gamma * ce).mean()


class LabelSmoothing(nn.Module):
    def __init__(self, smoothing=0.1):
        super().__init__()
        self.confidence = 1.0 - smoothing
        self.smoothing = smoothing

    def forward(self, x, target):
        logprobs = F.log_softmax(x, dim=-1)
        nll_loss = -logprobs.gather(dim=-1, index=target.unsqueeze(1)).squeeze(1)
        return (self.confidence * nll_loss + self.smoothing * -logprobs.mean(dim=-1)).mean()


def conv_block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class ConvNet(nn.Module):
    def __init__(self, width=8, num_classes=10):
        super().__init__()
        self.stem = conv_block(1, width)
        self.blocks = nn.ModuleList([conv_block(width, width) for _ in range(2)])
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(width, num_classes)

    @property
    def num_params(self):
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def features(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return F.adaptive_avg_pool2d(x, 1).flatten(1)

    def forward(self, x):
        return self.fc(self.dropout(self.features(x)))


class Digits(Dataset):
    def __init__(self, n=64, transform=None):
        self.images, self.labels = torch.rand(n, 1, 8, 8), torch.randint(0, 10, (n,))
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        image = self.images[idx]
        if self.transform is not None:
            image = self.transform(image)
        return image, self.labels[idx]


class EMA:
    """Keeps an exponential moving average of the weights."""

    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in model.named_parameters()}

    def distance(self, model):
        return sum((p - self.shadow[n]).norm().item() ** 2 for n, p in model.named_parameters()) ** 0.5


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    output = model(x)
    correct = (output.argmax(dim=1) == y).sum().item()
    return correct / len(y)


def grad_norm(model):
    total_norm = 0.0
    for p in model.parameters():
        if p.grad is not None:
            total_norm += p.grad.data.norm(2).item() ** 2
    return total_norm**0.5


def classifier() -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args([])
    model = ConvNet()
    normalize = lambda t: (t - 0.5) / 0.5  # noqa: E731
    dataset = Digits(transform=normalize)
    loader = DataLoader(dataset, batch_size=args.batch_size)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    ema_model = optim.swa_utils.AveragedModel(model)
    losses, top1 = AverageMeter("Loss"), AverageMeter("Acc@1", ":6.2f")
    history = collections.defaultdict(list)
    x, y = next(iter(loader))
    output = model(x)
    loss = criterion(output, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    losses.update(loss.item(), x.size(0))
    top1.update(accuracy(output, y)[0].item(), x.size(0))
    history["loss"].append(loss.item())
    return dict(
        step=7, epoch=1, args=args, model=model, dataset=dataset, loader=loader, criterion=criterion, x=x, y=y,
        optimizer=optimizer, scheduler=scheduler, scaler=scaler, ema_model=ema_model, ema=EMA(model), losses=losses,
        top1=top1, history=history, output=output, loss=loss, focal=FocalLoss(), smooth=LabelSmoothing(),
        accuracy=accuracy, confusion_matrix=confusion_matrix, f1_score=f1_score, evaluate=evaluate,
        grad_norm=grad_norm, normalize=normalize, F=F, nn=nn,
    )  # fmt: skip


# ---------------------------------------------------------------- a language model


@dataclass
class GPTConfig:
    block_size: int = 16
    vocab_size: int = 32
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 16
    dropout: float = 0.1
    bias: bool = True
    betas: tuple = (0.9, 0.95)
    tags: list = field(default_factory=list)


class LayerNorm(nn.Module):
    def __init__(self, ndim, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, config.dropout
        self.flash = hasattr(torch.nn.functional, "scaled_dot_product_attention") and config.n_layer > 2
        mask = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("bias", mask.view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            att = self.attn_dropout(F.softmax(att, dim=-1))
            y = att @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = LayerNorm(config.n_embd, config.bias), LayerNorm(config.n_embd, config.bias)
        self.attn = CausalSelfAttention(config)
        self.mlp = nn.Sequential(OrderedDict(
            c_fc=nn.Linear(config.n_embd, 4 * config.n_embd), gelu=nn.GELU(),
            c_proj=nn.Linear(4 * config.n_embd, config.n_embd), dropout=nn.Dropout(config.dropout),
        ))  # fmt: skip

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd), wpe=nn.Embedding(config.block_size, config.n_embd),
            drop=nn.Dropout(config.dropout), h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
            ln_f=LayerNorm(config.n_embd, bias=config.bias),
        ))  # fmt: skip
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def get_num_params(self, non_embedding=True):
        n_params = sum(p.numel() for p in self.parameters())
        if non_embedding:
            n_params -= self.transformer.wpe.weight.numel()
        return n_params

    def forward(self, idx, targets=None):
        device = idx.device
        b, t = idx.size()
        assert t <= self.config.block_size, f"Cannot forward sequence of length {t}"
        pos = torch.arange(0, t, dtype=torch.long, device=device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is not None:
            logits = self.lm_head(x)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        else:
            logits = self.lm_head(x[:, [-1], :])
            loss = None
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None):
        for _ in range(max_new_tokens):
            idx_cond = idx if idx.size(1) <= self.config.block_size else idx[:, -self.config.block_size :]
            logits, _ = self(idx_cond)
            logits = logits[:, -1, :] / temperature
            if top_k is not None:
                v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < v[:, [-1]]] = -float("Inf")
            idx_next = torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)
            idx = torch.cat((idx, idx_next), dim=1)
        return idx


LEARNING_RATE, WARMUP_ITERS, LR_DECAY_ITERS, MIN_LR = 6e-4, 20, 600, 6e-5
data = {split: np.random.default_rng(0).integers(0, 32, 1000).astype(np.uint16) for split in ("train", "val")}


def get_lr(it):
    if it < WARMUP_ITERS:
        return LEARNING_RATE * (it + 1) / (WARMUP_ITERS + 1)
    if it > LR_DECAY_ITERS:
        return MIN_LR
    decay_ratio = (it - WARMUP_ITERS) / (LR_DECAY_ITERS - WARMUP_ITERS)
    assert 0 <= decay_ratio <= 1
    coeff = 0.5 * (1.0 + math.cos(math.pi * decay_ratio))
    return MIN_LR + coeff * (LEARNING_RATE - MIN_LR)


def get_batch(split, batch_size=4, block_size=16):
    source = data[split]
    ix = torch.randint(len(source) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy((source[i : i + block_size]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((source[i + 1 : i + 1 + block_size]).astype(np.int64)) for i in ix])
    return x, y


def language() -> dict[str, Any]:
    config = GPTConfig()
    model = GPT(config)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = optim.AdamW(groups, lr=LEARNING_RATE, betas=config.betas)
    scheduler = optim.lr_scheduler.LambdaLR(optimizer, lambda it: get_lr(it) / LEARNING_RATE)
    x, y = get_batch("train")
    logits, loss = model(x, y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    itos = {i: chr(97 + i) for i in range(32)}
    decode = lambda tokens: "".join([itos[int(i)] for i in tokens])  # noqa: E731
    return dict(
        step=40, config=config, model=model, optimizer=optimizer, scheduler=scheduler, x=x, y=y, logits=logits,
        loss=loss, total_norm=norm, get_lr=get_lr, get_batch=get_batch, decode=decode, math=math, F=F, asdict=asdict,
    )  # fmt: skip


# ---------------------------------------------------------------- a recurrent model, an autoencoder


class Tagger(nn.Module):
    def __init__(self, vocab=20, hidden=8):
        super().__init__()
        self.hidden_dim = hidden
        self.embedding = nn.Embedding(vocab, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, batch_first=True, dropout=0.1)
        self.hidden2tag = nn.Linear(hidden, 5)

    def init_hidden(self, batch):
        weight = next(self.parameters())
        return weight.new_zeros(2, batch, self.hidden_dim), weight.new_zeros(2, batch, self.hidden_dim)

    def forward(self, sentence, hidden=None):
        out, hidden = self.lstm(self.embedding(sentence), hidden)
        return F.log_softmax(self.hidden2tag(out), dim=-1), hidden


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


def masked_loss(scores, tags, mask):
    losses = F.nll_loss(scores.transpose(1, 2), tags, reduction="none")
    return (losses * mask).sum() / mask.sum().clamp(min=1)


def recurrent() -> dict[str, Any]:
    model = Tagger()
    batch = {
        "input_ids": torch.randint(0, 20, (4, 6)), "labels": torch.randint(0, 5, (4, 6)),
        "mask": torch.ones(4, 6), "lengths": [6, 5, 4, 6],
    }  # fmt: skip
    hidden = model.init_hidden(4)
    scores, hidden = model(batch["input_ids"], hidden)
    loss_fn = functools.partial(masked_loss, mask=batch["mask"])
    loss = loss_fn(scores, batch["labels"])
    loss.backward()
    optimizer = optim.RMSprop(model.parameters(), lr=0.01)
    optimizer.step()
    plateau = optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    return dict(
        step=3, model=model, batch=batch, hidden=hidden, scores=scores, loss=loss, loss_fn=loss_fn, plateau=plateau,
        masked_loss=masked_loss, repackage_hidden=repackage_hidden, optimizer=optimizer, F=F, nn=nn,
        perplexity=lambda value: math.exp(min(float(value), 20.0)),
    )  # fmt: skip


class VAE(nn.Module):
    def __init__(self, latent=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 12), nn.ReLU())
        self.mu, self.logvar = nn.Linear(12, latent), nn.Linear(12, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 12), nn.ReLU(), nn.Linear(12, 16), nn.Sigmoid())

    @property
    def latent_size(self):
        return self.mu.out_features

    def encode(self, x):
        h = self.encoder(x)
        return self.mu(h), self.logvar(h)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        return self.decoder(z)

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


def loss_function(recon_x, x, mu, logvar, beta=1.0):
    BCE = F.binary_cross_entropy(recon_x, x, reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + beta * KLD, BCE, KLD


def autoencoder() -> dict[str, Any]:
    model = VAE()
    x = torch.rand(8, 16)
    recon, mu, logvar = model(x)
    loss, bce, kld = loss_function(recon, x, mu, logvar)
    loss.backward()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    optimizer.step()
    return dict(
        step=5, model=model, x=x, recon=recon, mu=mu, logvar=logvar, loss=loss, bce=bce, kld=kld, optimizer=optimizer,
        loss_function=loss_function, mse=lambda a, b: ((a - b) ** 2).mean(), F=F, nn=nn,
        psnr=lambda a, b: 10 * torch.log10(1 / F.mse_loss(a, b)),
    )  # fmt: skip


# ---------------------------------------------------------------- reinforcement learning, dictionaries of outputs

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super().__init__()
        self.layer1 = nn.Linear(n_observations, 16)
        self.layer2 = nn.Linear(16, n_actions)

    def forward(self, x):
        return self.layer2(F.relu(self.layer1(x)))


def epsilon(steps_done, start=0.9, end=0.05, decay=1000):
    return end + (start - end) * math.exp(-1.0 * steps_done / decay)


def compute_returns(rewards, gamma=0.99):
    R, returns = 0, []
    for r in reversed(rewards):
        R = r + gamma * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    return (returns - returns.mean()) / (returns.std() + 1e-8)


def reinforcement() -> dict[str, Any]:
    policy_net, target_net = DQN(4, 2), DQN(4, 2)
    target_net.load_state_dict(policy_net.state_dict())
    memory = ReplayMemory(100)
    for n in range(20):
        memory.push(torch.randn(4), n % 2, torch.randn(4), float(n % 3))
    states = torch.stack([one.state for one in memory.memory])
    q_values = policy_net(states)
    loss = F.smooth_l1_loss(q_values.max(1).values, torch.ones(20))
    loss.backward()
    optimizer = optim.AdamW(policy_net.parameters(), lr=1e-4, amsgrad=True)
    optimizer.step()
    dist = torch.distributions.Categorical(logits=q_values)
    return dict(
        step=12, dist=dist, policy_net=policy_net, target_net=target_net, memory=memory, states=states,
        q_values=q_values, loss=loss, optimizer=optimizer, rewards=[1.0, 0.0, 2.0], episode_durations=[10, 12, 9],
        epsilon=epsilon, compute_returns=compute_returns, F=F,
    )  # fmt: skip


class ModelOutput(OrderedDict):
    """Base class for outputs: a dict, whose items are attributes too."""

    def __init__(self, **values):
        super().__init__(values)
        for k, v in values.items():
            object.__setattr__(self, k, v)

    def __getitem__(self, k):
        return dict(self.items())[k] if isinstance(k, str) else self.to_tuple()[k]

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())


class SequenceClassifier(nn.Module):
    def __init__(self, num_labels=3):
        super().__init__()
        self.num_labels = num_labels
        self.embeddings = nn.Embedding(30, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.classifier = nn.Linear(8, num_labels)

    def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
        hidden = self.encoder(self.embeddings(input_ids), src_key_padding_mask=attention_mask == 0)
        logits = self.classifier(hidden.mean(dim=1))
        loss = None
        if labels is not None:
            loss = nn.CrossEntropyLoss()(logits.view(-1, self.num_labels), labels.view(-1))
        return ModelOutput(loss=loss, logits=logits)


def compute_metrics(predictions, labels):
    preds = np.argmax(predictions, axis=-1)
    precision = {int(c): float(np.mean(labels[preds == c] == c)) if (preds == c).any() else 0.0 for c in set(labels)}
    return {"accuracy": float((preds == labels).mean()), "precision": precision}


def classified() -> dict[str, Any]:
    model = SequenceClassifier()
    batch = {
        "input_ids": torch.randint(0, 30, (4, 6)), "attention_mask": torch.ones(4, 6, dtype=torch.long),
        "labels": torch.randint(0, 3, (4,)),
    }  # fmt: skip
    outputs = model(**batch)
    outputs.loss.backward()
    optimizer = optim.AdamW(model.parameters(), lr=1e-4)
    optimizer.step()
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=10)
    return dict(
        step=2, model=model, batch=batch, outputs=outputs, loss=outputs.loss, optimizer=optimizer,
        scheduler=scheduler, compute_metrics=compute_metrics, F=F,
    )  # fmt: skip


# ---------------------------------------------------------------- what docs and tests ask about


def digits() -> dict[str, Any]:
    """The names that questions in docs, notebooks and tests take for granted."""
    model = nn.Sequential(OrderedDict(
        stem=nn.Conv2d(1, 4, 3, padding=1), act=nn.ReLU(), flat=nn.Flatten(), fc=nn.Linear(256, 10)
    ))  # fmt: skip
    dataset = Digits(32)
    x, y = dataset.images[:16], dataset.labels[:16]
    output = model(x)
    losses = F.cross_entropy(output, y, reduction="none")
    losses.mean().backward()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    optimizer.step()
    machine = argparse.Namespace(util=30.0, memory=2**30, cpu=40.0, temperature=50)
    return dict(
        step=3, i=3, n=3, k=1, t=0.5, v=2.0, batch_idx=3, epoch=1, loss=losses.mean(), losses=losses, x=x, y=y,
        image=x, images=x, target=y, labels=y, output=output, out=output, h=output, error=0.25, err=0.25, odd=1,
        acc=0.9, val_loss=0.6, val_acc=0.8, accuracy=0.9, test_loss=0.5, correct=12, seconds=0.1, reward=1.0, lr=1e-3,
        model=model, net=model, optimizer=optimizer, dataset=dataset, loader=DataLoader(dataset, 16), value=1.0,
        a=1, b=2.0, z=3.0,
        grad_norm=1.5, tokens=100, name="run", logs={"loss": 0.5}, curve=[1.0, 2.0], host=machine, device=machine,
        devices=[machine], weights=model.fc.weight, w=model.fc.weight, batch={"x": x}, first=np.arange(4),
        ends=np.ones((4, 2)), history=[0.5, 0.4], inputs=x, config=argparse.Namespace(depth=2, lr=0.1),
        scheduler=optim.lr_scheduler.StepLR(optimizer, 10), criterion=nn.CrossEntropyLoss(),
        **{"train/loss": 0.5, "val/loss": 0.6, "val/acc": 0.9},
    )  # fmt: skip


JOBS = {
    "digits": digits, "classifier": classifier, "language": language, "recurrent": recurrent,
    "autoencoder": autoencoder, "reinforcement": reinforcement, "classified": classified,
}  # fmt: skip
