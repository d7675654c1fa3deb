#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Make tokenizers.json: small tokenizers of every kind that zbrun reads, trained
here, and what Hugging Face's `tokenizers` makes of some texts with them.

    pip install tokenizers==0.23.3
    python3 make_tokenizers.py            writes beside itself
    python3 make_tokenizers.py --check FILE TOKENIZER.json PROGRAM
                                          hold PROGRAM's ids against the library's

PROGRAM (bench/tokenize) takes -p TOKENIZER.json FILE and prints ids, one a line.
"""
import json
import os
import random
import subprocess
import sys

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models,
                        normalizers, pre_tokenizers, trainers)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"

# Written for this file.
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind.",
    "We're testing what it's like when they've 12 apples, 345 pears and 67890 "
    "plums; I'll say: \"that'd be fine!\"",
    "Der Fluß fließt über große Steine, während Ärzte Öl und Äpfel tragen.",
    "L'été dernier, où êtes-vous allés ? Ça dépend de la façon dont on voit.",
    "El niño comió piña mañana; ¿quién sabe por qué? ¡Olé!",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "Η γρήγορη αλεπού πηδά πάνω από το τεμπέλικο σκυλί.",
    "今天天气很好，我们去公园散步。明天可能会下雨。",
    "すばやい茶色の狐がのろまな犬を飛び越える。カタカナも。",
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر.",
    "दुनिया के सभी मनुष्य स्वतंत्र जन्म लेते हैं।",
    "ตัวอย่างข้อความภาษาไทยที่ไม่มีช่องว่าง",
    "for (int i = 0; i < n; i++) {\n    total += a[i] * b[i];\n\treturn x;\n}",
    "def f(x):\n    if x > 0:\n        return x ** 2\n    return -x\n",
    "  two  spaces   three    four     five ",
    "\n\n\nnew\r\nlines\r\n\r\n and\ttabs\t\t",
    "http://example.org/a_b?c=d&e=f#g user@example.com 3.14159e-10 50% $9.99",
]

EXTRA = [
    "", " ", "\n", "a", "  a", "hello", " hello  world ", "\u2581under \u2581",
    "😀 👩‍👩‍👧‍👦 🇩🇪 emoji", "e\u0301 cafe\u0301 \u1100\u1161\u11a8 \u212b \ufb01",
    "\u00a0nbsp\u2003em\u3000wide\u2028line\u180emvs\u200bzw", "I\u017f 'S 'LL 'ſ",
    "x" * 100, "ab" * 60, " " * 70, "\t\n \t\n x", "1234567 ١٢٣ ½ ² Ⅷ",
    "<s>start</s> <unk><s> mid", "a<|end|>b  <|pad|>  c<|end|><|end|>",
    "word<mask> <mask>word <mask>", "wholeword whole wholes unwhole whole!",
    "<0x41><0x0A> <0xZZ>", "\ufffd\u0000\u0001\x7f\x80\x9f\xad", "§±¶ ∑∂∫ ≤≥",
    "한국어 조선글 \u1112\u1161\u11ab", "Ω Ω K K Å", "ǆ ﬀ ﬃ ㎏ ① ｱ",
    "don't DON'T Don'T we'LL", "the the the\n the\n\nthe", "...!?!? -- ((()))",
    "१२३ दुनिया।मनुष्य", "a,b.c!d?e…f。g，h", "\u0130stanbul ıI", "𝔘𝔫𝔦 𐍈 𠀀",
]


def byte_level(pre, normalizer=None, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(
        vocab_size=400, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>", "<|pad|>"]))
    return t


def split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def spaces(t, normalized):
    """SentencePiece's form: trained with ▁ for spaces, bytes to fall back on."""
    specials = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)]
    texts = ["▁" + line.replace(" ", "▁") for line in CORPUS * 3]
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=460, show_progress=False, limit_alphabet=120,
        special_tokens=specials))
    j = json.loads(t.to_str())
    j["added_tokens"] = [dict(a, normalized=normalized)
                         for a in j["added_tokens"][:3]]
    return j


def llama2():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True,
                             byte_fallback=True))
    j = spaces(t, False)
    j["pre_tokenizer"] = None
    t = Tokenizer.from_str(json.dumps(j))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"),
                                         normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    return t


