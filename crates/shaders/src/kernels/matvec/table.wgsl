// Table variant, for formats of 1 and 2 bits: a tile of columns is expanded into 128 tables, one for
// each nibble of a row, with the 16 sums that the nibble can stand for; a row then costs one look-up
// and one addition per nibble, and one product per scale. Four invocations share a row, 32 nibbles
// (four words) each, and compute ROWS rows with the same tables.

const NIBBLES = 128u;
const LANES = 4u;
const SLOTS = 16u;
const SUMS_PER_WORKGROUP = SLOTS * ROWS;

// Entry c of nibble n is at 17 n + c: neighbours who fill it then write to different banks.
var<workgroup> table: array<f32, 2176>;
var<workgroup> partial_sums: array<f32, SUMS_PER_WORKGROUP * LANES>;
var<workgroup> partial_squares: array<f32, 64>;

fn total(sum: u32) -> f32 {
    let at = sum * LANES;
    return (partial_sums[at] + partial_sums[at + 1u]) + (partial_sums[at + 2u] + partial_sums[at + 3u]);
}

fn total_square() -> f32 {
    var result = 0.0;
    for (var i = 0u; i < 64u; i += 1u) {
        result += partial_squares[i];
    }
    return result;
}

// The sum that the eight nibbles of a word stand for; `at` is where the tables of the first begin.
fn look_up(word: u32, at: u32) -> f32 {
    let a = table[at + (word & 15u)] + table[at + 17u + ((word >> 4u) & 15u)];
    let b = table[at + 34u + ((word >> 8u) & 15u)] + table[at + 51u + ((word >> 12u) & 15u)];
    let c = table[at + 68u + ((word >> 16u) & 15u)] + table[at + 85u + ((word >> 20u) & 15u)];
    let d = table[at + 102u + ((word >> 24u) & 15u)] + table[at + 119u + (word >> 28u)];
    return (a + b) + (c + d);
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let first = linear_workgroup(id, count) * SUMS_PER_WORKGROUP;
    if (state.n_tokens == 0u || first >= params.rows) {
        return;
    }
    let lane = index % LANES;
    let slot = index / LANES;
    // Sums past the last row are computed from it and not stored.
    var rows = array<u32, ROWS>();
    for (var r = 0u; r < ROWS; r += 1u) {
        rows[r] = matrix_row(min(first + r * SLOTS + slot, params.rows - 1u));
    }
    var sums = array<f32, ROWS>();
    var squares = 0.0;
    for (var tile = 0u; tile < params.quants_per_row; tile += NIBBLES / 8u) {
        // Whoever is slower may still look up the last tile.
        workgroupBarrier();
        let n_nibbles = min(NIBBLES, (params.quants_per_row - tile) * 8u);
        for (var n = index; n < n_nibbles; n += 64u) {
            let k = (tile * 8u + n) * WEIGHTS_PER_NIBBLE;
            if (NORM) {
                squares += square_of_inputs(k);
            }
            let sums_of_nibble = nibble_sums(k);
            for (var i = 0u; i < 4u; i += 1u) {
                let at = 17u * n + 4u * i;
                table[at] = sums_of_nibble[i].x;
                table[at + 1u] = sums_of_nibble[i].y;
                table[at + 2u] = sums_of_nibble[i].z;
                table[at + 3u] = sums_of_nibble[i].w;
            }
        }
        workgroupBarrier();
        let word = tile + 4u * lane;
        if (word < params.quants_per_row) {
            let at = lane * 544u;
            for (var r = 0u; r < ROWS; r += 1u) {
                let words = rows[r] * params.quants_per_row + word;
                let sum = (look_up(quants[words], at) + look_up(quants[words + 1u], at + 136u))
                    + (look_up(quants[words + 2u], at + 272u) + look_up(quants[words + 3u], at + 408u));
                sums[r] += row_scale(rows[r], word / WORDS_PER_SCALE) * sum;
            }
        }
    }
    for (var r = 0u; r < ROWS; r += 1u) {
        partial_sums[(r * SLOTS + slot) * LANES + lane] = sums[r];
    }
    if (NORM) {
        partial_squares[index] = squares;
    }
    workgroupBarrier();
    if (index < SUMS_PER_WORKGROUP / SUMS_PER_OUTPUT) {
        store(first, index);
    }
}
