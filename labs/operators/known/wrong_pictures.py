"""Wrong convolutions and maxima of windows."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

from .wrong_layers import exchanged

_PLACE = "ih = oh * stride + kh - pad, iw = ow * stride + kw - pad;"
_SIZES = "OH = (H + 2 * pad - K) / stride + 1, OW = (Wd + 2 * pad - K) / stride + 1;"
_TAP = "((c * K + kh) * K + kw) * places"
_READ = "x[((n * C + c) * H + ih) * Wd + iw]"
_COLUMNS = "        std::vector<float> columns(taps * places, 0.0f);\n"
_IMAGES = "#pragma omp parallel for\n    for (int n = 0; n < N; n++) {\n"
_BIAS = "out[p] = bias[f]"
_DB = """        for (int n = 0; n < N; n++)
            for (int p = 0; p < places; p++) gb[f] += gy[(n * F + f) * places + p];"""
_DX = "gx[((n * C + c) * H + ih) * Wd + iw] += column[oh * OW + ow];"
_INSIDE = "ih >= 0 && ih < H && iw >= 0 && iw < Wd"
_DW_PLACE = _PLACE + "\n                    const bool inside"
_DX_PLACE = _PLACE + "\n                    if ("
_TAPS_LOOP = "#pragma omp parallel for\n    for (int t = 0; t < taps; t++) {"
_SEEN = "        for (int n = 0; n < N; n++) {\n            for (int oh"


def _placed(place: str) -> tuple[tuple[str, str], ...]:
    """Other places in the image, in conv2dForward."""
    return ((_PLACE, place),)


WRONG = (
    Mutation("taps as (kh, kw, c)", "conv2d", ((_TAP, "((kh * K + kw) * C + c) * places"),), ("im2col_order",)),
    Mutation("taps transposed", "conv2d", ((_TAP, "((c * K + kw) * K + kh) * places"),), ("kernel_transposed",)),
    Mutation("filter flipped", "conv2d",
             _placed("ih = oh * stride + (K - 1 - kh) - pad, iw = ow * stride + (K - 1 - kw) - pad;"),
             ("kernel_flipped",)),
    Mutation("border ignored", "conv2d", _placed("ih = oh * stride + kh, iw = ow * stride + kw;"),
             ("padding_ignored",)),
    Mutation("border one too wide", "conv2d", _placed(_PLACE.replace("- pad", "- pad - 1")), ("padding_off_by_one",)),
    Mutation("border one too narrow", "conv2d", _placed(_PLACE.replace("- pad", "- pad + 1")),
             ("padding_off_by_one",)),
    Mutation("stride ignored", "conv2d", _placed(_PLACE.replace(" * stride", "")), ("stride_ignored",)),
    Mutation("border times stride", "conv2d",
             _placed("ih = (oh - pad) * stride + kh, iw = (ow - pad) * stride + kw;"), ("stride_of_border",),
             says="multiplied by the stride"),
    Mutation(
        "border repeated",
        "conv2d",
        (
            (f"if ({_INSIDE})\n", ""),
            (
                _READ,
                "x[((n * C + c) * H + std::min(std::max(ih, 0), H - 1)) * Wd + std::min(std::max(iw, 0), Wd - 1)]",
            ),
        ),
        ("border_repeated",),
    ),
    Mutation("bias forgotten", "conv2d", ((_BIAS, "out[p] = 0"), (", *bias = b.data_ptr<float>()", "")),
             ("bias_missing",)),
    Mutation("bias by the image", "conv2d", ((_BIAS, "out[p] = bias[n % F]"),), ("bias_wrong_index",)),
    Mutation("bias in each channel", "conv2d", ((_BIAS, "out[p] = C * bias[f]"),), ("bias_added_often",)),
    Mutation("size without + 1", "conv2d", ((_SIZES, _SIZES.replace(" + 1", "")),), ("wrong_shape",)),
    Mutation(
        "size rounded up",
        "conv2d",
        (
            (
                _SIZES,
                "OH = (H + 2 * pad - K + stride - 1) / stride + 1, OW = (Wd + 2 * pad - K + stride - 1) / stride + 1;",
            ),
        ),
        ("wrong_shape",),
    ),
    Mutation("first row of the image as border", "conv2d", (("if (ih >= 0", "if (ih > 0"),), ("image_edge",)),
    Mutation("last column of the image as border", "conv2d", (("iw < Wd)", "iw < Wd - 1)"),), ("image_edge",)),
    Mutation("rows of H numbers", "conv2d", ((_READ, "x[(n * C + c) * H * Wd + (ih * H + iw) % (H * Wd)]"),),
             ("row_length",)),
    Mutation("one image's columns for all threads", "conv2d",
             ((_COLUMNS, ""), (_IMAGES, "    std::vector<float> columns(taps * places, 0.0f);\n" + _IMAGES)),
             ("race",)),
    Mutation("channels replaced", "conv2d",
             (("out[p] += factor", "out[p] = (t % (K * K) == 0 ? bias[f] : out[p]) + factor"),),
             ("channels_missing",)),
    Mutation("db of the first image", "conv2d_backward", ((_DB, _DB.replace("n < N", "n < 1")),),
             ("batch_not_summed",)),
    Mutation("db of the last image", "conv2d_backward", ((_DB, _DB.replace("int n = 0", "int n = N - 1")),),
             ("batch_not_summed",)),
    Mutation("db is a mean of images", "conv2d_backward", ((_DB, _DB.replace("+ p];", "+ p] / N;")),),
             ("gradient_mean",)),
    Mutation("db of one place", "conv2d_backward", ((_DB, _DB.replace("p < places", "p < 1")),),
             ("places_not_summed",)),
    Mutation("dW written", "conv2d_backward", (("gw[f * taps + t] += sum", "gw[f * taps + t] = sum"),),
             ("batch_not_summed",)),
    Mutation("dW is a mean", "conv2d_backward", (("gw[f * taps + t] += sum", "gw[f * taps + t] += sum / N"),),
             ("gradient_mean",)),
    Mutation("dX written", "conv2d_backward", ((_DX, _DX.replace("+=", "=")),), ("overlap_overwritten",)),
    Mutation("images shared out for dW", "conv2d_backward",
             ((_TAPS_LOOP, _TAPS_LOOP.partition("\n")[2]), (_SEEN, "#pragma omp parallel for\n" + _SEEN)), ("race",)),
    Mutation("dW as (kh, kw, c)", "conv2d_backward",
             (("gw[f * taps + t] +=", "gw[f * taps + t % (K * K) * C + c] +="),), ("im2col_order",)),
    Mutation("filters not added up", "conv2d_backward", (("column[p] += factor", "column[p] = factor"),),
             ("filters_not_summed",)),
    Mutation("dX of a flipped filter", "conv2d_backward",
             ((_DX_PLACE, _DX_PLACE.replace("+ kh", "+ (K - 1 - kh)").replace("+ kw", "+ (K - 1 - kw)")),),
             ("kernel_flipped",)),
    Mutation("dX without the border", "conv2d_backward", ((_DX_PLACE, _DX_PLACE.replace(" - pad", "")),),
             ("padding_ignored",)),
    Mutation("dW in steps of 1", "conv2d_backward", ((_DW_PLACE, _DW_PLACE.replace(" * stride", "")),),
             ("stride_ignored",)),
    Mutation(
        "dW of transposed filters",
        "conv2d_backward",
        (
            (
                "t / K % K, kw = t % K;\n        std::vector<float> seen",
                "t % K, kw = t / K % K;\n        std::vector<float> seen",
            ),
        ),
        ("kernel_transposed",),
    ),
    Mutation("dX and dW exchanged", "conv2d_backward",
             exchanged("dX", "dW", ("N * C * H * Wd", "F * C * K * K"), "xw"), ("gradients_swapped",)),
    Mutation("maximum begins at 0", "maxpool2d", (("] = from[best];", "] = std::max(0.0f, from[best]);"),),
             ("maximum_from_zero",)),
    Mutation("smallest number", "maxpool2d", (("from[place] > from[best]", "from[place] < from[best]"),),
             ("minimum",)),
    Mutation("last of equal ones", "maxpool2d", (("from[place] > from[best]", "from[place] >= from[best]"),),
             ("last_of_equal",)),
    Mutation(
        "columns before rows",
        "maxpool2d",
        (
            (
                "for (int kh = 0; kh < K; kh++)\n                    for (int kw = 0; kw < K; kw++)",
                "for (int kw = 0; kw < K; kw++)\n                    for (int kh = 0; kh < K; kh++)",
            ),
        ),
        ("first_by_columns",),
    ),
    Mutation("place in the window", "maxpool2d",
             (("] = best;", "] = (best / Wd - oh * stride) * K + best % Wd - ow * stride;"),), ("index_in_window",)),
    Mutation("place in the tensor", "maxpool2d", (("] = best;", "] = plane * H * Wd + best;"),),
             ("index_in_tensor",)),
    Mutation("place by columns", "maxpool2d", (("] = best;", "] = best % Wd * H + best / Wd;"),),
             ("index_transposed",)),
    Mutation("steps of 1", "maxpool2d", (("oh * stride", "oh", 2), ("ow * stride", "ow", 2)), ("stride_ignored",)),
    Mutation("steps of K", "maxpool2d",
             (("oh * stride", "std::min(oh * K, H - K)", 2), ("ow * stride", "std::min(ow * K, Wd - K)", 2)),
             ("stride_is_window",)),
    Mutation("windows of K - 1", "maxpool2d", (("kh < K;", "kh < K - 1;"), ("kw < K;", "kw < K - 1;")),
             ("window_too_small",)),
    Mutation("index never stored", "maxpool2d",
             (("                at[(plane * OH + oh) * OW + ow] = best;\n", "                (void)at;\n"),),
             ("not_written",)),
    Mutation("gradient written", "maxpool2d_backward", (("] += gy", "] = gy"),), ("overlap_overwritten",)),
    Mutation("first plane alone", "maxpool2d_backward",
             (("#pragma omp parallel for\n", ""), ("gx[plane * H * Wd + at", "gx[at")), ("plane_ignored",)),
    Mutation("dX cleared first", "maxpool2d_backward",
             (("#pragma omp", "    std::fill(gx, gx + N * C * H * Wd, 0.0f);\n#pragma omp"),),
             ("gradient_overwritten",)),
    Mutation(
        "whole window",
        "maxpool2d_backward",
        (
            (
                "gx[plane * H * Wd + at[plane * OH * OW + p]] += gy[plane * OH * OW + p];",
                "for (int k = 0; k < K * K; k++)\n                gx[plane * H * Wd + (p / OW * stride + k / K) * Wd + "
                "p % OW * stride + k % K] += gy[plane * OH * OW + p];\n    (void)at;",
            ),
        ),
        ("whole_window",),
    ),
    Mutation("dY forgotten", "maxpool2d_backward", (("+= gy[plane * OH * OW + p];", "+= 1;\n    (void)gy;"),),
             ("upstream_ignored",)),
)  # fmt: skip
