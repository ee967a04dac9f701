"""Attention muGraphs written by hand: flash style, split in one kernel, split in two; and mistakes.

The mistakes are edits of the right text: what keeps exp in range is forgotten, done twice or done
the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping

from handmade import edited, handmade, named

from mirage_kernels.generator.ir import Graph

IN_LOOP = """
    products = contract q k over D
    scores = mul products scale
    zero = const 0
    hidden = const -inf
    visible = less position_L seq_lens
    seen = where visible scores hidden
    m = peak seen over L
    lowered = sub scores m
    power = exp lowered
    weight = where visible power zero
    part = contract weight v over L
    acc = accum_rescaled part m
    weights = sum weight over L
    total = accum_rescaled weights m
"""
FLASH = """
    grid Hkv B
    loop L
    load q k v seq_lens scale position_L
    IN_LOOP
    out = div acc total
    store out as result: B Hkv G D fp16
"""
SPLIT = """
    grid Hkv B
    split L
    loop L
    load q k v seq_lens scale position_L
    IN_LOOP
    m_last = last m
    acc_whole = combine_rescaled acc m_last over L
    total_whole = combine_rescaled total m_last over L
    out = div acc_whole total_whole
    store out as result: B Hkv G D fp16
"""
SPLIT_IN_TWO = """
    grid Hkv B
    split L
    loop L
    load q k v seq_lens scale position_L
    IN_LOOP
    m_last = last m
    store acc as acc_parts: L_parts B Hkv G D fp32
    store total as total_parts: L_parts B Hkv G fp32
    store m_last as m_parts: L_parts B Hkv G fp32

    grid Hkv B
    load acc_parts total_parts m_parts
    common = peak m_parts over L_parts
    below = sub m_parts common
    decay = exp below
    acc_whole = contract decay acc_parts over L_parts
    total_whole = contract decay total_parts over L_parts
    out = div acc_whole total_whole
    store out as result: B Hkv G D fp16
"""
FORMS = {"flash": FLASH, "split": SPLIT, "split in two": SPLIT_IN_TWO}

IN_THE_LOOP = named("""
    the sum of weights is not rescaled
    total = accum_rescaled weights m -> total = accum weights

    the weighted sum is not rescaled
    acc = accum_rescaled part m -> acc = accum part

    neither sum is rescaled
    total = accum_rescaled weights m -> total = accum weights
    acc = accum_rescaled part m -> acc = accum part

    numerator and denominator have peaks of their own
    weights = sum weight over L ->
    total = accum_rescaled weights m -> m2 = peak seen over L
    lowered2 = sub scores m2
    power2 = exp lowered2
    weight2 = where visible power2 zero
    weights = sum weight2 over L
    total = accum_rescaled weights m2

    one sum is rescaled by another peak
    total = accum_rescaled weights m -> m2 = peak seen over L
    total = accum_rescaled weights m2

    exp(m - s)
    lowered = sub scores m -> lowered = sub m scores

    exp(s + m), which falls when the peak rises
    lowered = sub scores m -> lowered = add scores m

    exp(s), rescaled nevertheless
    power = exp lowered -> power = exp scores

    exp(s) in the sum of weights only
    weights = sum weight over L -> plain = exp scores
    plain_weight = where visible plain zero
    weights = sum plain_weight over L

    no mask
    part = contract weight v over L -> part = contract power v over L
    weights = sum weight over L -> weights = sum power over L

    no mask in the weighted sum
    part = contract weight v over L -> part = contract power v over L

    no mask in the sum of weights
    weights = sum weight over L -> weights = sum power over L

    the mask turned round
    weight = where visible power zero -> weight = where visible zero power

    one key more
    visible = less position_L seq_lens -> one = int 1
    more = add seq_lens one
    visible = less position_L more

    one key less
    visible = less position_L seq_lens -> one = int 1
    next = add position_L one
    visible = less next seq_lens
""")
OF_BLOCKS = named("""
    blocks add their weighted sums as they are
    combine_rescaled acc m_last -> combine acc

    blocks add their sums of weights as they are
    combine_rescaled total m_last -> combine total

    blocks add both as they are
    combine_rescaled acc m_last -> combine acc
    combine_rescaled total m_last -> combine total

    blocks divide, then add
    acc_whole = combine_rescaled acc m_last over L -> early = div acc total
    acc_whole = combine early over L
    out = div acc_whole total_whole -> out = mul acc_whole one
    zero = const 0 -> zero = const 0
    one = const 1

    blocks divide, then add rescaled
    acc_whole = combine_rescaled acc -> early = div acc total
    acc_whole = combine_rescaled early
""")
OF_KERNELS = named("""
    parts are added as they are
    contract decay acc_parts -> sum acc_parts

    sums of parts are added as they are
    contract decay total_parts -> sum total_parts

    both are added as they are
    contract decay acc_parts -> sum acc_parts
    contract decay total_parts -> sum total_parts

    parts are rescaled the other way
    below = sub m_parts common -> below = sub common m_parts

    parts are rescaled twice
    acc_whole = contract decay -> twice = mul decay decay
    acc_whole = contract twice

    parts have common peaks of their own
    total_whole = contract decay -> common2 = peak m_parts over L_parts
    below2 = sub m_parts common2
    decay2 = exp below2
    total_whole = contract decay2

    peaks are stored in place of sums
    store total as -> copy = mul m_last one
    store copy as
    zero = const 0 -> zero = const 0
    one = const 1

    parts that are divided already
    store acc as -> early = div acc total
    store early as
""")
# A maximum is its own equal: only arbitrary peaks tell two of them from one.
BEYOND_THE_MAXIMUM = (
    "numerator and denominator have peaks of their own",
    "one sum is rescaled by another peak",
    "parts have common peaks of their own",
)
# Equal to the recipe, but their peaks cover what nothing looks at.
COVERS_THE_MASKED = named("""
    the peak of all scores
    m = peak seen over L -> m = peak scores over L

    a mask of values in place of scores
    m = peak seen over L -> m = peak scores over L
    kept_v = where visible v zero
    part = contract weight v over L -> part = contract power kept_v over L
""")
MISTAKES: Mapping[str, Mapping[str, str]] = {
    "flash": IN_THE_LOOP,
    "split": {**IN_THE_LOOP, **OF_BLOCKS},
    "split in two": {**IN_THE_LOOP, **OF_KERNELS},
}


def attention(spec: Graph, form: str, edits: str = "") -> Graph:
    """Return a form of grouped-query attention over its spec, with some words exchanged."""
    return handmade(spec, edited(FORMS[form].replace("IN_LOOP", IN_LOOP), edits))
