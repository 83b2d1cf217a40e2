"""Training loops for text, in the manner of public repositories."""

# The names are those that the authors of such repositories use.
# ruff: noqa: N803, N806

from __future__ import annotations

import json
import math
import random
import shutil
import tempfile
import unicodedata
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

import hoptui
from benchmarks.labelled.catalogue import labelled

# BERT


def whitespace_tokenize(text: str) -> list[str]:
    return text.strip().split()


class BasicTokenizer:
    def tokenize(self, text: str) -> list[str]:
        split_tokens = []
        for token in whitespace_tokenize(text):
            token = self._run_strip_accents(token.lower())  # here
            split_tokens.extend(self._run_split_on_punc(token))  # here
        return split_tokens

    def _run_strip_accents(self, text: str) -> str:
        output = []
        for char in unicodedata.normalize("NFD", text):  # here
            if unicodedata.category(char) == "Mn":  # here
                continue
            output.append(char)  # here
        return "".join(output)

    def _run_split_on_punc(self, text: str) -> list[str]:
        output: list[list[str]] = []
        start_new_word = True
        for char in text:  # here
            if unicodedata.category(char).startswith("P"):  # here
                output.append([char])
                start_new_word = True
            else:
                if start_new_word:  # here
                    output.append([])
                start_new_word = False
                output[-1].append(char)  # here
        return ["".join(x) for x in output]  # here


class WordpieceTokenizer:
    def __init__(self, vocab: dict[str, int], unk_token: str = "[UNK]") -> None:
        self.vocab, self.unk_token = vocab, unk_token

    def tokenize(self, text: str) -> list[str]:
        output_tokens = []
        for token in whitespace_tokenize(text):
            is_bad, start, sub_tokens = False, 0, []
            while start < len(token):  # here
                end, cur_substr = len(token), None
                while start < end:  # here
                    substr = token[start:end]  # here
                    if start > 0:  # here
                        substr = "##" + substr  # here
                    if substr in self.vocab:  # here
                        cur_substr = substr
                        break
                    end -= 1  # here
                if cur_substr is None:
                    is_bad = True
                    break
                sub_tokens.append(cur_substr)
                start = end
            output_tokens += [self.unk_token] if is_bad else sub_tokens
        return output_tokens


class BertTokenizer:
    def __init__(self, vocab: dict[str, int]) -> None:
        self.vocab = vocab
        self.basic_tokenizer, self.wordpiece_tokenizer = BasicTokenizer(), WordpieceTokenizer(vocab)

    def tokenize(self, text: str) -> list[str]:
        split_tokens = []
        for token in self.basic_tokenizer.tokenize(text):  # here
            split_tokens += self.wordpiece_tokenizer.tokenize(token)  # here
        return split_tokens


def random_word(tokens: list[str], vocab: dict[str, int]) -> tuple[list[int], list[int]]:
    ids, output_label = [], []
    for token in tokens:
        prob = random.random()
        if prob < 0.15:
            output_label.append(vocab[token])
            token = "[MASK]" if prob < 0.12 else random.choice(list(vocab))
        else:
            output_label.append(-1)
        ids.append(vocab[token])
    return ids, output_label


class BERTDataset(Dataset[dict[str, Tensor]]):
    """Pairs of sentences, with masks and a label that says whether one follows the other."""

    def __init__(self, all_docs: list[list[str]], tokenizer: BertTokenizer, seq_len: int) -> None:
        self.all_docs, self.tokenizer, self.seq_len = all_docs, tokenizer, seq_len

    def __len__(self) -> int:
        return len(self.all_docs) * 8

    def random_sent(self, index: int) -> tuple[str, str, int]:
        doc = self.all_docs[index % len(self.all_docs)]
        line = random.randrange(len(doc) - 1)
        if random.random() > 0.5:
            return doc[line], doc[line + 1], 0
        return doc[line], random.choice(random.choice(self.all_docs)), 1

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        t1, t2, is_next_label = self.random_sent(item)
        tokens_a = self.tokenizer.tokenize(t1)  # here
        tokens_b = self.tokenizer.tokenize(t2)  # here
        while len(tokens_a) + len(tokens_b) > self.seq_len - 3:
            (tokens_a if len(tokens_a) > len(tokens_b) else tokens_b).pop()
        ids_a, label_a = random_word(tokens_a, self.tokenizer.vocab)  # here
        ids_b, label_b = random_word(tokens_b, self.tokenizer.vocab)  # here
        input_ids = [1, *ids_a, 2, *ids_b, 2]
        lm_label_ids = [-1, *label_a, -1, *label_b, -1]
        padding = self.seq_len - len(input_ids)
        return {
            "input_ids": torch.tensor(input_ids + [0] * padding),
            "lm_label_ids": torch.tensor(lm_label_ids + [-1] * padding),
            "is_next": torch.tensor(is_next_label),
        }


