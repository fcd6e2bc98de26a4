// What all scores have in common, from the shares' statistics; `Summary` in sampling.rs is the Rust side.
const STAT_COLS = 9u;
const BINS = 256u;

struct Summary {
    // The best score.
    top: f32,
    // Scores further below the best are dropped.
    reach: f32,
    // Bins per unit of distance.
    scale: f32,
    // ln(sum of exp(logit)).
    log_sum: f32,
    is_usable: u32,
}

fn summarize(shares: u32) -> Summary {
    var raw_top = EXCLUDED;
    var raw_bottom = UNBOUNDED;
    var n_unusable = 0.0;
    var total = 0.0;
    var top = EXCLUDED;
    var bottom = UNBOUNDED;
    var n = 0.0;
    var sum = 0.0;
    var squares = 0.0;
    for (var share = 0u; share < shares; share += 1u) {
        let at = share * STAT_COLS;
        let larger = max(raw_top, stats[at]);
        total = total * exp(raw_top - larger) + stats[at + 3u] * exp(stats[at] - larger);
        raw_top = larger;
        raw_bottom = min(raw_bottom, stats[at + 1u]);
        n_unusable += stats[at + 2u];
        top = max(top, stats[at + 4u]);
        bottom = min(bottom, stats[at + 5u]);
        n += stats[at + 6u];
        sum += stats[at + 7u];
        squares += stats[at + 8u];
    }
    let mean = sum / max(n, 1.0);
    let sigma = sqrt(max(squares / max(n, 1.0) - mean * mean, 0.0));
    var reach = setting(MIN_P_REACH);
    if (setting(TOP_N_SIGMA) > 0.0) {
        reach = min(reach, setting(TOP_N_SIGMA) * sigma);
    }
    let range = min(min(top - bottom, reach), 20.0);
    // Halves, because the difference of two finite floats need not be finite.
    let is_usable = n_unusable == 0.0 && 0.5 * raw_top - 0.5 * raw_bottom >= 0.5e-6 && n > 0.0;
    return Summary(top, reach, bin_scale(range), raw_top + log(total), u32(is_usable));
}

// The power of two that spreads distances up to `range` over 128 to 256 bins.
fn bin_scale(range: f32) -> f32 {
    if (range < 1e-30) {
        return 1.0;
    }
    return bitcast<f32>((261u - (bitcast<u32>(range) >> 23u)) << 23u);
}

fn bin_of(distance: f32, scale: f32) -> u32 {
    return min(u32(distance * scale), BINS - 1u);
}

// The upper half of a product.
fn upper_product(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let middle = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let other = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u);
}

// exp(-distance) in units of 2^-26, in integers.
fn mass(distance: f32) -> u32 {
    let steps = u32(min(distance, 20.0) * 1512775.4);
    let fraction = (steps & 0xfffffu) << 12u;
    var value = 2739202u - upper_product(234782u, fraction);
    value = 20572593u - upper_product(value, fraction);
    value = 119165869u - upper_product(value, fraction);
    value = 515877823u - upper_product(value, fraction);
    value = 1488521945u - upper_product(value, fraction);
    value = 2147483648u - upper_product(value, fraction);
    return value >> min(5u + (steps >> 20u), 31u);
}
