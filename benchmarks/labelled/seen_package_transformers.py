"""Trainings by the Trainer of transformers, as its example scripts and tutorials write them."""

from __future__ import annotations

import collections
import gc
import random
import re
import string
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from benchmarks.labelled.catalogue import AdapterRun, labelled

NEEDS = ("transformers", "accelerate")

SENTENCES = (
    "the council said on tuesday that a new bridge over river would open next spring after years of delay",
    "several people who live nearby have asked for lower speed limits while police found no evidence",
    "market prices rose again because storms had damaged crops in north",
    "team won its third match with late goal from captain",
    "scientists reported that small fish return to warmer water when light changes at night",
)
WORDS = [word for sentence in SENTENCES for word in sentence.split()]


def _text(rng: random.Random, words: int) -> str:
    """Return a text of so many words, in sentences of a dozen."""
    drawn = rng.choices(WORDS, k=words)
    return " ".join(f"{word} ." if i % 12 == 11 else word for i, word in enumerate(drawn))


def _tokenizer() -> Any:
    """Return a fast tokenizer whose vocabulary is the words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "."]
    vocab = {word: i for i, word in enumerate([*special, *sorted(set(WORDS))])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def _arguments(
    run: AdapterRun, device: str, output_dir: str, kind: str = "TrainingArguments", **more: Any
) -> Any:
    """Return arguments of a training without trackers and bars."""
    import transformers

    settings = {"save_strategy": "no", "logging_steps": 10, "report_to": [], "disable_tqdm": True}
    return getattr(transformers, kind)(
        output_dir=output_dir, max_steps=run.iterations, use_cpu=device == "cpu", **{**settings, **more}
    )


def _callback(run: AdapterRun) -> Any:
    from hoptui.integrations.transformers import HoptuiCallback

    return HoptuiCallback(run.name)


class VectorizedSpeech(IterableDataset[dict[str, Any]]):
    """Recordings of a stream, whose features are made as they come."""

    def __init__(self, feature_extractor: Any, recordings: int) -> None:
        self.feature_extractor = feature_extractor
        rng = np.random.default_rng(0)
        self.recordings = [
            {"array": rng.normal(0, 0.1, (2, 5 * 48_000)).astype(np.float32), "sampling_rate": 48_000}
            for _ in range(recordings)
        ]
        self.sentences = [rng.integers(3, 200, 12).tolist() for _ in range(recordings)]

    def prepare_dataset(self, audio: dict[str, Any], labels: list[int]) -> dict[str, Any]:
        sampling_rate = self.feature_extractor.sampling_rate
        known = np.arange(audio["array"].shape[-1]) / audio["sampling_rate"]
        times = np.arange(0, known[-1], 1 / sampling_rate)
        channels = [np.interp(times, known, channel) for channel in audio["array"]]  # here
        array = np.mean(channels, axis=0)
        inputs = self.feature_extractor(array, sampling_rate=sampling_rate, do_normalize=True)  # here
        return {"input_features": inputs["input_features"][0], "labels": labels}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            for audio, labels in zip(self.recordings, self.sentences, strict=True):
                yield self.prepare_dataset(audio, labels)


@dataclass
class DataCollatorSpeechSeq2SeqWithPadding:
    """Stacks the features and pads the labels."""

    feature_extractor: Any

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        inputs = [{"input_features": feature["input_features"]} for feature in features]
        batch = self.feature_extractor.pad(inputs, return_tensors="pt")
        batch["labels"] = torch.tensor([feature["labels"] for feature in features])
        return batch  # type: ignore[no-any-return]


@labelled(gpu="data-bound", cpu="data-bound", needs=NEEDS, adapter=True, helpers=(VectorizedSpeech,))
def whisper_from_a_stream(run: AdapterRun, device: str) -> None:
    """In the manner of run_speech_recognition_seq2seq_streaming.py: features of a stream are made on the fly.

    Each recording is resampled, mixed to one channel, and turned into a spectrogram in the training process.
    """
    from transformers import (
        Seq2SeqTrainer,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )

    feature_extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=5)
    config = WhisperConfig(
        vocab_size=256,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=250,
        max_target_positions=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = Seq2SeqTrainer(
            model=WhisperForConditionalGeneration(config),
            args=_arguments(
                run, device, output_dir, "Seq2SeqTrainingArguments", per_device_train_batch_size=16
            ),
            train_dataset=VectorizedSpeech(feature_extractor, 64),
            data_collator=DataCollatorSpeechSeq2SeqWithPadding(feature_extractor),
            callbacks=[_callback(run)],
        )
        trainer.train()


class SummaryDataset(Dataset[dict[str, Any]]):
    """Articles and their headlines, tokenized where they are asked for."""

    def __init__(self, tokenizer: Any, articles: list[str], headlines: list[str], max_len: int) -> None:
        self.tokenizer, self.max_len = tokenizer, max_len
        self.articles, self.headlines = articles, headlines

    def __len__(self) -> int:
        return len(self.articles)

    def __getitem__(self, index: int) -> dict[str, Any]:
        source = self.tokenizer(  # here
            self.articles[index],
            max_length=self.max_len,
            padding="max_length",
            truncation=True,
            return_tensors="pt",
        )
        target = self.tokenizer(
            self.headlines[index], max_length=64, padding="max_length", truncation=True, return_tensors="pt"
        )
        labels = target["input_ids"].squeeze()
        labels[labels == self.tokenizer.pad_token_id] = -100
        return {
            "input_ids": source["input_ids"].squeeze(),
            "attention_mask": source["attention_mask"].squeeze(),
            "labels": labels,
        }


@labelled(gpu="data-bound", cpu="data-bound", needs=NEEDS, adapter=True, helpers=(SummaryDataset,))
def byt5_reads_whole_articles(run: AdapterRun, device: str) -> None:
    """In the manner of tutorials that fine-tune T5: `__getitem__` calls the tokenizer.

    The tokenizer of ByT5 is in Python. It cuts an article only after it has split all of it.
    """
    from transformers import ByT5Tokenizer, T5Config, T5ForConditionalGeneration, Trainer

    tokenizer, rng = ByT5Tokenizer(), random.Random(1)
    articles = [_text(rng, 12_000) for _ in range(96)]
    headlines = [_text(rng, 8) for _ in articles]
    config = T5Config(
        vocab_size=384,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = Trainer(
            model=T5ForConditionalGeneration(config),
            args=_arguments(run, device, output_dir, per_device_train_batch_size=8),
            train_dataset=SummaryDataset(tokenizer, articles, headlines, 128),
            callbacks=[_callback(run)],
        )
        trainer.train()


def postprocess_qa_predictions(
    examples: list[dict[str, Any]],
    features: list[dict[str, Any]],
    predictions: tuple[Any, Any],
    n_best_size: int,
    max_answer_length: int,
) -> dict[str, str]:
    """Return the best answer of each example, out of all pairs of a likely start and a likely end."""
    all_start_logits, all_end_logits = predictions
    all_predictions = collections.OrderedDict()
    for example_index, example in enumerate(examples):
        start_logits, end_logits = all_start_logits[example_index], all_end_logits[example_index]
        offset_mapping = features[example_index]["offset_mapping"]
        prelim_predictions = []
        start_indexes = np.argsort(start_logits)[-1 : -n_best_size - 1 : -1].tolist()
        end_indexes = np.argsort(end_logits)[-1 : -n_best_size - 1 : -1].tolist()
        for start_index in start_indexes:
            for end_index in end_indexes:  # here
                if offset_mapping[start_index] is None or offset_mapping[end_index] is None:  # here
                    continue
                if end_index < start_index or end_index - start_index + 1 > max_answer_length:  # here
                    continue
                prelim_predictions.append(  # here
                    {
                        "offsets": (offset_mapping[start_index][0], offset_mapping[end_index][1]),  # here
                        "score": start_logits[start_index] + end_logits[end_index],  # here
                        "start_logit": start_logits[start_index],  # here
                        "end_logit": end_logits[end_index],  # here
                    }
                )
        best = sorted(prelim_predictions, key=lambda x: x["score"], reverse=True)[:n_best_size]  # here
        context = example["context"]
        for pred in best:
            offsets = pred.pop("offsets")
            pred["text"] = context[offsets[0] : offsets[1]]
        all_predictions[example["id"]] = best[0]["text"] if best else "empty"
    return all_predictions


def normalize_answer(s: str) -> str:
    """Lower text and remove punctuation, articles and extra whitespace."""
    text = "".join(ch for ch in s.lower() if ch not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


@labelled(
    gpu="host-bound", cpu="host-bound", needs=NEEDS, adapter=True, helpers=(postprocess_qa_predictions,)
)
def squad_answers_after_each_step(run: AdapterRun, device: str) -> None:
    """In the manner of run_qa.py, trainer_qa.py and utils_qa.py: answers are searched for in Python.

    The evaluation comes after each step, and tries all pairs of the best starts and ends.
    """
    from transformers import BertConfig, BertForQuestionAnswering, Trainer

    tokenizer, rng = _tokenizer(), random.Random(2)
    examples = [{"id": str(i), "context": _text(rng, 130)} for i in range(48)]
    features = []
    for example in examples:
        encoded = tokenizer(example["context"], max_length=128, truncation=True, return_offsets_mapping=True)
        start = rng.randrange(100)
        features.append({**encoded, "start_positions": start, "end_positions": start + rng.randrange(1, 12)})
    answers = {
        example["id"]: " ".join(example["context"].split()[:5]) for example in examples
    }  # the words at the front stand for all answers

    def post_processing_function(predictions: Any) -> dict[str, str]:
        return postprocess_qa_predictions(examples, features, predictions, 100, 60)

    def exact_match(predicted: dict[str, str]) -> dict[str, float]:
        same = [normalize_answer(answers[i]) == normalize_answer(text) for i, text in predicted.items()]
        return {"eval_exact_match": 100 * sum(same) / len(same)}

    class QuestionAnsweringTrainer(Trainer):  # type: ignore[misc]
        def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            output = self.evaluation_loop(
                self.get_eval_dataloader(), description="Evaluation", prediction_loss_only=False
            )
            metrics = exact_match(post_processing_function(output.predictions))
            self.log(metrics)
            self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
            return metrics

    config = BertConfig(
        vocab_size=256,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    columns = ("input_ids", "attention_mask", "start_positions", "end_positions")
    rows = [{name: feature[name] for name in columns} for feature in features]
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = QuestionAnsweringTrainer(
            model=BertForQuestionAnswering(config),
            args=_arguments(
                run,
                device,
                output_dir,
                per_device_train_batch_size=8,
                per_device_eval_batch_size=48,
                eval_strategy="steps",
                eval_steps=1,
            ),
            train_dataset=rows,
            eval_dataset=rows,
            callbacks=[_callback(run)],
        )
        trainer.train()


def _lcs_table(ref: list[str], can: list[str]) -> list[list[int]]:
    """Return the table of the longest common subsequence."""
    rows, cols = len(ref), len(can)
    lcs_table = [[0] * (cols + 1) for _ in range(rows + 1)]
    for i in range(1, rows + 1):
        for j in range(1, cols + 1):  # here
            if ref[i - 1] == can[j - 1]:  # here
                lcs_table[i][j] = lcs_table[i - 1][j - 1] + 1  # here
            else:
                lcs_table[i][j] = max(lcs_table[i - 1][j], lcs_table[i][j - 1])  # here
    return lcs_table


def _f_measure(common: int, target: int, prediction: int) -> tuple[float, float, float]:
    precision, recall = common / max(prediction, 1), common / max(target, 1)
    return precision, recall, 2 * precision * recall / max(precision + recall, 1e-9)


class BootstrapAggregator:
    """Confidence intervals of scores, by resampling."""

    def __init__(self, confidence_interval: float = 0.95, n_samples: int = 1000) -> None:
        self.percentiles = [50 * (1 - confidence_interval), 50, 50 * (1 + confidence_interval)]
        self.n_samples = n_samples
        self._scores: dict[str, list[tuple[float, float, float]]] = collections.defaultdict(list)

    def add_scores(self, scores: dict[str, tuple[float, float, float]]) -> None:
        for score_type, score in scores.items():
            self._scores[score_type].append(score)

    def aggregate(self) -> dict[str, Any]:
        return {name: self._bootstrap_resample(np.array(rows)) for name, rows in self._scores.items()}

    def _bootstrap_resample(self, matrix: Any) -> Any:
        sample_mean = np.zeros((self.n_samples, matrix.shape[1]))
        for i in range(self.n_samples):
            sample_idx = np.random.choice(np.arange(matrix.shape[0]), size=matrix.shape[0])  # here
            sample_mean[i, :] = np.mean(matrix[sample_idx, :], axis=0)  # here
        return np.percentile(sample_mean, self.percentiles, axis=0)


@labelled(
    gpu="host-bound", cpu="host-bound", needs=NEEDS, adapter=True, helpers=(_lcs_table, BootstrapAggregator)
)
def summaries_scored_by_rouge(run: AdapterRun, device: str) -> None:
    """In the manner of run_summarization.py: generated summaries are scored by ROUGE in `compute_metrics`.

    The scores are those of rouge_score, with an aggregator that draws each of them 3000 times.
    """
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, T5Config, T5ForConditionalGeneration

    tokenizer, rng = _tokenizer(), random.Random(3)
    rows = [
        {
            "input_ids": tokenizer(_text(rng, 40))["input_ids"],
            "labels": tokenizer(_text(rng, 60))["input_ids"],
        }
        for _ in range(32)
    ]

    def postprocess_text(preds: list[str], labels: list[str]) -> tuple[list[str], list[str]]:
        preds = ["\n".join(pred.strip().split(" . ")) for pred in preds]
        labels = ["\n".join(label.strip().split(" . ")) for label in labels]
        return preds, labels

    def compute_metrics(eval_preds: Any) -> dict[str, float]:
        preds, labels = eval_preds
        preds = np.where(preds != -100, preds, tokenizer.pad_token_id)
        decoded_preds = tokenizer.batch_decode(preds, skip_special_tokens=True)
        labels = np.where(labels != -100, labels, tokenizer.pad_token_id)
        decoded_labels = tokenizer.batch_decode(labels, skip_special_tokens=True)
        decoded_preds, decoded_labels = postprocess_text(decoded_preds, decoded_labels)
        aggregator = BootstrapAggregator(n_samples=3000)
        for pred, label in zip(decoded_preds, decoded_labels, strict=True):
            can, ref = pred.split(), label.split()
            scores = {}
            for n in (1, 2):
                grams = [
                    collections.Counter(zip(*(x[i:] for i in range(n)), strict=False)) for x in (ref, can)
                ]
                common = sum((grams[0] & grams[1]).values())
                scores[f"rouge{n}"] = _f_measure(common, len(ref) - n + 1, len(can) - n + 1)
            longest = _lcs_table(ref, can)[-1][-1]
            scores["rougeL"] = _f_measure(longest, len(ref), len(can))
            kept = sum(_lcs_table(sentence.split(), can)[-1][-1] for sentence in label.split("\n"))
            scores["rougeLsum"] = _f_measure(kept, len(ref), len(can))
            aggregator.add_scores(scores)
        result = {name: round(100 * float(each[1, 2]), 4) for name, each in aggregator.aggregate().items()}
        result["gen_len"] = float(
            np.mean([np.count_nonzero(pred != tokenizer.pad_token_id) for pred in preds])
        )
        return result

    config = T5Config(
        vocab_size=256,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    model = T5ForConditionalGeneration(config)
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = Seq2SeqTrainer(
            model=model,
            args=_arguments(
                run,
                device,
                output_dir,
                "Seq2SeqTrainingArguments",
                per_device_train_batch_size=8,
                per_device_eval_batch_size=32,
                eval_strategy="steps",
                eval_steps=1,
                predict_with_generate=True,
                generation_max_length=8,
            ),
            train_dataset=rows,
            eval_dataset=rows,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            compute_metrics=compute_metrics,
            callbacks=[_callback(run)],
        )
        trainer.train()


def clear_memory() -> None:
    """Free what nobody refers to."""
    gc.collect()  # here
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@labelled(gpu="host-bound", cpu="host-bound", needs=NEEDS, adapter=True, helpers=(clear_memory,))
def glue_with_a_memory_callback(run: AdapterRun, device: str) -> None:
    """In the manner of run_glue.py, with the callback of many scripts that collects garbage after each step.

    The examples of the data set are dictionaries of lists, which the collector visits too.
    """
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainerCallback,
    )

    class MemoryCleanupCallback(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clear_memory()

    tokenizer, rng = _tokenizer(), random.Random(4)
    train_dataset = []
    for i in range(20_000):
        encoded = tokenizer(_text(rng, rng.randrange(8, 32)))
        train_dataset.append(
            {
                "input_ids": encoded["input_ids"],
                "attention_mask": encoded["attention_mask"],
                "label": i % 2,
            }
        )
    config = BertConfig(
        vocab_size=256,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        num_labels=2,
    )
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = Trainer(
            model=BertForSequenceClassification(config),
            args=_arguments(run, device, output_dir, per_device_train_batch_size=16),
            train_dataset=train_dataset,
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[MemoryCleanupCallback(), _callback(run)],
        )
        trainer.train()


@labelled(gpu="save-bound", cpu="save-bound", needs=NEEDS, adapter=True)
def frozen_bert_saved_each_step(run: AdapterRun, device: str) -> None:
    """In the manner of run_glue.py with a frozen base, as the documentation of Trainer freezes it.

    `save_steps` is far too low: Trainer writes all weights and its own state after every step.
    """
    from transformers import BertConfig, BertForSequenceClassification, DataCollatorWithPadding, Trainer

    tokenizer, rng = _tokenizer(), random.Random(5)
    train_dataset = [{**tokenizer(_text(rng, 6)), "label": i % 2} for i in range(512)]
    width = 512 if device == "cpu" else 1024
    config = BertConfig(
        vocab_size=30522,
        hidden_size=width,
        num_hidden_layers=2 if device == "cpu" else 8,
        num_attention_heads=8,
        intermediate_size=4 * width,
        max_position_embeddings=64,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    for param in model.base_model.parameters():
        param.requires_grad = False
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = Trainer(
            model=model,
            args=_arguments(
                run,
                device,
                output_dir,
                per_device_train_batch_size=2,
                save_strategy="steps",
                save_steps=1,
                save_total_limit=1,
            ),
            train_dataset=train_dataset,
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[_callback(run)],
        )
        trainer.train()  # here


@labelled(gpu="compute-bound power-limited", cpu="healthy", needs=NEEDS, adapter=True)
def llama_pretraining(run: AdapterRun, device: str) -> None:
    """In the manner of run_clm.py with `--config_overrides`: a wide Llama is trained from scratch in bf16.

    Blocks of tokens lie in memory, and the optimizer is fused.
    """
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, default_data_collator

    cpu = device == "cpu"
    config = LlamaConfig(
        vocab_size=512 if cpu else 8192,
        hidden_size=256 if cpu else 4096,
        intermediate_size=688 if cpu else 11008,
        num_hidden_layers=2 if cpu else 4,
        num_attention_heads=4 if cpu else 32,
        max_position_embeddings=2048,
        use_cache=False,
    )
    block_size = 128 if cpu else 2048
    blocks = torch.randint(0, config.vocab_size, (64, block_size))
    with torch.device(device):
        model = LlamaForCausalLM(config)
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = Trainer(
            model=model,
            args=_arguments(
                run,
                device,
                output_dir,
                per_device_train_batch_size=4 if cpu else 8,
                bf16=not cpu,
                optim="adamw_torch" if cpu else "adamw_torch_fused",
                logging_steps=50,
            ),
            train_dataset=[{"input_ids": block, "labels": block} for block in blocks],
            data_collator=default_data_collator,
            callbacks=[_callback(run)],
        )
        trainer.train()
