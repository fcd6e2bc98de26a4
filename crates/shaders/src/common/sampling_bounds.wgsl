// Between which bins the cuts of top-k and top-p are; `Bounds` in sampling.rs is the Rust side.
struct Bounds {
    k_bin: u32,
    first: u32,
    last: u32,
    // Number of the tokens in the bins before `k_bin`, and their mass.
    n_above_k: u32,
    above_k: vec2u,
}

// The histogram: number, mass / 2^13, mass % 2^13.
var<workgroup> bin_number: array<u32, 256>;
var<workgroup> bin_mass: array<vec2u, 256>;

// Sums of masses as mass / 2^13 and mass % 2^13.
fn mass_sum(a: vec2u, b: vec2u) -> vec2u {
    let low = a.y + b.y;
    return vec2u(a.x + b.x + (low >> 13u), low & 8191u);
}

fn mass_share(sum: vec2u) -> f32 {
    return f32(sum.x) * 8192.0 + f32(sum.y);
}

// Invocation `lane` of 256 reads its bin.
fn load_bin(lane: u32) {
    bin_number[lane] = tally[lane * 3u];
    bin_mass[lane] = mass_sum(vec2u(tally[lane * 3u + 1u], 0u), vec2u(0u, tally[lane * 3u + 2u]));
}

// The first bin with which the mass reaches `goal`.
fn reaching(goal: f32) -> u32 {
    var sum = vec2u(0u);
    for (var bin = 0u; bin < BINS; bin += 1u) {
        sum = mass_sum(sum, bin_mass[bin]);
        if (mass_share(sum) >= goal) {
            return bin;
        }
    }
    return BINS;
}

// For one invocation, when all have read their bins.
fn find_bounds() -> Bounds {
    let top_k = settings[TOP_K];
    var k_bin = BINS;
    var n_above = 0u;
    var above = vec2u(0u);
    for (var bin = 0u; bin < BINS; bin += 1u) {
        if (top_k > 0u && n_above + bin_number[bin] >= top_k) {
            k_bin = bin;
            break;
        }
        n_above += bin_number[bin];
        above = mass_sum(above, bin_mass[bin]);
    }
    if (setting(TOP_P) >= 1.0) {
        return Bounds(k_bin, k_bin, k_bin, n_above, above);
    }
    var through = above;
    if (k_bin < BINS) {
        through = mass_sum(above, bin_mass[k_bin]);
    }
    let first = min(reaching(setting(TOP_P) * mass_share(above)), k_bin);
    let last = min(reaching(setting(TOP_P) * mass_share(through)), k_bin);
    return Bounds(k_bin, first, last, n_above, above);
}

fn is_undecided(bounds: Bounds, bin: u32) -> bool {
    return (bounds.first <= bin && bin <= bounds.last) || bin == bounds.k_bin;
}
