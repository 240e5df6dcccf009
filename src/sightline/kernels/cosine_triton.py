"""Triton kernels of cosine attention. `cosine_attention` holds the operators that launch them.

The score of query i and key j is q_i · k_j / (|q_i| |k_j| temperature). Products are computed on the raw vectors and
scaled by the inverse norms in float32, so low temperatures do not amplify rounding errors. A program loads one tile of
queries (or keys) and iterates over the keys (or queries) that the mask allows to meet it, in up to two ranges: under an
episode mask these are the support and the tokens of the same query. No kernel uses atomics: results are deterministic.

Shapes: B batch, H heads of q, G heads of k and v, Q queries, K keys, D head dimension.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
NORM_SCALE = tl.constexpr(2.0**-24)
"""Vectors are scaled by it before they are squared, so that squares of large ones do not overflow."""
MIN_SQUARED_NORM = tl.constexpr(1e-12**2 * 2.0**-48)
MASKED = tl.constexpr(-1e30)
"""Score of a masked pair. Finite, so that 0 * MASKED is 0."""
MIN_SCORE = tl.constexpr(-1e28)
"""Scores below are masked."""
MAX_BOUND = tl.constexpr(40.0)
"""Bound of the scores in base 2 up to which no running maximum is needed: weights are at least 2^-80, so that their
products with small values are normal numbers."""


@triton.jit
def _inverse_norm(x):
    """1 / |x| of each row, 0 for a zero row: x (N, D) -> (N,) float32. Exact for norms from 2e-12 to 3e26."""
    x = x.to(tl.float32) * NORM_SCALE
    squares = tl.sum(x * x, 1)
    return tl.where(squares > MIN_SQUARED_NORM, NORM_SCALE * tl.rsqrt(squares), 0.0)


@triton.jit
def _temperature(offset, head, offset_head, log_ratio, min_temperature):
    """The inverse temperature of a head, and the sign of its derivative by the offset: see CosineScore."""
    r = log_ratio + tl.load(offset + head * offset_head).to(tl.float32)
    return tl.exp(-tl.abs(r)) / min_temperature, tl.where(r < 0, -1.0, 1.0)


@triton.jit
def _power_of_2(x):
    """The largest power of 2 that is not above each x > 0, and 0 for 0."""
    return (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def _unit_range(x, inverse_norm):
    """x scaled by powers of 2 to lengths from 0.5 to 1, which is exact, and the remaining factors to unit length.

    Products with such rows do not overflow.
    """
    power = _power_of_2(inverse_norm)
    remainder = tl.where(power > 0, inverse_norm / tl.where(power > 0, power, 1.0), 1.0)
    return (x.to(tl.float32) * power[:, None]).to(x.dtype), remainder


@triton.jit
def _dot(a, b, accumulator, PRECISION: tl.constexpr):
    """a @ b + accumulator in float32. Triton's interpreter multiplies float32 only."""
    if PRECISION == "interpreted":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), accumulator, input_precision="ieee")
    else:
        return tl.dot(a, b, accumulator, input_precision=PRECISION)


@triton.jit
def _cast(x, like, PRECISION: tl.constexpr):
    """x in the dtype of `like`. Triton's interpreter truncates, so x stays in float32 there."""
    return x if PRECISION == "interpreted" else x.to(like.dtype)


@triton.jit
def _product(a, b, PRECISION: tl.constexpr):
    """a @ b^T in float32."""
    return _dot(a, tl.trans(b), tl.zeros([a.shape[0], b.shape[0]], tl.float32), PRECISION)


