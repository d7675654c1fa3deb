#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Speed of bench/tokenize beside Hugging Face's `tokenizers`, on one core each, in
turn on the same text, and whether the ids are the same:

    pip install tokenizers
    python3 bench/peers/tokenize.py bench/tokenize TOKENIZER.json FILE [ROUNDS]

With `golden:NAME` for TOKENIZER.json, that of tests/golden/tokenizers.json.
MB per second of processor time; the fastest of all rounds, and the ratio of both.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers  # noqa: E402: after what it reads at its start

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                      "../../tests/golden/tokenizers.json")


def golden(name, folder):
    with open(GOLDEN, encoding="utf-8") as f:
        case = [c for c in json.load(f)["cases"] if c["name"] == name]
    if not case:
        sys.exit("no tokenizer %s in %s" % (name, GOLDEN))
    path = os.path.join(folder, "tokenizer.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(case[0]["tokenizer"], f)
    return path


def theirs(tok, text):
    """With and without offsets into the text, whichever is faster."""
    begin = time.process_time()
    ids = tok.encode(text, add_special_tokens=False).ids
    middle = time.process_time()
    tok.encode_batch_fast([text], add_special_tokens=False)
    return min(middle - begin, time.process_time() - middle), ids


def ours(program, tok_path, path):
    out = subprocess.run([program, tok_path, path, "1"], check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return float(re.search(r"best_MB_per_s ([0-9.]+)", out).group(1))


def compare(program, tok_path, path, n_rounds):
    with open(path, encoding="utf-8", newline="") as f:
        text = f.read()
    mb = os.path.getsize(path) / 1e6
    tok = tokenizers.Tokenizer.from_file(tok_path)
    best_theirs = best_ours = 0
    for _ in range(n_rounds):
        seconds, ids = theirs(tok, text)
        best_theirs = max(best_theirs, mb / seconds)
        best_ours = max(best_ours, ours(program, tok_path, path))
    got = subprocess.run([program, "-p", tok_path, path], check=True,
                         stdout=subprocess.PIPE).stdout.split()
    is_same = ids == [int(x) for x in got]
    print("tokenizers %s: %.2f MB/s, ours: %.2f MB/s, ratio %.2f; %d tokens, "
          "ids %s" % (tokenizers.__version__, best_theirs, best_ours,
                      best_ours / best_theirs, len(ids),
                      "the same" if is_same else "DIFFERENT"))
    return 0 if is_same else 1


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    program, tok_path, path = sys.argv[1:4]
    n_rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    with tempfile.TemporaryDirectory() as folder:
        if tok_path.startswith("golden:"):
            tok_path = golden(tok_path[len("golden:"):], folder)
        return compare(program, tok_path, path, n_rounds)


if __name__ == "__main__":
    sys.exit(main())
