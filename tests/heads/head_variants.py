"""Heads of every kind with each of their options."""

from packed_heads import HIDDEN, VOCABULARY, borrowed, sizes, spread

from foredraft.heads.dflash import DFlashConfig, DFlashHead
from foredraft.heads.eagle import Eagle3Config, Eagle3Head, EagleConfig, EagleHead
from foredraft.heads.medusa import MedusaConfig, MedusaHeads
from foredraft.heads.mtp import MtpConfig, MtpHead

WIDTH, REDUCED = 24, 18  # of a captured feature; of the draft vocabulary

EAGLE = {
    "published": {},
    "no bias": {"bias": False},
    "two layers": {"layers": 2},
    "biased attention": {"sizes": sizes(attention_bias=True)},
    "head norms": {"sizes": sizes(head_norms=True)},
}
EAGLE3 = {
    "published": {},
    "norm before residual": {"norm_before_residual": True},
    "fc norm": {"fc_norm": True},
    "norm before fc": {"norm_before_fc": True},
    "norm output": {"norm_output": True},
    "3.1": {"fc_norm": True, "norm_output": True},
    "reduced vocabulary": {"draft_vocabulary": REDUCED},
    "own embedding": {"own_embedding": True},
    "two layers": {"layers": 2},
    "all at once": {
        "layers": 2,
        "norm_before_residual": True,
        "fc_norm": True,
        "norm_output": True,
        "draft_vocabulary": REDUCED,
        "own_embedding": True,
        "sizes": sizes(attention_bias=True, head_norms=True),
    },
}
MTP = {
    "borrows all": {},
    "feeds the normed state": {"feed_normed": True},
    "own head": {"own_head": True},
    "own embedding": {"own_embedding": True},
    "all its own": {"feed_normed": True, "own_head": True, "own_embedding": True},
}


def eagle(**options) -> EagleHead:
    shape = options.pop("sizes", None) or sizes()
    return spread(EagleHead(EagleConfig(sizes=shape, vocabulary=VOCABULARY, **options), borrowed()))


def eagle3(**options) -> Eagle3Head:
    shape = options.pop("sizes", None) or sizes()
    defaults = {"draft_vocabulary": VOCABULARY, "target_hidden_size": WIDTH, "feature_layers": (2, 4, 7)}
    config = Eagle3Config(sizes=shape, vocabulary=VOCABULARY, **(defaults | options))
    return spread(Eagle3Head(config, borrowed()))


def mtp(**options) -> MtpHead:
    return spread(MtpHead(MtpConfig(sizes=sizes(), vocabulary=VOCABULARY, **options), borrowed()))


def dflash(*, causal: bool = False, head_norms: bool = True, **options) -> DFlashHead:
    config = DFlashConfig(
        sizes=sizes(head_norms=head_norms, **options),
        vocabulary=VOCABULARY,
        target_hidden_size=WIDTH,
        feature_layers=(1, 3),
        layers=2,
        block_size=6,
        mask_token_id=39,
        causal=causal,
    )
    return spread(DFlashHead(config, borrowed()))


def medusa(*, draft_vocabulary: int = VOCABULARY, **options) -> MedusaHeads:
    shape = {"hidden_size": HIDDEN, "vocabulary": VOCABULARY, "draft_vocabulary": draft_vocabulary}
    return spread(MedusaHeads(MedusaConfig(heads=4, **shape, **options)))