HELPERS = (BERTDataset, BertTokenizer, BasicTokenizer, WordpieceTokenizer)


@labelled(gpu="data-bound", cpu="data-bound", helpers=HELPERS)
def bert_simple_lm_finetuning(run: hoptui.Run, device: str) -> None:
    """In the manner of simple_lm_finetuning.py of pytorch-pretrained-BERT: each item cuts words."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocab = {token: i for i, token in enumerate(("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"))}
    for piece in (*letters, *(a + b for a in letters for b in "aeiou")):
        vocab[piece], vocab["##" + piece] = len(vocab), len(vocab) + 1
    words = ["".join(random.choices(letters, k=random.randint(3, 11))) for _ in range(5000)]
    all_docs = [[" ".join(random.choices(words, k=150)) + "." for _ in range(12)] for _ in range(200)]
    train_dataset = BERTDataset(all_docs, BertTokenizer(vocab), 128)
    sampler = RandomSampler(train_dataset)
    train_dataloader = DataLoader(train_dataset, sampler=sampler, batch_size=32)
    embeddings, cls = nn.Embedding(len(vocab), 16), nn.Linear(16, len(vocab))
    encoder = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    seq_relationship = nn.Linear(16, 2)
    model = nn.ModuleList((embeddings, encoder, cls, seq_relationship)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
    while not run.stopping:
        for batch in train_dataloader:  # here
            batch = {key: t.to(device) for key, t in batch.items()}
            sequence_output = encoder(embeddings(batch["input_ids"]))
            labels = batch["lm_label_ids"].view(-1)
            masked = labels >= 0
            prediction = cls(sequence_output.reshape(-1, 16)[masked])
            next_sentence = seq_relationship(sequence_output[:, 0])
            loss = F.cross_entropy(prediction, labels[masked])
            loss = loss + F.cross_entropy(next_sentence, batch["is_next"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss.item(), samples=len(labels) // 128)
            if run.stopping:
                break


# fairseq


def convert_state_dict_type(state_dict: Any, ttype: torch.dtype = torch.float32) -> Any:
    if isinstance(state_dict, dict):
        cpu_dict = OrderedDict()
        for k, v in state_dict.items():
            cpu_dict[k] = convert_state_dict_type(v)
        return cpu_dict
    if isinstance(state_dict, list):
        return [convert_state_dict_type(v) for v in state_dict]
    return state_dict.to("cpu", ttype) if torch.is_tensor(state_dict) else state_dict  # here


def torch_persistent_save(obj: object, filename: Path) -> None:
    with filename.with_suffix(".tmp").open("wb") as f:
        torch.save(obj, f)  # here
    filename.with_suffix(".tmp").rename(filename)  # here


def save_checkpoint(save_dir: Path, trainer: dict[str, Any], num_updates: int) -> None:
    state = {
        "model": convert_state_dict_type(trainer["model"].state_dict()),  # here
        "last_optimizer_state": convert_state_dict_type(trainer["optimizer"].state_dict()),  # here
        "optimizer_history": [{"num_updates": num_updates}],
    }
    checkpoints = [save_dir / f"checkpoint_1_{num_updates}.pt", save_dir / "checkpoint_best.pt"]
    checkpoints.append(save_dir / "checkpoint_last.pt")
    torch_persistent_save(state, checkpoints[0])  # here
    for cp in checkpoints[1:]:
        shutil.copyfile(checkpoints[0], cp)  # here
    for old_chk in sorted(save_dir.glob("checkpoint_1_*.pt"), key=lambda path: path.stat().st_mtime)[:-2]:
        old_chk.unlink()  # here


@labelled(
    gpu="save-bound",
    cpu="save-bound",
    helpers=(save_checkpoint, torch_persistent_save, convert_state_dict_type),
)
def fairseq_save_interval_updates(run: hoptui.Run, device: str) -> None:
    """In the manner of fairseq's train.py with --save-interval-updates 1: all states are written."""
    vocab, dim = 12_000, 256
    embed_tokens, decoder = nn.Embedding(vocab, dim), nn.GRU(dim, dim, batch_first=True)
    output_projection = nn.Linear(dim, vocab)
    model = nn.ModuleList((embed_tokens, decoder, output_projection)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, betas=(0.9, 0.98))
    trainer = {"model": model, "optimizer": optimizer}
    target = torch.randint(vocab, (4, 6), device=device)
    with tempfile.TemporaryDirectory() as save_dir:
        num_updates = 0
        while not run.stopping:
            optimizer.zero_grad()
            features, _ = decoder(embed_tokens(target[:, :-1]))
            lprobs = F.log_softmax(output_projection(features), dim=-1)
            loss = F.nll_loss(lprobs.reshape(-1, vocab), target[:, 1:].reshape(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            num_updates += 1
            save_checkpoint(Path(save_dir), trainer, num_updates)  # here
            run.log(loss=loss.item(), samples=len(target))


# LoRA


class LoraLinear(nn.Module):
    def __init__(self, base_layer: nn.Linear, r: int = 8, lora_alpha: int = 16) -> None:
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(r, base_layer.in_features) * 0.01)
        self.lora_B = nn.Parameter(torch.zeros(base_layer.out_features, r))
        self.scaling = lora_alpha / r

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base_layer(x) + (x @ self.lora_A.t()) @ self.lora_B.t() * self.scaling
        return out


class Trainer:
    """The part of a Trainer that saves."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, output_dir: Path) -> None:
        self.model, self.optimizer, self.output_dir = model, optimizer, output_dir
        self.state: dict[str, Any] = {"global_step": 0, "log_history": []}
        self.save_total_limit = 3

    def _save_checkpoint(self) -> None:
        checkpoint = self.output_dir / f"checkpoint-{self.state['global_step']}"
        checkpoint.mkdir()
        torch.save(self.model.state_dict(), checkpoint / "pytorch_model.bin")  # here
        torch.save(self.optimizer.state_dict(), checkpoint / "optimizer.pt")  # here
        rng_states = {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "cpu": torch.get_rng_state(),
        }
        torch.save(rng_states, checkpoint / "rng_state.pth")  # here
        with (checkpoint / "trainer_state.json").open("w") as f:
            json.dump(self.state, f)
        self._rotate_checkpoints()  # here

    def _rotate_checkpoints(self) -> None:
        checkpoints = sorted(self.output_dir.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime)
        for checkpoint in checkpoints[: -self.save_total_limit]:
            shutil.rmtree(checkpoint)  # here


@labelled(gpu="save-bound", cpu="save-bound", helpers=(Trainer,))
def alpaca_lora_save_steps(run: hoptui.Run, device: str) -> None:
    """In the manner of alpaca-lora's finetune.py with save_steps=1: the base model is in each checkpoint."""
    width, depth = 1024, 8
    layers = [part for _ in range(depth) for part in (LoraLinear(nn.Linear(width, width)), nn.GELU())]
    model = nn.Sequential(nn.Embedding(2000, width).requires_grad_(False), *layers).to(device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-4)
    input_ids = torch.randint(2000, (1, 8), device=device)
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = Trainer(model, optimizer, Path(output_dir))
        while not run.stopping:
            loss = model(input_ids).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            trainer.state["global_step"] += 1
            trainer.state["log_history"] = [*trainer.state["log_history"][-20:], {"loss": loss.item()}]
            trainer._save_checkpoint()  # here
            run.log(loss=loss.detach(), samples=len(input_ids))


# Named entities


class BiLSTM_CRF(nn.Module):  # noqa: N801
    def __init__(self, vocab_size: int, tagset_size: int, embedding_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.tagset_size = tagset_size
        self.word_embeds = nn.Embedding(vocab_size, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim // 2, num_layers=1, bidirectional=True)
        self.hidden2tag = nn.Linear(hidden_dim, tagset_size)
        self.transitions = nn.Parameter(torch.randn(tagset_size, tagset_size))

    def _forward_alg(self, feats: Tensor) -> Tensor:
        forward_var = torch.full((1, self.tagset_size), -10000.0, device=feats.device)
        forward_var[0][0] = 0.0
        for feat in feats:
            alphas_t = []
            for next_tag in range(self.tagset_size):
                emit_score = feat[next_tag].view(1, -1).expand(1, self.tagset_size)
                trans_score = self.transitions[next_tag].view(1, -1)
                next_tag_var = forward_var + trans_score + emit_score
                alphas_t.append(torch.logsumexp(next_tag_var, dim=1).view(1))
            forward_var = torch.cat(alphas_t).view(1, -1)
        return torch.logsumexp(forward_var + self.transitions[1], dim=1)

    def _score_sentence(self, feats: Tensor, tags: Tensor) -> Tensor:
        score = torch.zeros(1, device=feats.device)
        tags = torch.cat([torch.zeros(1, dtype=torch.long, device=feats.device), tags])
        for i, feat in enumerate(feats):
            score = score + self.transitions[tags[i + 1], tags[i]] + feat[tags[i + 1]]
        return score + self.transitions[1, tags[-1]]

    def neg_log_likelihood(self, sentence: Tensor, tags: Tensor) -> Tensor:
        embeds = self.word_embeds(sentence).view(len(sentence), 1, -1)
        feats = self.hidden2tag(self.lstm(embeds)[0].view(len(sentence), -1))
        return self._forward_alg(feats) - self._score_sentence(feats, tags)


@labelled(gpu="launch-bound", cpu="healthy")
def bilstm_crf_tutorial(run: hoptui.Run, device: str) -> None:
    """In the manner of PyTorch's advanced_tutorial.py: the CRF is summed up word by word and tag by tag."""
    model = BiLSTM_CRF(500, 9, 16, 16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, weight_decay=1e-4)
    training_data = [
        (torch.randint(500, (n,)).to(device), torch.randint(9, (n,)).to(device)) for n in range(36, 56)
    ]
    while not run.stopping:
        for sentence_in, targets in training_data:
            model.zero_grad()
            loss = model.neg_log_likelihood(sentence_in, targets)
            loss.backward()
            optimizer.step()
            run.log(loss=loss.detach(), samples=1)
            if run.stopping:
                break


# Trees


class Tree:
    def __init__(self, idx: int) -> None:
        self.idx = idx
        self.children: list[Tree] = []
        self.state: tuple[Tensor, Tensor] | None = None


class ChildSumTreeLSTM(nn.Module):
    def __init__(self, in_dim: int, mem_dim: int) -> None:
        super().__init__()
        self.mem_dim = mem_dim
        self.ioux, self.iouh = nn.Linear(in_dim, 3 * mem_dim), nn.Linear(mem_dim, 3 * mem_dim)
        self.fx, self.fh = nn.Linear(in_dim, mem_dim), nn.Linear(mem_dim, mem_dim)

    def node_forward(self, inputs: Tensor, child_c: Tensor, child_h: Tensor) -> tuple[Tensor, Tensor]:
        child_h_sum = torch.sum(child_h, dim=0, keepdim=True)
        i, o, u = torch.split(self.ioux(inputs) + self.iouh(child_h_sum), self.mem_dim, dim=1)
        f = torch.sigmoid(self.fh(child_h) + self.fx(inputs).repeat(len(child_h), 1))
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sum(f * child_c, dim=0, keepdim=True)
        return c, torch.sigmoid(o) * torch.tanh(c)

    def forward(self, tree: Tree, inputs: Tensor) -> tuple[Tensor, Tensor]:
        states = [self(child, inputs) for child in tree.children]
        if states:
            child_c, child_h = (torch.cat(parts, dim=0) for parts in zip(*states, strict=True))
        else:
            child_c, child_h = (inputs.new_zeros(1, self.mem_dim) for _ in range(2))
        tree.state = self.node_forward(inputs[tree.idx : tree.idx + 1], child_c, child_h)
        return tree.state


@labelled(gpu="launch-bound", cpu="healthy")
def child_sum_tree_lstm(run: hoptui.Run, device: str) -> None:
    """In the manner of treelstm.pytorch: each node of two parse trees is a step of an LSTM."""

    def read_tree(nodes: int) -> Tree:
        trees = [Tree(idx) for idx in range(nodes)]
        for idx in range(1, nodes):
            trees[random.randrange(idx)].children.append(trees[idx])
        return trees[0]

    emb, childsumtreelstm = nn.Embedding(2000, 64).to(device), ChildSumTreeLSTM(64, 48).to(device)
    similarity = nn.Sequential(nn.Linear(96, 32), nn.Sigmoid(), nn.Linear(32, 5)).to(device)
    modules = nn.ModuleList((emb, childsumtreelstm, similarity))
    optimizer = torch.optim.Adagrad(modules.parameters(), lr=0.01)
    dataset = [(read_tree(44), read_tree(40), torch.randint(2000, (44,)).to(device)) for _ in range(64)]
    while not run.stopping:
        for ltree, rtree, tokens in dataset:
            inputs = emb(tokens)
            lstate, lhidden = childsumtreelstm(ltree, inputs)
            rstate, rhidden = childsumtreelstm(rtree, inputs)
            vec_dist = torch.cat((lstate * rstate, torch.abs(lhidden - rhidden)), 1)
            loss = F.kl_div(
                F.log_softmax(similarity(vec_dist), dim=1),
                torch.full_like(vec_dist[:, :5], 0.2),
                reduction="batchmean",
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.detach(), samples=1)
            if run.stopping:
                break


# Translation


class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, max_len: int = 512) -> None:
        super().__init__()
        position = torch.arange(max_len)[:, None]
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        self.register_buffer(
            "pe", torch.cat((torch.sin(position * div_term), torch.cos(position * div_term)), 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        pe: Any = self.pe
        out: Tensor = x + pe[: x.size(1)]
        return out


class EncoderDecoder(nn.Module):
    def __init__(self, vocab: int, N: int, d_model: int, h: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.src_embed, self.tgt_embed = nn.Embedding(vocab, d_model), nn.Embedding(vocab, d_model)
        self.position, self.generator = PositionalEncoding(d_model), nn.Linear(d_model, vocab)
        self.model = nn.Transformer(d_model, h, N, N, 4 * d_model, 0.0, batch_first=True)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        tgt_mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=tgt.device)
        memory = self.position(self.src_embed(src) * math.sqrt(self.d_model))
        target = self.position(self.tgt_embed(tgt) * math.sqrt(self.d_model))
        out: Tensor = self.generator(self.model(memory, target, tgt_mask=tgt_mask))
        return out


@labelled(gpu="compute-bound", cpu="healthy")
def annotated_transformer(run: hoptui.Run, device: str) -> None:
    """In the manner of The Annotated Transformer: a large model translates in float32, without TF32."""
    sizes = (200, 1, 64, 2) if device == "cpu" else (32_000, 4, 1024, 16)
    sentences, length = (48, 32) if device == "cpu" else (32, 256)
    vocab, model = sizes[0], EncoderDecoder(*sizes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    src = torch.randint(vocab, (sentences, length), device=device)
    tgt = torch.randint(vocab, (sentences, length + 1), device=device)
    while not run.stopping:
        out = model(src, tgt[:, :-1])
        loss = F.cross_entropy(out.reshape(-1, vocab), tgt[:, 1:].reshape(-1), label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.log(loss=loss.item(), samples=sentences)


# nanoGPT


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.n_head = n_head

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = (y.view(B, T, self.n_head, -1).transpose(1, 2) for y in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return out


class Block(nn.Module):
    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


@labelled(cpu="healthy")
def nanogpt_on_a_laptop(run: hoptui.Run, device: str) -> None:
    """In the manner of nanoGPT's train.py with --device=cpu: the model takes the time."""
    block_size, batch_size, n_embd, vocab_size = 64, 12, 128, 65
    wte, wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
    h = nn.Sequential(*(Block(n_embd, 4) for _ in range(4)), nn.LayerNorm(n_embd))
    lm_head = nn.Linear(n_embd, vocab_size, bias=False)
    model = nn.ModuleList((wte, wpe, h, lm_head)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    with tempfile.TemporaryDirectory() as data_dir:
        train_bin = Path(data_dir) / "train.bin"
        np.random.randint(0, vocab_size, 1_000_000).astype(np.uint16).tofile(train_bin)

        def get_batch() -> tuple[Tensor, Tensor]:
            data = np.memmap(train_bin, dtype=np.uint16, mode="r")
            ix = torch.randint(len(data) - block_size, (batch_size,)).tolist()
            x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
            y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
            return x.to(device), y.to(device)

        X, Y = get_batch()
        while not run.stopping:
            logits = lm_head(h(wte(X) + wpe(torch.arange(block_size, device=device))))
            loss = F.cross_entropy(logits.view(-1, vocab_size), Y.view(-1))
            X, Y = get_batch()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss=loss.item(), samples=batch_size)
