"""Patterns of lines to look at in a kernel's text, by the code of its diagnosis (`grader.judge.closer.clues`)."""

from __future__ import annotations

from collections.abc import Mapping

_MASKS = r"line:\b(?:tl|torch)\.where\s*\(|\bmasked_fill\w*\s*\("
_LOADS, _STORES = r"line:\btl\.load\s*\(", r"line:\btl\.(?:store|atomic_\w+)\s*\("
_EXPONENTIALS = r"line:\bexp2?\s*\("
_LOGARITHMS = r"line:\blog2?\s*\("
_ROW_SUMS = r"line:\b(?:tl\.|torch\.)?sum\s*\("
_MAXIMA = r"line:\b(?:maximum|a?max)\s*\("
_PRODUCTS = r"line:\b(?:tl\.dot|matmul|bmm|einsum)\s*\(|\w\s@\s\w"
_LOOPS = r"line:^\s*(?:for|while)\b"
_DIVISIONS = r"line:[\w\])]\s*/(?!/)"
_SCALES = r"line:\bscale\b\s*=(?!=)|\bsqrt\s*\(|\*\*\s*-?\s*0?\.5"
#: A sum of products: x = x + a @ b, x += tl.dot(a, b), tl.dot(a, b, acc).
_RUNNING = (
    r"line:\b(\w+)\s*=\s*\1\b.*(?:\bdot\s*\(|\w\s@\s\w)|\+=.*(?:\bdot\s*\(|\w\s@\s\w)|\bdot\s*\([^=]*\bacc"
)
_TRANSPOSED = r"line:\btl\.trans\s*\(|\.T\b|\.transpose\s*\(|\.permute\s*\("
_CASTS = r"line:\.(?:to|half|bfloat16)\s*\("
_OFFSETS = r"line:\bprogram_id\s*\("
_COMPARED = r"line:\]\s*[<>]=?\s*\w"
_MASK = (_COMPARED, _MASKS, r"line:\b(?:causal|CAUSAL|is_causal|IS_CAUSAL)\b")
_SCORE_GRADIENT = r"line:\bd_?[sS]\s*=(?!=)"

CLUES: Mapping[str, tuple[str, ...]] = {
    code: clues
    for codes, clues in (
        ("mask_missing mask_reversed mask_strict mask_from_end mask_as_zero mask_after_exp mask_late", _MASK),
        ("mask_by_tiles mask_always diagonal_dropped", (*_MASK, _LOOPS)),
        ("tail_unmasked", (_MASKS, _LOADS)),
        ("no_rescale", (_RUNNING, _ROW_SUMS, _EXPONENTIALS)),
        ("maximum_start maximum_alone no_maximum", (_MAXIMA, _EXPONENTIALS)),
        ("sum_alone sum_of_last_block sum_without_maximum", (_LOGARITHMS, _ROW_SUMS)),
        ("sum_without_logarithm sum_base", (_LOGARITHMS, _STORES)),
        ("wrong_base base_mixed weights_not_normalised log_softmax", (_EXPONENTIALS,)),
        (
            "scale_missing scale_wrong score_scale_missing unscaled dv_scaled",
            (_SCALES, _SCORE_GRADIENT, _PRODUCTS),
        ),
        ("not_normalised divided_twice divided_by_keys divided_by_largest", (_DIVISIONS, _STORES)),
        ("dropped_block first_block_only last_block_only block_alone", (_LOOPS, _RUNNING, _ROW_SUMS)),
        ("pointers_not_moved", (_LOOPS, _LOADS)),
        ("operand_exchanged", (_PRODUCTS, _LOADS)),
        ("weights_missing delta_wrong delta_missing delta_outside", (_SCORE_GRADIENT, r"line:\b[Dd]elta\b")),
        ("not_transposed transposed_operand", (_TRANSPOSED, _PRODUCTS)),
        ("operand_not_contiguous neighbours_row first_head heads", (_OFFSETS, _LOADS)),
        ("outputs_exchanged not_written partly_not_written moved", (_STORES,)),
        ("precision low_precision half_accumulator", (_CASTS, _PRODUCTS)),
        ("wrong_axis", (_ROW_SUMS, _MAXIMA)),
        ("wrong_values", (_PRODUCTS, _COMPARED)),
    )
    for code in codes.split()
}