def metaspace(scheme, split_words, fallback=True, fuse=True):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse,
                             byte_fallback=fallback))
    t = Tokenizer.from_str(json.dumps(spaces(t, True)))
    t.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme=scheme, split=split_words)
    t.decoder = decoders.Sequence([
        decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)])
    return t


def with_kinds_of_added(t):
    t.add_tokens([AddedToken("whole", single_word=True),
                  AddedToken("<mask>", lstrip=True, normalized=False),
                  AddedToken("</s>", rstrip=True),
                  AddedToken("<|end|><|end|>", normalized=False)])
    return t


def make():
    pt = pre_tokenizers
    out = {
        "gpt2": byte_level(pt.ByteLevel(add_prefix_space=False)),
        "gpt2_prefix": byte_level(pt.ByteLevel(add_prefix_space=True)),
        "llama3": byte_level(split(LLAMA3), ignore_merges=True),
        "qwen2": byte_level(split(QWEN2), normalizers.NFC()),
        "bloom": byte_level(split(BLOOM)),
        "falcon": byte_level(pt.Sequence([
            pt.Punctuation("contiguous"), pt.ByteLevel(add_prefix_space=False),
            pt.Digits(individual_digits=False),
            pt.Split(Regex("[0-9][0-9][0-9]"), "isolated")])),
        "digits": byte_level(pt.Sequence([
            pt.Digits(individual_digits=True), pt.Punctuation(),
            pt.ByteLevel(add_prefix_space=False, use_regex=True)]),
            normalizers.NFKD()),
        "behaviors": byte_level(pt.Sequence([
            pt.Split("the", "merged_with_previous"),
            pt.Split(Regex(r"[aeiou]"), "merged_with_next"),
            pt.Split(Regex(r"\d+"), "contiguous"),
            pt.Split(Regex(r"\S+"), "removed", invert=True),
            pt.ByteLevel(add_prefix_space=True)]), normalizers.NFKC()),
        "llama2": llama2(),
        "mistral": metaspace("first", False),
        "metaspace_words": metaspace("always", True),
        "metaspace_never": metaspace("never", False),
        "unk_fused": metaspace("always", False, fallback=False),
        "unk_single": metaspace("first", True, fallback=False, fuse=False),
    }
    out["added"] = with_kinds_of_added(byte_level(split(LLAMA3)))
    return out


def texts():
    """The corpus, hard cases, and random mixtures of both."""
    r = random.Random(7)
    chars = "".join(CORPUS + EXTRA)
    mixed = ["".join(r.choice(chars) for _ in range(r.randrange(1, 60)))
             for _ in range(20)]
    cut = [t[r.randrange(len(t)):] for t in CORPUS]
    return CORPUS + EXTRA + mixed + cut + ["\n".join(CORPUS)]


def write(path):
    all_texts = texts()
    result = {"made_by": "make_tokenizers.py", "texts": all_texts, "cases": []}
    for name, t in make().items():
        ids = [t.encode(x, add_special_tokens=False).ids for x in all_texts]
        result["cases"].append({
            "name": name, "tokenizer": json.loads(t.to_str()), "ids": ids,
            "decoded": [t.decode(i) for i in ids]})
    with open(path, "w", encoding="ascii") as f:
        f.write('{"made_by": "make_tokenizers.py",\n"texts": %s,\n"cases": [\n'
                % json.dumps(all_texts))
        f.write(",\n".join(json.dumps(c, separators=(",", ":"))
                           for c in result["cases"]))
        f.write("]}\n")


def check(text_path, tok_path, program):
    with open(text_path, encoding="utf-8", newline="") as f:
        text = f.read()
    want = Tokenizer.from_file(tok_path).encode(
        text, add_special_tokens=False).ids
    got = [int(x) for x in subprocess.run(
        [program, "-p", tok_path, text_path], check=True,
        stdout=subprocess.PIPE).stdout.split()]
    for i, (a, b) in enumerate(zip(want, got)):
        if a != b:
            sys.exit("token %d: %d, not %d" % (i, b, a))
    if len(want) != len(got):
        sys.exit("%d tokens, not %d" % (len(got), len(want)))
    print("%d tokens are the same" % len(want))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check(*sys.argv[2:])
    else:
        write(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                           "tokenizers.json"))