@triton.jit
def _partial_sums(x):
    """Sums of each row of x (M, N) in 8 parts, so that threads add their own numbers and exchange sums at the end."""
    return tl.sum(tl.reshape(x, [x.shape[0], x.shape[1] // 8, 8]), 1)


@triton.jit
def _tile(
    pointer, rows, num_rows, row_stride, columns, D: tl.constexpr, BLOCK_D: tl.constexpr, AGAIN: tl.constexpr = False
):
    """Rows of a matrix with D contiguous columns; 0 outside of it.

    With AGAIN, they are loaded again, so that they need no registers between their first use and their last. The load
    is volatile: otherwise the compiler would replace it by the first.
    """
    pointers = pointer + rows[:, None] * row_stride + columns[None, :]
    is_inside = rows[:, None] < num_rows
    if BLOCK_D != D:
        is_inside = is_inside & (columns[None, :] < D)
    return tl.load(pointers, mask=is_inside, other=0.0, volatile=AGAIN)


@triton.jit
def _store_tile(
    pointer, value, rows, num_rows, row_stride, columns, D: tl.constexpr, BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    pointers = pointer + rows[:, None] * row_stride + columns[None, :]
    is_inside = rows[:, None] < num_rows
    if BLOCK_D != D:
        is_inside = is_inside & (columns[None, :] < D)
    if PRECISION == "interpreted" and pointer.dtype.element_ty == tl.bfloat16:  # truncates, so round first
        bits = value.to(tl.uint32, bitcast=True)
        value = (bits + 0x7FFF + ((bits >> 16) & 1)).to(tl.float32, bitcast=True)
    tl.store(pointers, value.to(pointer.dtype.element_ty), mask=is_inside)


@triton.jit
def _key_ranges(
    first, block: tl.constexpr, queries, keys, window, support, query_size,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, EPISODE: tl.constexpr,
):  # fmt: skip
    """Two ranges of keys that queries first to first + block - 1 may attend to: start, end, start, end."""
    start, end = 0, keys
    offset = keys - queries
    last = tl.minimum(first + block, queries) + offset  # position after the last query
    if CAUSAL:
        end = tl.minimum(end, last)
    if WINDOW:
        start = tl.maximum(start, first + offset - window)
        end = tl.minimum(end, last + window)
    own_start, own_end = 0, 0
    if EPISODE:
        own_start = tl.maximum(support, start)
        position = tl.maximum(first + offset - support, 0)
        own_start = tl.maximum(own_start, support + position // query_size * query_size)
        own_end = tl.minimum(end, support + tl.cdiv(tl.maximum(last - support, 0), query_size) * query_size)
        end = tl.minimum(end, support)
    return start, end, own_start, own_end


@triton.jit
def _query_range(
    first, block: tl.constexpr, queries, keys, window, support, query_size,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, EPISODE: tl.constexpr,
):  # fmt: skip
    """The range of queries that may attend to keys first to first + block - 1: start, end."""
    start, end = 0, queries
    offset = keys - queries
    last = tl.minimum(first + block, keys)
    if CAUSAL:
        start = tl.maximum(start, first - offset)
    if WINDOW:
        start = tl.maximum(start, first - offset - window)
        end = tl.minimum(end, last - offset + window)
    if EPISODE:
        if first >= support:
            start = tl.maximum(start, support + (first - support) // query_size * query_size - offset)
            end = tl.minimum(end, support + tl.cdiv(last - support, query_size) * query_size - offset)
    return start, end


@triton.jit
def _cosines(products, scale, rows, columns, column_end, positions, window, support, query_size,
             allowed_pointer, allowed_row, allowed_column, row_end,
             ALLOWED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, EPISODE: tl.constexpr,
             EVEN: tl.constexpr):  # fmt: skip
    """products * scale, MASKED where a query may not attend.

    rows, columns and scale broadcast to the shape of products, (queries, keys) or (keys, queries); scale is per key.
    ALLOWED is 0 for no tensor, 1 for one value per key, 2 for one value per query and key.
    """
    shift = tl.where(columns < column_end, 0.0, MASKED)
    if ALLOWED == 1:
        allowed = tl.load(allowed_pointer + columns * allowed_column, mask=columns < column_end, other=0)
        shift = tl.where(allowed != 0, 0.0, MASKED)
    cosines = products * scale
    if ALLOWED == 1 or not EVEN:
        cosines += shift
    if ALLOWED == 2:
        pointers = allowed_pointer + rows.to(tl.int64) * allowed_row + columns * allowed_column
        allowed = tl.load(pointers, mask=(rows < row_end) & (columns < column_end), other=0)
        cosines = tl.where(allowed != 0, cosines, MASKED)
    if CAUSAL:
        cosines = tl.where(columns <= positions, cosines, MASKED)
    if WINDOW:
        cosines = tl.where((columns <= positions + window) & (columns >= positions - window), cosines, MASKED)
    if EPISODE:
        is_own = (columns - support) // query_size == (positions - support) // query_size
        cosines = tl.where((columns < support) | (is_own & (positions >= support)), cosines, MASKED)
    return cosines


@triton.jit
def _bias(rows, columns, row_end, column_end, pointer, row_stride, column_stride, BIAS: tl.constexpr):
    """The bias in base 2: one number per key (BIAS is 1) or per query and key (2)."""
    if BIAS == 1:
        bias = tl.load(pointer + columns * column_stride, mask=columns < column_end, other=0.0)
    else:
        pointers = pointer + rows.to(tl.int64) * row_stride + columns * column_stride
        bias = tl.load(pointers, mask=(rows < row_end) & (columns < column_end), other=0.0)
    return bias.to(tl.float32) * LOG2_E


@triton.jit
def _query_weights(
    exponents, rows, columns, row_end, column_end, pointer, row_stride, column_stride, BIAS: tl.constexpr
):
    """Weights of a tile of queries and a block of keys from their exponents in base 2, to which the bias is added."""
    if BIAS:
        exponents += _bias(
            rows[:, None], columns[None, :], row_end, column_end, pointer, row_stride, column_stride, BIAS
        )
    return tl.exp2(exponents)


@triton.jit
def _keep_scale(seed, rows, columns, keys, dropout):
    """0 for dropped weights, 1 / (1 - dropout) for the others; rows and columns broadcast."""
    uniform = tl.rand(seed, rows * keys + columns)
    return tl.where(uniform >= dropout, 1 / (1 - dropout), 0.0)


@triton.jit
def _block_columns(block, blocks, start, end, own_start, own_end, BLOCK: tl.constexpr, EPISODE: tl.constexpr):
    """Keys of a block of the two ranges, of which the first has `blocks` blocks, and the end of its range."""
    column, column_end = start + block * BLOCK, end
    if EPISODE:
        column = tl.where(block < blocks, column, own_start + (block - blocks) * BLOCK)
        column_end = tl.where(block < blocks, end, own_end)
    return column + tl.arange(0, BLOCK), column_end


@triton.jit
def _query_cosines(
    q_tile, k_tile, scale, rows, columns, column_end, queries, keys, window, support, query_size,
    allowed, allowed_row, allowed_column, ALLOWED: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, EPISODE: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`_cosines` of a tile of queries and a block of keys, whose products with the queries are multiplied by scale."""
    return _cosines(
        _product(q_tile, k_tile, PRECISION), scale[None, :], rows[:, None], columns[None, :],
        column_end, (rows + (keys - queries))[:, None], window, support, query_size,
        allowed, allowed_row, allowed_column, queries, ALLOWED, CAUSAL, WINDOW, EPISODE, EVEN,
    )  # fmt: skip


@triton.jit
def forward_kernel(
    q, k, v, offset, allowed, bias, seed, out, lse, q_norm,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    allowed_batch, allowed_head, allowed_row, allowed_column, bias_batch, bias_head, bias_row, bias_column,
    out_batch, out_head, out_row, offset_head,
    heads, group, queries, keys, window, support, query_size, dropout, log_ratio, min_temperature,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_BLOCK: tl.constexpr,
    ALLOWED: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, EPISODE: tl.constexpr,
    DROPOUT: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of one tile of queries; grid (tiles of queries, B * H). With ONE_BLOCK, keys are at most BLOCK_N.

    Writes out (B, H, Q, D); lse (B, H, Q), the base-2 logarithm of the sums of weights, -MASKED for a masked row; and
    q_norm (B, H, Q), the inverse norms of queries.
    """
    first = tl.program_id(0) * BLOCK_M
    batch_head = tl.program_id(1)
    batch, head = (batch_head // heads).to(tl.int64), (batch_head % heads).to(tl.int64)
    rows, dims = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    k += batch * k_batch + head // group * k_head
    v += batch * v_batch + head // group * v_head
    allowed += batch * allowed_batch + head * allowed_head
    bias += batch * bias_batch + head * bias_head
    q_tile = _tile(q + batch * q_batch + head * q_head, rows, queries, q_row, dims, D, BLOCK_D)
    if ONE_BLOCK:  # loads of all inputs are then under way at once
        columns = tl.arange(0, BLOCK_N)
        k_tile = _tile(k, columns, keys, k_row, dims, D, BLOCK_D)
        v_tile = _tile(v, columns, keys, v_row, dims, D, BLOCK_D)
    inverse_temperature, _ = _temperature(offset, head, offset_head, log_ratio, min_temperature)
    if DROPOUT:
        row_seed = tl.load(seed) + batch_head
    row_norm = _inverse_norm(q_tile)
    tl.store(q_norm + batch_head.to(tl.int64) * queries + rows, row_norm, mask=rows < queries)
    q_tile, row_unit = _unit_range(q_tile, row_norm)
    row_scale = row_unit * (inverse_temperature * LOG2_E)
    # Without a bias, scores are at most `bound`. If they cannot fall far below it, it replaces the running maximum.
    bound = inverse_temperature * LOG2_E
    is_bounded = BIAS == 0 and k.dtype.element_ty != tl.float16 and bound < MAX_BOUND
    maximum = tl.full([BLOCK_M], MASKED, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    accumulator = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    start, end, own_start, own_end = _key_ranges(
        first, BLOCK_M, queries, keys, window, support, query_size, CAUSAL, WINDOW, EPISODE
    )
    blocks = tl.cdiv(tl.maximum(end - start, 0), BLOCK_N)
    all_blocks = blocks
    if EPISODE:
        all_blocks += tl.cdiv(tl.maximum(own_end - own_start, 0), BLOCK_N)
    if ONE_BLOCK:
        cosines = _query_cosines(
            q_tile, k_tile, _inverse_norm(k_tile), rows, columns, keys, queries, keys,
            window, support, query_size, allowed, allowed_row, allowed_column,
            ALLOWED, CAUSAL, WINDOW, EPISODE, EVEN, PRECISION,
        )  # fmt: skip
        scores = cosines * row_scale[:, None]
        if BIAS:
            scores += _bias(rows[:, None], columns[None, :], queries, keys, bias, bias_row, bias_column, BIAS)
        if is_bounded:
            maximum = tl.full([BLOCK_M], 0.0, tl.float32) + bound
        else:
            maximum = tl.maximum(tl.max(scores, 1), MIN_SCORE)
        weights = tl.exp2(scores - maximum[:, None])
        total = tl.sum(weights, 1)
        if DROPOUT:
            weights *= _keep_scale(row_seed, rows[:, None], columns[None, :], keys, dropout)
        accumulator = _dot(_cast(weights, v_tile, PRECISION), v_tile, accumulator, PRECISION)
    elif is_bounded:
        maximum = tl.full([BLOCK_M], 0.0, tl.float32) + bound
        for block in range(0, all_blocks):
            columns, column_end = _block_columns(block, blocks, start, end, own_start, own_end, BLOCK_N, EPISODE)
            k_tile = _tile(k, columns, keys, k_row, dims, D, BLOCK_D)
            v_tile = _tile(v, columns, keys, v_row, dims, D, BLOCK_D)
            cosines = _query_cosines(
                q_tile, k_tile, _inverse_norm(k_tile), rows, columns, column_end, queries, keys,
                window, support, query_size, allowed, allowed_row, allowed_column,
                ALLOWED, CAUSAL, WINDOW, EPISODE, EVEN, PRECISION,
            )  # fmt: skip
            weights = tl.exp2(cosines * row_scale[:, None] - bound)
            total += tl.sum(weights, 1)
            if DROPOUT:
                weights *= _keep_scale(row_seed, rows[:, None], columns[None, :], keys, dropout)
            accumulator = _dot(_cast(weights, v_tile, PRECISION), v_tile, accumulator, PRECISION)
    else:
        for block in range(0, all_blocks):
            columns, column_end = _block_columns(block, blocks, start, end, own_start, own_end, BLOCK_N, EPISODE)
            k_tile = _tile(k, columns, keys, k_row, dims, D, BLOCK_D)
            v_tile = _tile(v, columns, keys, v_row, dims, D, BLOCK_D)
            cosines = _query_cosines(
                q_tile, k_tile, _inverse_norm(k_tile), rows, columns, column_end, queries, keys,
                window, support, query_size, allowed, allowed_row, allowed_column,
                ALLOWED, CAUSAL, WINDOW, EPISODE, EVEN, PRECISION,
            )  # fmt: skip
            scores = cosines * row_scale[:, None]
            if BIAS:
                scores += _bias(rows[:, None], columns[None, :], queries, keys, bias, bias_row, bias_column, BIAS)
            new_maximum = tl.maximum(maximum, tl.max(scores, 1))
            weights = tl.where(scores > MIN_SCORE, tl.exp2(scores - new_maximum[:, None]), 0.0)
            decay = tl.exp2(maximum - new_maximum)
            total = total * decay + tl.sum(weights, 1)
            if DROPOUT:
                weights *= _keep_scale(row_seed, rows[:, None], columns[None, :], keys, dropout)
            accumulator = _dot(_cast(weights, v_tile, PRECISION), v_tile, accumulator * decay[:, None], PRECISION)
            maximum = new_maximum
    has_key = total > 0
    accumulator = accumulator * tl.where(has_key, 1 / tl.where(has_key, total, 1.0), 0.0)[:, None]
    _store_tile(
        out + batch * out_batch + head * out_head, accumulator, rows, queries, out_row, dims, D, BLOCK_D, PRECISION
    )
    row_lse = tl.where(has_key, maximum + tl.log2(tl.where(has_key, total, 1.0)), -MASKED)
    tl.store(lse + batch_head.to(tl.int64) * queries + rows, row_lse, mask=rows < queries)


@triton.jit
def backward_block_kernel(
    q, k, v, offset, allowed, bias, seed, lse, d_out, dq, dk, dv, d_offset, d_bias,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    allowed_batch, allowed_head, allowed_row, allowed_column, bias_batch, bias_head, bias_row, bias_column,
    dout_batch, dout_head, dout_row, dq_batch, dq_head, dq_row, dk_batch, dk_head, dk_row, offset_head,
    heads, queries, keys, window, support, query_size, dropout, log_ratio, min_temperature,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ALLOWED: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, EPISODE: tl.constexpr,
    DROPOUT: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, D_BIAS: tl.constexpr,
    D_OFFSET: tl.constexpr,
):  # fmt: skip
    """All gradients of one head with at most BLOCK_M queries and BLOCK_N keys; grid (B * H,).

    Inputs are loaded before anything is computed, and each gradient is stored as soon as it is known, which frees its
    registers. dv has the strides of dk.
    """
    batch_head = tl.program_id(0).to(tl.int64)
    batch, head = batch_head // heads, batch_head % heads
    rows, columns, dims = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    k_tile = _tile(k + batch * k_batch + head * k_head, columns, keys, k_row, dims, D, BLOCK_D)
    q_tile = _tile(q + batch * q_batch + head * q_head, rows, queries, q_row, dims, D, BLOCK_D)
    v_tile = _tile(v + batch * v_batch + head * v_head, columns, keys, v_row, dims, D, BLOCK_D)
    d_tile = _tile(d_out + batch * dout_batch + head * dout_head, rows, queries, dout_row, dims, D, BLOCK_D)
    row_lse = tl.load(lse + batch_head * queries + rows, mask=rows < queries, other=-MASKED)
    inverse_temperature, sign = _temperature(offset, head, offset_head, log_ratio, min_temperature)
    column_norm, row_norm = _inverse_norm(k_tile), _inverse_norm(q_tile)
    k_unit, column_scale = _unit_range(k_tile, column_norm)
    row_unit = row_norm
    if q_tile.dtype == tl.float16:  # the scaled gradients would leave its range
        q_tile, row_unit = _unit_range(q_tile, row_norm)
    row_scale = tl.where(row_unit > 0, row_unit, 1.0) * inverse_temperature  # 0 of a zero vector would unmask its keys
    cosines = _query_cosines(
        q_tile, k_unit, column_scale, rows, columns, keys, queries, keys, window, support, query_size,
        allowed + batch * allowed_batch + head * allowed_head, allowed_row, allowed_column,
        ALLOWED, CAUSAL, WINDOW, EPISODE, EVEN, PRECISION,
    )  # fmt: skip
    exponents = cosines * (row_scale * LOG2_E)[:, None] - row_lse[:, None]
    weights = _query_weights(
        exponents, rows, columns, queries, keys, bias + batch * bias_batch + head * bias_head,
        bias_row, bias_column, BIAS,
    )  # fmt: skip
    d_weights = _product(d_tile, v_tile, PRECISION)
    kept = weights
    if DROPOUT:
        row_seed = tl.load(seed) + batch_head.to(tl.int32)
        keep = _keep_scale(row_seed, rows[:, None], columns[None, :], keys, dropout)
        kept, d_weights = weights * keep, d_weights * keep
    dv_tile = _dot(
        tl.trans(_cast(kept, d_tile, PRECISION)), d_tile, tl.zeros([BLOCK_N, BLOCK_D], tl.float32), PRECISION
    )
    dk_start = batch * dk_batch + head * dk_head
    _store_tile(dv + dk_start, dv_tile, columns, keys, dk_row, dims, D, BLOCK_D, PRECISION)
    d_scores = weights * (d_weights - tl.sum(weights * d_weights, 1)[:, None])
    if D_OFFSET:  # exponents of masked pairs can be infinite
        d_inverse = tl.sum(tl.where(weights > 0, d_scores * exponents, 0.0), 1)
        tl.store(d_offset + batch_head, -tl.sum(d_inverse, 0) * sign / LOG2_E)
    if D_BIAS:
        pointers = d_bias + batch_head * queries * keys + rows[:, None] * keys + columns[None, :]
        tl.store(pointers, d_scores, mask=(rows[:, None] < queries) & (columns[None, :] < keys))
    scaled = _cast(d_scores * row_scale[:, None], q_tile, PRECISION)
    dk_tile = _dot(tl.trans(scaled), q_tile, tl.zeros([BLOCK_N, BLOCK_D], tl.float32), PRECISION)
    k_tile = _tile(k + batch * k_batch + head * k_head, columns, keys, k_row, dims, D, BLOCK_D, AGAIN=True)
    direction = k_tile.to(tl.float32) * column_norm[:, None]
    dk_tile = (dk_tile - tl.sum(dk_tile * direction, 1)[:, None] * direction) * column_norm[:, None]
    _store_tile(dk + dk_start, dk_tile, columns, keys, dk_row, dims, D, BLOCK_D, PRECISION)
    scaled = _cast(d_scores * column_scale[None, :], k_unit, PRECISION)
    dq_tile = _dot(scaled, k_unit, tl.zeros([BLOCK_M, BLOCK_D], tl.float32), PRECISION)
    q_tile = _tile(q + batch * q_batch + head * q_head, rows, queries, q_row, dims, D, BLOCK_D, AGAIN=True)
    direction = q_tile.to(tl.float32) * row_norm[:, None]
    dq_tile -= tl.sum(dq_tile * direction, 1)[:, None] * direction
    dq_tile *= (row_norm * inverse_temperature)[:, None]
    _store_tile(dq + batch * dq_batch + head * dq_head, dq_tile, rows, queries, dq_row, dims, D, BLOCK_D, PRECISION)


@triton.jit
def delta_kernel(
    out, d_out, delta, out_batch, out_head, out_row, dout_batch, dout_head, dout_row, heads, queries,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """delta = out · d_out of each query (B, H, Q); grid (tiles of queries, B * H)."""
    batch_head = tl.program_id(1)
    batch, head = (batch_head // heads).to(tl.int64), (batch_head % heads).to(tl.int64)
    rows, dims = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    o_tile = _tile(out + batch * out_batch + head * out_head, rows, queries, out_row, dims, D, BLOCK_D)
    d_tile = _tile(d_out + batch * dout_batch + head * dout_head, rows, queries, dout_row, dims, D, BLOCK_D)
    products = o_tile.to(tl.float32) * d_tile.to(tl.float32)
    tl.store(delta + batch_head.to(tl.int64) * queries + rows, tl.sum(products, 1), mask=rows < queries)


@triton.jit
def backward_tile_kernel(
    q, k, v, offset, allowed, bias, seed, lse, delta, q_norm, d_out, dq, dk, dv, d_offset, d_bias,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    allowed_batch, allowed_head, allowed_row, allowed_column, bias_batch, bias_head, bias_row, bias_column,
    dout_batch, dout_head, dout_row,
    dq_batch, dq_head, dq_row, dk_batch, dk_head, dk_row, offset_head,
    heads, group, queries, keys, window, support, query_size, dropout, log_ratio, min_temperature,
    key_programs, query_tiles,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr,
    ALLOWED: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, EPISODE: tl.constexpr,
    DROPOUT: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, D_BIAS: tl.constexpr,
    D_OFFSET: tl.constexpr,
):  # fmt: skip
    """Gradients of one tile; grid (key_programs + H * query_tiles, B).

    The first G * key tiles programs of a batch compute dk and dv of BLOCK_N keys, over STEP queries at a time. The
    others compute dq of BLOCK_M queries, over STEP keys at a time. dv has the strides of dk.
    """
    program, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    if program < key_programs:
        key_tiles = tl.cdiv(keys, BLOCK_N)
        key_head = (program // key_tiles).to(tl.int64)
        first = program % key_tiles * BLOCK_N
        columns = first + tl.arange(0, BLOCK_N)
        k_tile = _tile(k + batch * k_batch + key_head * k_head, columns, keys, k_row, dims, D, BLOCK_D)
        v_tile = _tile(v + batch * v_batch + key_head * v_head, columns, keys, v_row, dims, D, BLOCK_D)
        column_norm = _inverse_norm(k_tile)
        k_tile, column_scale = _unit_range(k_tile, column_norm)
        start, end = _query_range(first, BLOCK_N, queries, keys, window, support, query_size, CAUSAL, WINDOW, EPISODE)
        dk_tile = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
        dv_tile = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
        for member in range(0, group):
            head = key_head * group + member
            batch_head = batch * heads + head
            inverse_temperature, sign = _temperature(offset, head, offset_head, log_ratio, min_temperature)
            if DROPOUT:
                row_seed = tl.load(seed) + batch_head.to(tl.int32)
            for row in range(start, end, STEP):
                rows = row + tl.arange(0, STEP)
                q_tile = _tile(q + batch * q_batch + head * q_head, rows, queries, q_row, dims, D, BLOCK_D)
                d_tile = _tile(d_out + batch * dout_batch + head * dout_head, rows, queries, dout_row, dims, D, BLOCK_D)
                row_lse = tl.load(lse + batch_head * queries + rows, mask=rows < queries, other=-MASKED)
                row_delta = tl.load(delta + batch_head * queries + rows, mask=rows < queries, other=0.0)
                row_scale = tl.load(q_norm + batch_head * queries + rows, mask=rows < queries, other=0.0)
                if q_tile.dtype == tl.float16:  # the scaled gradients would leave its range
                    q_tile, row_scale = _unit_range(q_tile, row_scale)
                else:
                    row_scale = tl.where(row_scale > 0, row_scale, 1.0)  # 0 of a zero vector would unmask its keys
                row_scale *= inverse_temperature
                cosines = _cosines(
                    _product(k_tile, q_tile, PRECISION), column_scale[:, None], rows[None, :], columns[:, None], keys,
                    (rows + (keys - queries))[None, :], window, support, query_size,
                    allowed + batch * allowed_batch + head * allowed_head, allowed_row, allowed_column, queries,
                    ALLOWED, CAUSAL, WINDOW, EPISODE, EVEN,
                )  # fmt: skip
                scores = cosines * (row_scale * LOG2_E)[None, :]
                if BIAS:
                    scores += _bias(
                        rows[None, :], columns[:, None], queries, keys, bias + batch * bias_batch + head * bias_head,
                        bias_row, bias_column, BIAS,
                    )  # fmt: skip
                weights = tl.exp2(scores - row_lse[None, :])
                d_weights = _product(v_tile, d_tile, PRECISION)
                kept = weights
                if DROPOUT:
                    keep = _keep_scale(row_seed, rows[None, :], columns[:, None], keys, dropout)
                    kept, d_weights = weights * keep, d_weights * keep
                dv_tile = _dot(_cast(kept, d_tile, PRECISION), d_tile, dv_tile, PRECISION)
                scaled = (weights * (d_weights - row_delta[None, :]) * row_scale[None, :]).to(q_tile.dtype)
                dk_tile = _dot(scaled, q_tile, dk_tile, PRECISION)
        k_tile = _tile(k + batch * k_batch + key_head * k_head, columns, keys, k_row, dims, D, BLOCK_D, AGAIN=True)
        direction = k_tile.to(tl.float32) * column_norm[:, None]
        parallel = tl.sum(dk_tile * direction, 1)
        dk_tile = (dk_tile - parallel[:, None] * direction) * column_norm[:, None]
        dk_start = batch * dk_batch + key_head * dk_head
        _store_tile(dk + dk_start, dk_tile, columns, keys, dk_row, dims, D, BLOCK_D, PRECISION)
        _store_tile(dv + dk_start, dv_tile, columns, keys, dk_row, dims, D, BLOCK_D, PRECISION)
    else:
        head = ((program - key_programs) // query_tiles).to(tl.int64)
        tile = (program - key_programs) % query_tiles
        first = tile * BLOCK_M
        batch_head = batch * heads + head
        rows = first + tl.arange(0, BLOCK_M)
        inverse_temperature, sign = _temperature(offset, head, offset_head, log_ratio, min_temperature)
        if DROPOUT:
            row_seed = tl.load(seed) + batch_head.to(tl.int32)
        q_tile = _tile(q + batch * q_batch + head * q_head, rows, queries, q_row, dims, D, BLOCK_D)
        d_tile = _tile(d_out + batch * dout_batch + head * dout_head, rows, queries, dout_row, dims, D, BLOCK_D)
        row_delta = tl.load(delta + batch_head * queries + rows, mask=rows < queries, other=0.0)
        row_norm = _inverse_norm(q_tile)
        q_tile, row_scale = _unit_range(q_tile, row_norm)
        row_lse = tl.load(lse + batch_head * queries + rows, mask=rows < queries, other=-MASKED)
        k += batch * k_batch + head // group * k_head
        v += batch * v_batch + head // group * v_head
        start, end, own_start, own_end = _key_ranges(
            first, BLOCK_M, queries, keys, window, support, query_size, CAUSAL, WINDOW, EPISODE
        )
        blocks = tl.cdiv(tl.maximum(end - start, 0), STEP)
        all_blocks = blocks
        if EPISODE:
            all_blocks += tl.cdiv(tl.maximum(own_end - own_start, 0), STEP)
        dq_tile = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        d_inverse = tl.zeros([BLOCK_M, 8], tl.float32)
        residual = tl.zeros([BLOCK_M, 8], tl.float32)
        mean_exponent = tl.zeros([BLOCK_M, 8], tl.float32)
        for block in range(0, all_blocks):
            columns, column_end = _block_columns(block, blocks, start, end, own_start, own_end, STEP, EPISODE)
            k_tile = _tile(k, columns, keys, k_row, dims, D, BLOCK_D)
            v_tile = _tile(v, columns, keys, v_row, dims, D, BLOCK_D)
            column_scale = _inverse_norm(k_tile)
            if k_tile.dtype == tl.float16:
                k_tile, column_scale = _unit_range(k_tile, column_scale)
            cosines = _query_cosines(
                q_tile, k_tile, column_scale, rows, columns, column_end, queries, keys, window, support, query_size,
                allowed + batch * allowed_batch + head * allowed_head, allowed_row, allowed_column,
                ALLOWED, CAUSAL, WINDOW, EPISODE, EVEN, PRECISION,
            )  # fmt: skip
            exponents = cosines * (row_scale * (inverse_temperature * LOG2_E))[:, None] - row_lse[:, None]
            weights = _query_weights(
                exponents, rows, columns, queries, column_end, bias + batch * bias_batch + head * bias_head,
                bias_row, bias_column, BIAS,
            )  # fmt: skip
            d_weights = _product(d_tile, v_tile, PRECISION)
            if DROPOUT:
                d_weights *= _keep_scale(row_seed, rows[:, None], columns[None, :], keys, dropout)
            d_scores = weights * (d_weights - row_delta[:, None])
            if D_BIAS:
                pointers = d_bias + batch_head * queries * keys + rows[:, None].to(tl.int64) * keys + columns[None, :]
                tl.store(pointers, d_scores, mask=(rows[:, None] < queries) & (columns[None, :] < column_end))
            if D_OFFSET:
                d_inverse += _partial_sums(d_scores * exponents)
                residual += _partial_sums(d_scores)
                mean_exponent += _partial_sums(weights * exponents)
            dq_tile = _dot((d_scores * column_scale[None, :]).to(k_tile.dtype), k_tile, dq_tile, PRECISION)
        if D_OFFSET:
            error = tl.sum(residual, 1) * tl.sum(
                mean_exponent, 1
            )  # of delta, which is computed from the rounded output
            total = -tl.sum(tl.sum(d_inverse, 1) - error, 0) * sign / LOG2_E
            tl.store(d_offset + batch_head * query_tiles + tile, total)
        q_tile = _tile(q + batch * q_batch + head * q_head, rows, queries, q_row, dims, D, BLOCK_D, AGAIN=True)
        direction = q_tile.to(tl.float32) * row_norm[:, None]
        dq_tile -= direction * tl.sum(dq_tile * direction, 1)[:, None]
        dq_tile *= (row_norm * inverse_temperature)[:, None]
        _store_tile(dq + batch * dq_batch + head * dq_head, dq_tile, rows, queries, dq_row, dims, D, BLOCK_D, PRECISION)


@triton.jit
def normalize_kernel(
    x, offset, out, x_batch, x_head, x_row, out_batch, out_head, out_row, offset_head, heads, rows_total,
    center_rows, log_ratio, min_temperature,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr, CENTERED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """x / |x|, also divided by the temperature if SCALED, of one tile; grid (tiles of tokens, B * H).

    If CENTERED, the mean of the first `center_rows` unit vectors, at most BLOCK, is subtracted from all of them.
    """
    batch_head = tl.program_id(1)
    batch, head = (batch_head // heads).to(tl.int64), (batch_head % heads).to(tl.int64)
    rows, dims = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    x += batch * x_batch + head * x_head
    tile = _tile(x, rows, rows_total, x_row, dims, D, BLOCK_D)
    scale = _inverse_norm(tile)
    if SCALED:
        inverse_temperature, _ = _temperature(offset, head, offset_head, log_ratio, min_temperature)
        scale *= inverse_temperature
    value = tile.to(tl.float32) * scale[:, None]
    if CENTERED:
        count = tl.minimum(tl.minimum(rows_total, center_rows), BLOCK)
        first_tile = _tile(x, tl.arange(0, BLOCK), count, x_row, dims, D, BLOCK_D)
        units = first_tile.to(tl.float32) * _inverse_norm(first_tile)[:, None]
        value -= (tl.sum(units, 0) / count)[None, :]
    _store_tile(
        out + batch * out_batch + head * out_head, value, rows, rows_total, out_row, dims, D, BLOCK_D, PRECISION
    )


@triton.jit
def normalize_backward_kernel(
    x, offset, gradient, dx, d_offset, x_batch, x_head, x_row, g_batch, g_head, g_row,
    dx_batch, dx_head, dx_row, offset_head, heads, rows_total, log_ratio, min_temperature,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of `normalize_kernel`; grid (tiles of tokens, B * H)."""
    batch_head = tl.program_id(1)
    batch, head = (batch_head // heads).to(tl.int64), (batch_head % heads).to(tl.int64)
    rows, dims = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    tile = _tile(x + batch * x_batch + head * x_head, rows, rows_total, x_row, dims, D, BLOCK_D).to(tl.float32)
    g_tile = _tile(gradient + batch * g_batch + head * g_head, rows, rows_total, g_row, dims, D, BLOCK_D)
    norm = _inverse_norm(tile)
    direction, g_tile = tile * norm[:, None], g_tile.to(tl.float32)
    parallel = tl.sum(direction * g_tile, 1)
    scale = norm
    if SCALED:
        inverse_temperature, sign = _temperature(offset, head, offset_head, log_ratio, min_temperature)
        scale *= inverse_temperature
        total = -tl.sum(parallel, 0) * inverse_temperature * sign
        tl.store(d_offset + batch_head.to(tl.int64) * tl.num_programs(0) + tl.program_id(0), total)
    value = (g_tile - parallel[:, None] * direction) * scale[:, None]
    _store_tile(dx + batch * dx_batch + head * dx_head, value, rows, rows_total, dx_row, dims, D, BLOCK_D, PRECISION)
